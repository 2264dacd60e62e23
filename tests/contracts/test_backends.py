"""What every backend promises (interpreter/backends/base.py), on each of them. A new one is done when it passes.

Each test ends with ``House.nothing_left``: no process, cgroup, mount or file of a sandbox is left on the host.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from interpreter.backends.base import SandboxExit
from interpreter.backends.bubblewrap import ending
from interpreter.backends.bubblewrap.sandbox import BubblewrapSandbox
from tests.attempts import in_time
from tests.contracts.conftest import BUBBLEWRAP, DOCKER, GVISOR, PROCESS, House, until

every_backend = pytest.mark.parametrize("kind", ["fake", PROCESS, BUBBLEWRAP, DOCKER, GVISOR])
on_the_host = pytest.mark.parametrize("kind", [PROCESS, BUBBLEWRAP, DOCKER])
with_limits = pytest.mark.parametrize("kind", [BUBBLEWRAP, DOCKER])
supervised = pytest.mark.parametrize("kind", [BUBBLEWRAP])


@every_backend
async def test_a_sandbox_runs_until_it_is_stopped(house: House) -> None:
    sandbox = await house.start("idle")
    assert (sandbox.stats().processes or 0) >= 1
    await sandbox.stop()
    assert (await sandbox.wait()).status == 128 + signal.SIGKILL
    assert house.processes(zombies=True) == set()
    assert sandbox.stats().processes == 0


@every_backend
async def test_stop_may_be_called_again_and_at_the_same_time(house: House) -> None:
    sandbox = await house.start("idle")
    await asyncio.gather(*(sandbox.stop() for _ in range(5)))
    await sandbox.stop()


@every_backend
async def test_many_start_and_stop_at_the_same_time(house: House) -> None:
    sandboxes = await asyncio.gather(*(house.start("idle") for _ in range(8)))
    assert len({sandbox.id for sandbox in sandboxes}) == 8
    await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))


@every_backend
async def test_a_cancelled_stop_still_stops(house: House) -> None:
    sandbox = await house.start("idle")
    stop = asyncio.get_running_loop().create_task(sandbox.stop())
    await asyncio.sleep(0)
    stop.cancel()
    await asyncio.wait([stop])
    await asyncio.wait_for(sandbox.wait(), 20)


@every_backend
async def test_many_may_wait_for_the_end_and_ask_again(house: House) -> None:
    sandbox = await house.start("exits", until_ready=False)
    ends = await asyncio.wait_for(asyncio.gather(*(sandbox.wait() for _ in range(5))), 20)
    assert {end.status for end in ends} == {3}
    assert (await sandbox.wait()).oom is False
    await sandbox.stop()


@every_backend
async def test_a_cancelled_wait_disturbs_no_other(house: House) -> None:
    sandbox = await house.start("idle")
    loop = asyncio.get_running_loop()
    one, other = loop.create_task(sandbox.wait()), loop.create_task(sandbox.wait())
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.wait([one])
    await sandbox.stop()
    assert isinstance(await other, SandboxExit)


@on_the_host
@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06])
async def test_a_cancelled_start_leaves_nothing(house: House, after_s: float) -> None:
    start = asyncio.get_running_loop().create_task(house.backend.start(house.spec()))
    await asyncio.wait([start], timeout=after_s)
    start.cancel()
    await asyncio.wait([start])
    if not start.cancelled():
        await start.result().stop()


@pytest.mark.alone
@on_the_host
@pytest.mark.parametrize("behaviour", ["deaf", "daemons", "stopped"])
async def test_stop_needs_no_help_from_inside(house: House, behaviour: str) -> None:
    sandbox = await house.start(behaviour)
    started = time.monotonic()
    await sandbox.stop()
    in_time(time.monotonic() - started, 3)
    assert house.processes() == set()


@on_the_host
async def test_daemons_end_with_their_sandbox(house: House) -> None:
    sandbox = await house.start("leaves daemons", until_ready=False)
    assert (await asyncio.wait_for(sandbox.wait(), 20)).status == 4


@on_the_host
async def test_leftovers_of_an_earlier_service_are_removed(house: House) -> None:
    sandbox = await house.start("daemons")
    later = house.make()
    await later.check()
    assert await later.remove_leftovers() == 1
    assert house.processes() == set()
    assert await later.remove_leftovers() == 0
    await sandbox.wait()
    await later.aclose()


@with_limits
async def test_the_memory_limit_kills_and_says_so(house: House) -> None:
    sandbox = await house.start("memory hog")
    assert sandbox.stats().oom_kills >= 1
    assert (sandbox.stats().memory_bytes or 0) < 2**27
    await sandbox.stop()
    assert (await sandbox.wait()).oom


@pytest.mark.alone
@with_limits
async def test_a_fork_bomb_stays_within_its_processes_and_is_ended(house: House) -> None:
    sandbox = await house.start("fork bomb")
    await until(lambda: (sandbox.stats().processes or 0) >= 32)
    assert (sandbox.stats().processes or 0) <= 32 + 48
    started = time.monotonic()
    await sandbox.stop()
    in_time(time.monotonic() - started, 5)


@supervised
@pytest.mark.parametrize("behaviour", ["idle", "deaf", "daemons", "fork bomb"])
async def test_a_killed_supervisor_takes_its_sandbox_along(house: House, behaviour: str) -> None:
    sandbox = await house.start(behaviour)
    assert isinstance(sandbox, BubblewrapSandbox)
    os.kill(house.supervisor(sandbox), signal.SIGKILL)
    assert (await asyncio.wait_for(sandbox.wait(), 20)).status is None


@supervised
async def test_a_stop_during_the_cleanup_after_a_killed_supervisor_hits_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor that named the supervisor is closed by then, and its number may be another sandbox's."""
    sandbox = await house.start("idle")
    assert isinstance(sandbox, BubblewrapSandbox)
    go_on, end_groups = threading.Event(), ending.end_groups

    def end_groups_late(groups: list[str], *, within_s: float) -> bool:
        go_on.wait(20)
        return end_groups(groups, within_s=within_s)

    monkeypatch.setattr(ending, "end_groups", end_groups_late)
    os.kill(house.supervisor(sandbox), signal.SIGKILL)
    await until(lambda: sandbox._pidfd < 0)
    neighbours = [await house.start("idle") for _ in range(3)]
    stop = asyncio.get_running_loop().create_task(sandbox.stop())
    await asyncio.wait([stop], timeout=1.5)  # it has tried the mild signal and the hard one
    go_on.set()
    await stop
    for neighbour in neighbours:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(neighbour.wait(), 0.2)
        await neighbour.stop()


@pytest.mark.alone
@supervised
async def test_a_stuck_supervisor_is_done_without(house: House) -> None:
    sandbox = await house.start("daemons")
    assert isinstance(sandbox, BubblewrapSandbox)
    os.kill(house.supervisor(sandbox), signal.SIGSTOP)
    started = time.monotonic()
    await sandbox.stop()
    in_time(time.monotonic() - started, 3)


@supervised
async def test_a_service_that_ends_leaves_its_sandboxes_to_their_supervisors(house: House) -> None:
    sandbox = await house.start("daemons")
    assert isinstance(sandbox, BubblewrapSandbox)
    pid = house.supervisor(sandbox)
    await house.backend.aclose()
    assert len(house.processes()) >= 4
    house.backend = house.make()
    await house.backend.check()
    assert await house.backend.remove_leftovers() == 1
    await asyncio.to_thread(os.waitpid, pid, 0)


@supervised
async def test_a_sandbox_outlives_the_service_for_the_idle_time_only(house: House) -> None:
    await house.backend.aclose()
    house.backend = house.make(idle_s=0.5)
    await house.backend.check()
    sandbox = await house.start("daemons")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.wait(), 1)
    house.let_go()
    await asyncio.wait_for(sandbox.wait(), 20)


@pytest.mark.parametrize("kind", [BUBBLEWRAP, DOCKER])
async def test_directories_that_are_renamed_stay_those_of_the_sandbox(house: House) -> None:
    """``Backend.spares``: a sandbox made ahead gets its session's name, and with it its scope's, while it runs."""
    assert house.backend.spares
    house.behaviour = "exits when told"
    spec = house.spec()
    sandbox = await house.backend.start(spec)
    await until((spec.workspace / "ready").exists)
    spec.workspace.rename(spec.workspace.with_name("session"))
    scope = spec.workspace.parent.rename(house.root / "scope")
    (scope / "session" / "told").touch()
    assert (await asyncio.wait_for(sandbox.wait(), 20)).status == 5
    await sandbox.stop()
