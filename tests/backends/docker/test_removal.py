"""Removing what the engine does not let go of: it is asked until it does, and nothing else waits for it. No container runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from interpreter.backends.base import BackendError, SandboxId
from interpreter.backends.docker import sandbox as sandboxes
from interpreter.backends.docker.engine import Engine
from interpreter.backends.docker.sandbox import DockerSandbox
from interpreter.tasks import Tasks
from tests.contracts.conftest import until
from tests.fakes import engine as engines

MANY = 40
"""More than there are threads for any kind of call."""


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[engines.FakeEngine]:
    with engines.running(tmp_path / "engine") as fake:
        yield fake


class Row:
    """Sandboxes that run in an engine, as far as it is asked."""

    def __init__(self, fake: engines.FakeEngine) -> None:
        self.fake = fake
        self.engine = Engine(fake.address)
        self.tasks = Tasks()
        self.forgotten: list[DockerSandbox] = []

    def sandbox(self, number: int = 0) -> DockerSandbox:
        container = f"{number:064x}"
        ident = SandboxId(container[-16:])
        return DockerSandbox(ident, container, self.engine, self.tasks, self.forgotten.append)

    def times_asked(self) -> int:
        return len([what for what, _ in self.fake.asked if what.startswith("DELETE")])


@pytest.fixture
async def row(fake: engines.FakeEngine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Row]:
    monkeypatch.setattr(sandboxes, "STOP_S", 0.2)
    made = Row(fake)
    yield made
    await made.tasks.aclose(within_s=20)
    await made.engine.aclose()


async def test_removals_that_hang_take_no_other_call_along(row: Row) -> None:
    release = threading.Event()
    every = [row.sandbox(number) for number in range(MANY)]
    for each in every:
        row.fake.answers[f"DELETE /containers/{each.container}"] = (204, "")
        row.fake.held[f"DELETE /containers/{each.container}"] = release
    said = await asyncio.gather(*(each.stop() for each in every), return_exceptions=True)
    assert {type(each) for each in said} == {BackendError}
    await asyncio.wait_for(row.engine.call(row.engine.client.ping), 20)
    assert row.forgotten == []
    await until(lambda: all(each.hanging for each in every))
    release.set()
    await until(lambda: len(row.forgotten) == MANY)
    assert not any(each.hanging for each in every)
    assert {(await each.wait()).status for each in every} == {137}


async def test_an_engine_that_refuses_is_asked_until_it_does_it(row: Row, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sandbox = row.sandbox()
    removal = f"DELETE /containers/{sandbox.container}"
    row.fake.answers[removal] = (500, {"message": "device or resource busy"})
    with pytest.raises(BackendError, match="container engine does not do it"):
        await sandbox.stop()
    await until(lambda: "does not remove a sandbox" in caplog.text)
    assert sandbox.hanging
    row.fake.answers[removal] = (204, "")
    await until(lambda: row.forgotten == [sandbox])
    assert "has removed a sandbox late" in caplog.text
    await sandbox.stop()


async def test_who_stops_twice_asks_the_engine_once(row: Row) -> None:
    sandbox, release = row.sandbox(), threading.Event()
    row.fake.answers[f"DELETE /containers/{sandbox.container}"] = (204, "")
    row.fake.held[f"DELETE /containers/{sandbox.container}"] = release
    for _ in range(2):
        with pytest.raises(BackendError):
            await sandbox.stop()
    release.set()
    await sandbox.stop()
    assert row.times_asked() == 1


async def test_an_engine_that_is_back_is_asked_at_once(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "_FIRST_PAUSE_S", 3600)
    sandbox = row.sandbox()
    row.fake.answers[f"DELETE /containers/{sandbox.container}"] = (503, {"message": "shutting down"})
    with pytest.raises(BackendError):
        await sandbox.stop()
    row.fake.answers[f"DELETE /containers/{sandbox.container}"] = (204, "")
    sandbox.ask_again()
    await until(lambda: row.forgotten == [sandbox])


async def test_counters_are_not_asked_for_anew_before_the_answer(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes, "_STATS_S", -1)
    sandbox = row.sandbox()
    asking = f"GET /containers/{sandbox.container}/stats"
    row.fake.answers[asking] = (200, {"pids_stats": {"current": 7}})
    release = row.fake.held[asking] = threading.Event()
    for _ in range(MANY):
        sandbox.stats()
        await asyncio.sleep(0)
    await until(lambda: asking in [what for what, _ in row.fake.asked])
    await asyncio.wait_for(row.engine.call(row.engine.client.ping), 20)
    assert [what for what, _ in row.fake.asked].count(asking) == 1
    release.set()
    await until(lambda: sandbox.stats().processes == 7)
