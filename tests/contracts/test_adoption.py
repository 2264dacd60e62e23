"""What the next service on a data root finds after the one before was killed (interpreter/backends/base.py).

Each test ends with ``House.nothing_left``, as those of test_backends.py do.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from interpreter.backends.base import BackendError, Sandbox, SandboxId
from interpreter.backends.bubblewrap import ending
from interpreter.backends.fake import FakeBackend
from tests.attempts import in_time
from tests.contracts.conftest import BUBBLEWRAP, DOCKER, PROCESS, House, until

adopts = pytest.mark.parametrize("kind", ["fake", BUBBLEWRAP, DOCKER])
on_the_host = pytest.mark.parametrize("kind", [BUBBLEWRAP, DOCKER])
by_state_files = pytest.mark.parametrize("kind", [BUBBLEWRAP])


@contextlib.asynccontextmanager
async def service(
    house: House, *behaviours: str, idle_s: float = 60.0, supervise: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process that serves this data root, killed at the latest on leaving; the lock is ours before and after."""
    house.let_go()
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "tests.contracts.dying"],
        *[house.kind, str(house.root), str(house.uid), str(idle_s), supervise, *behaviours],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
        house.take()


async def killed_service(house: House, *behaviours: str, idle_s: float = 60.0) -> list[SandboxId]:
    """Return the ids of sandboxes whose service was killed with -9, in the order of ``behaviours``."""
    if house.kind == "fake":
        earlier = house.make()
        return [(await earlier.start(house.spec())).id for _ in behaviours]
    async with service(house, *behaviours, idle_s=idle_s) as process:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 30)
        return json.loads(line)["started"]


async def adopted(house: House, ident: SandboxId) -> Sandbox:
    """The one sandbox there is, in the hands of the next service."""
    (sandbox,) = await house.backend.adoptable()
    assert sandbox.id == ident
    assert await house.backend.remove_leftovers(keep=frozenset([ident])) == 0
    return sandbox


def file_of(house: House, ident: SandboxId, end: str = "sandbox") -> Path:
    return house.root / ".run" / f"{ident}.{end}"


def said(house: House) -> str:
    """What is known of the last words of ``exits when told``: nothing is read of a container."""
    return "" if house.kind == "docker" else "bye"


def tell(house: House) -> None:
    """Tell the behaviours that wait for it to go on."""
    for place in house.root.glob("*/workspace"):
        (place / "told").touch()


@adopts
async def test_a_sandbox_whose_service_was_killed_goes_on_and_is_adopted(house: House) -> None:
    (ident,) = await killed_service(house, "daemons")
    sandbox = await adopted(house, ident)
    assert (sandbox.stats().processes or 0) >= 1
    assert (sandbox.stats().memory_bytes or 0) > 0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.wait(), 0.1)
    await asyncio.gather(*(sandbox.stop() for _ in range(3)))
    assert (await sandbox.wait()).status == 128 + signal.SIGKILL
    assert sandbox.stats().processes == 0
    await sandbox.stop()


@adopts
async def test_what_is_not_adopted_is_removed(house: House) -> None:
    one, two, three = await killed_service(house, "idle", "deaf", "daemons")
    found = {sandbox.id: sandbox for sandbox in await house.backend.adoptable()}
    assert set(found) == {one, two, three}
    assert await house.backend.remove_leftovers(keep=frozenset([two])) == 2
    for gone in (one, three):
        await asyncio.wait_for(found[gone].wait(), 20)
    assert (found[two].stats().processes or 0) >= 1
    await found[two].stop()
    assert await house.backend.remove_leftovers() == 0


@adopts
async def test_what_was_adopted_can_be_let_go_and_adopted_again(house: House) -> None:
    (ident,) = await killed_service(house, "idle")
    for _ in range(3):
        await adopted(house, ident)
        await house.backend.aclose()
        house.backend = house.make()
        await house.backend.check()
    await (await adopted(house, ident)).stop()


@adopts
async def test_with_nothing_left_there_is_nothing_to_adopt(house: House) -> None:
    assert await house.backend.adoptable() == []
    assert await house.backend.remove_leftovers() == 0


@pytest.mark.parametrize("kind", [PROCESS])
async def test_sandboxes_of_the_process_backend_end_with_the_service(house: House) -> None:
    sandbox = await house.start("daemons")
    assert any("end with the service" in warning for warning in await house.backend.check())
    await house.backend.aclose()
    assert house.processes() == set()
    assert (await sandbox.wait()).status == 128 + signal.SIGKILL
    assert await house.make().adoptable() == []


@pytest.mark.parametrize("kind", ["fake"])
async def test_the_fake_fails_on_request(house: House) -> None:
    one, two = await killed_service(house, "idle", "idle")
    assert isinstance(house.backend, FakeBackend)
    house.backend.refuse_adoption = BackendError("no")
    with pytest.raises(BackendError, match="no"):
        await house.backend.adoptable()
    house.backend.refuse_adoption = None
    house.backend.lost.add(one)
    (sandbox,) = await house.backend.adoptable()
    assert sandbox.id == two
    assert await house.backend.remove_leftovers(keep=frozenset([two])) == 1
    await sandbox.stop()


@on_the_host
async def test_the_end_of_an_adopted_sandbox_is_told(house: House) -> None:
    (ident,) = await killed_service(house, "exits when told")
    sandbox = await adopted(house, ident)
    waits = [asyncio.get_running_loop().create_task(sandbox.wait()) for _ in range(3)]
    tell(house)
    ends = await asyncio.wait_for(asyncio.gather(*waits), 20)
    assert {(end.status, end.oom, end.said) for end in ends} == {(5, False, said(house))}


@on_the_host
async def test_what_ended_before_it_was_adopted_is_told_until_it_is_done_with(house: House) -> None:
    (ident,) = await killed_service(house, "exits when told")
    tell(house)
    await until(lambda: not house.runs(ident))
    for _ in range(2):
        sandbox = await adopted(house, ident)
        end = await sandbox.wait()
        assert (end.status, end.oom, end.said) == (5, False, said(house))
        assert sandbox.stats().processes == 0
    await sandbox.stop()
    assert await house.backend.adoptable() == []


@on_the_host
@pytest.mark.parametrize("before", [True, False], ids=["before it was adopted", "after"])
async def test_running_out_of_memory_is_told(house: House, before: bool) -> None:
    (ident,) = await killed_service(house, "memory hog when told")
    if before:
        tell(house)
        await until(lambda: not house.runs(ident))
    sandbox = await adopted(house, ident)
    if not before:
        tell(house)
    assert (await asyncio.wait_for(sandbox.wait(), 20)).oom
    assert sandbox.stats().oom_kills >= 1
    await sandbox.stop()


@by_state_files
async def test_a_supervisor_that_is_killed_after_the_adoption_takes_its_sandbox_along(house: House) -> None:
    (ident,) = await killed_service(house, "daemons")
    sandbox = await adopted(house, ident)
    os.kill(house.supervisor(sandbox), signal.SIGKILL)
    assert (await asyncio.wait_for(sandbox.wait(), 20)).status is None
    assert not file_of(house, ident).exists()


@by_state_files
async def test_what_has_no_supervisor_any_more_is_a_leftover(house: House) -> None:
    (ident,) = await killed_service(house, "daemons")
    state = ast.literal_eval(file_of(house, ident).read_text())
    os.kill(state["pid"], signal.SIGKILL)
    await until(lambda: ending.start_time(state["pid"]) is None)
    assert await house.backend.adoptable() == []
    assert await house.backend.remove_leftovers() == 1


@pytest.mark.alone
@by_state_files
async def test_a_stopped_supervisor_is_adopted_and_done_without(house: House) -> None:
    (ident,) = await killed_service(house, "daemons")
    state = ast.literal_eval(file_of(house, ident).read_text())
    os.kill(state["pid"], signal.SIGSTOP)
    sandbox = await adopted(house, ident)
    assert (sandbox.stats().processes or 0) >= 4
    started = time.monotonic()
    await sandbox.stop()
    in_time(time.monotonic() - started, 3)
    assert (await sandbox.wait()).status is None


@by_state_files
async def test_nobody_adopts_and_the_idle_time_ends_it(house: House) -> None:
    (ident,) = await killed_service(house, "daemons", idle_s=0.5)
    house.let_go()
    await until(lambda: not file_of(house, ident).exists())
    assert house.processes() == set()
    sandbox = await adopted(house, ident)
    assert (await sandbox.wait()).status == 128 + signal.SIGKILL
    await sandbox.stop()


# --- state files that lead nowhere ----------------------------------------------------------------------------------


@pytest.fixture
def innocent() -> Iterator[dict[str, object]]:
    """A state of a process that is nobody's sandbox, and lives."""
    process = subprocess.Popen(["sleep", "600"])
    start = ending.start_time(process.pid)
    yield {"pid": process.pid, "start": start, "first": process.pid, "first_start": start, "groups": []}
    assert process.poll() is None, "an innocent process was killed"
    process.kill()
    process.wait()


GARBAGE = [
    b"",
    b"{",
    b"\0" * 4096,
    b"\xff\xfe",
    b"()",
    b"[1, 2]",
    b"{'id': 1}",
    b"(" * 60_000,
    b"{'id': 'x', 'pid': None}",
    b"__import__('os').abort()",
]


@by_state_files
async def test_files_of_garbage_lead_to_nothing_and_go(house: House) -> None:
    ends = ("sandbox", "ended", "sandbox.new", "ended.new")
    for number, (text, end) in enumerate(itertools.product(GARBAGE, ends)):
        file_of(house, SandboxId(f"{number:016x}"), end).write_bytes(text)
    assert await house.backend.adoptable() == []
    assert await house.backend.remove_leftovers() == len(GARBAGE)
    assert list((house.root / ".run").iterdir()) == []


@by_state_files
@pytest.mark.parametrize("wrong", ["root", "boot", "name", "groups", "start"])
async def test_a_state_file_that_is_none_of_ours_leads_to_no_process(
    house: House, innocent: dict[str, object], wrong: str
) -> None:
    """As one that was copied, came back with a backup, or is older than the boot; and a pid that was reused since."""
    ident = SandboxId("0123456789abcdef")
    file = file_of(house, ident)
    foreign = house.root / "foreign"
    foreign.mkdir()
    state = {"id": ident, "state": str(file), "boot": ending.boot_id(), **innocent}
    if wrong == "groups":
        state["groups"] = [str(foreign)]
    elif wrong == "start":
        state |= {"start": int(str(innocent["start"])) - 1, "first_start": int(str(innocent["first_start"])) - 1}
    else:
        state |= {"root": {"state": "/elsewhere"}, "boot": {"boot": "0"}, "name": {"id": "0" * 16}}[wrong]
    file.write_text(repr(state))
    assert await house.backend.adoptable() == []
    await house.backend.remove_leftovers()
    assert foreign.exists()
    assert not file.exists()


@by_state_files
async def test_where_no_descriptor_is_left_nothing_is_called_lost(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ident,) = await killed_service(house, "idle")
    with monkeypatch.context() as patch:

        def full(_pid: int) -> int:
            raise OSError(24, "Too many open files")

        patch.setattr(os, "pidfd_open", full)
        with pytest.raises(BackendError):
            await house.backend.adoptable()
    await (await adopted(house, ident)).stop()


# --- a service that is killed while it starts a sandbox --------------------------------------------------------------

KILLS_ITS_SERVICE = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import supervisor

def dies(real, nth, root, service=os.getppid(), calls=[]):
    def call(*args, **named):
        calls.append(1)
        if len(calls) == nth:
            open(root + "/supervisor", "w").write(str(os.getpid()))
            os.kill(service, 9)
            while os.getppid() == service or not os.path.exists(root + "/told"): time.sleep(0.001)
        return real(*args, **named)
    return call

owner = supervisor{owner}
owner.{name} = dies(owner.{name}, {nth}, {root!r})
supervisor.main()
"""
"""A supervisor that kills its service when it comes to the nth call of a function, and goes on when it is told to."""

UNNOTED = [("", "main", 1), ("", "_write_state", 1)]
"""Nothing is noted yet."""
NOTED = [("", "_fork", 1), ("", "_make_groups", 1), ("._Child", "first", 1), ("", "_write_state", 2)]
"""The state file is there, and does not say all."""
COMPLETE = [("", "_report", 1), ("", "_watch", 1)]


async def killed_while_starting(house: House, phase: tuple[str, str, int]) -> int:
    """Let a service be killed in ``phase`` of a start, and return the pid of the supervisor, which waits to be told."""
    owner, name, nth = phase
    supervise = KILLS_ITS_SERVICE.format(owner=owner, name=name, nth=nth, root=str(house.root))
    async with service(house, "idle", supervise=supervise) as process:
        assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGKILL
    return int((house.root / "supervisor").read_text())


@by_state_files
@pytest.mark.parametrize("phase", UNNOTED + NOTED + COMPLETE)
async def test_a_start_cut_short_is_whole_or_a_leftover(house: House, phase: tuple[str, str, int]) -> None:
    """The next service looks while the supervisor is just there: what it does not find must not come to life later."""
    supervisor = await killed_while_starting(house, phase)
    found = await house.backend.adoptable()
    assert len(found) == (phase in COMPLETE)
    removed = await house.backend.remove_leftovers(keep=frozenset(sandbox.id for sandbox in found))
    assert removed == (phase in NOTED)
    (house.root / "told").touch()
    for sandbox in found:
        assert (sandbox.stats().processes or 0) >= 1
        await sandbox.stop()
    await until(lambda: ending.start_time(supervisor) is None and not house.processes())


@by_state_files
@pytest.mark.parametrize("phase", UNNOTED + NOTED + COMPLETE)
async def test_a_start_that_goes_on_without_its_service_is_whole_or_leaves_nothing(
    house: House, phase: tuple[str, str, int]
) -> None:
    """The next service looks when all has come to rest."""
    (house.root / "told").touch()
    supervisor = await killed_while_starting(house, phase)
    run = house.root / ".run"
    if phase in UNNOTED:
        await until(lambda: ending.start_time(supervisor) is None)
        assert list(run.iterdir()) == []
        assert await house.backend.adoptable() == []
        return
    await until(lambda: any(b"'first': None" not in file.read_bytes() for file in run.glob("*.sandbox")))
    (sandbox,) = await house.backend.adoptable()
    await until((next(house.root.glob("*/workspace")) / "ready").exists)
    await sandbox.stop()


@on_the_host
async def test_two_services_and_one_data_root_take_turns(house: House) -> None:
    """The second one waits for the lock, which the first one's death gives it at once, whatever runs."""
    async with service(house, "idle") as first:
        assert first.stdout is not None
        started = json.loads(await asyncio.wait_for(first.stdout.readline(), 30))["started"]
        async with service(house, "idle") as second:
            assert second.stdout is not None
            line = asyncio.get_running_loop().create_task(second.stdout.readline())
            done, _ = await asyncio.wait([line], timeout=0.5)
            assert not done
            first.kill()
            started += json.loads(await asyncio.wait_for(line, 30))["started"]
    found = await house.backend.adoptable()
    assert {sandbox.id for sandbox in found} == set(started)
    await asyncio.gather(*(sandbox.stop() for sandbox in found))


@on_the_host
@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
async def test_whenever_a_busy_service_is_killed_its_successor_finds_all(house: House, rounds: int) -> None:
    """Starts, stops and adoptions cut short at any moment, again and again: at the end nothing is anywhere."""
    kept = 0
    for number in range(rounds if house.kind != "docker" else (rounds + 1) // 2):
        async with service(house, "churn") as process:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), 30)
            kept += json.loads(line)["kept"]
            if number % 2:  # else it may be killed before it has started any, each time
                assert b"started" in await asyncio.wait_for(process.stdout.readline(), 30)
            await asyncio.sleep((number * 0.037) % 0.4 * (8 if house.kind == "docker" else 1))
    assert kept > 0
    await house.backend.adoptable()
    await house.backend.remove_leftovers()
    # A supervisor that had not noted anything yet gives up by itself.
    await until(lambda: not house.processes(zombies=True) and not list((house.root / ".run").iterdir()))
