"""A service that sees neither processes nor cgroups of its containers, as one in a container of its own: the engine tells."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from interpreter.backends.docker import seen
from tests import engines
from tests.attempts import in_time
from tests.contracts.conftest import House, until

pytestmark = engines.needed


@pytest.fixture(autouse=True)
def _nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "look", lambda _container, _pid: seen.NOTHING)


async def test_an_end_is_heard_from_the_engine(house: House) -> None:
    sandbox = await house.start("exits", until_ready=False)
    assert (await asyncio.wait_for(sandbox.wait(), 20)).status == 3
    await sandbox.stop()


@pytest.mark.alone
@pytest.mark.parametrize("behaviour", ["deaf", "daemons", "stopped"])
async def test_a_stop_is_done_by_the_engine(house: House, behaviour: str) -> None:
    sandbox = await house.start(behaviour)
    started = time.monotonic()
    await asyncio.gather(*(sandbox.stop() for _ in range(3)))
    in_time(time.monotonic() - started, 3)
    assert house.processes() == set()
    assert (await sandbox.wait()).status == 128 + signal.SIGKILL
    assert sandbox.stats().processes == 0


@pytest.mark.alone
async def test_the_counters_are_asked_for_and_nobody_waits_for_them(house: House) -> None:
    sandbox = await house.start("daemons")
    began = time.monotonic()
    sandbox.stats()
    in_time(time.monotonic() - began, 0.05)
    await until(lambda: (sandbox.stats().processes or 0) >= 4 and (sandbox.stats().memory_bytes or 0) > 0)
    await sandbox.stop()


async def test_running_out_of_memory_is_heard_from_the_engine(house: House) -> None:
    sandbox = await house.start("memory hog")
    await until(lambda: sandbox.oom_kills() >= 1)
    await sandbox.stop()
    assert (await sandbox.wait()).oom


async def test_the_numbers_of_an_engine_are_read_in_both_versions_of_cgroups() -> None:
    from interpreter.backends.docker.sandbox import _stats

    old = {"memory_stats": {"usage": 100, "stats": {"total_inactive_file": 30}}, "pids_stats": {"current": 4}}
    new = {"memory_stats": {"usage": 100, "stats": {"inactive_file": 20}}, "pids_stats": {"current": 5}}
    assert (_stats(old).memory_bytes, _stats(old).processes) == (70, 4)
    assert (_stats(new).memory_bytes, _stats(new).processes) == (80, 5)
    assert (_stats({}).memory_bytes, _stats({}).processes) == (None, None)
