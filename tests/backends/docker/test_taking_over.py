"""Taking over what an earlier service left, from an engine that is stuck with some of it. No container runs."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from interpreter.backends.base import BackendUnavailable, SandboxId
from interpreter.backends.docker import engine as calls
from interpreter.backends.docker import sandbox as sandboxes
from interpreter.backends.docker import spec
from interpreter.backends.docker.backend import DockerBackend
from tests.contracts.conftest import until
from tests.fakes import engine as engines

MANY = 20
STUCK = 7


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[engines.FakeEngine]:
    with engines.running(tmp_path / "engine") as fake:
        listed = []
        for number in range(MANY):
            labels = {spec.SANDBOX: f"{number:016x}"}
            listed.append({"Id": container(number), "State": "running", "Labels": labels})
            state = {"Running": True, "Pid": 0, "ExitCode": 0}
            fake.answers[look(number)] = (200, {"State": state})
            fake.answers[removal(number)] = (204, "")
        fake.answers["GET /containers/json"] = (200, listed)
        yield fake


@pytest.fixture
async def backend(
    fake: engines.FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[DockerBackend]:
    monkeypatch.setattr(calls, "LOOK_S", 1.0)
    monkeypatch.setattr(sandboxes, "STOP_S", 0.2)
    (tmp_path / "root").mkdir(mode=0o700)
    made = DockerBackend(
        root=tmp_path / "root", idle_s=60, probe_uid=299_999, image="there:latest", address=fake.address
    )
    yield made
    await made.aclose()


def container(number: int) -> str:
    return f"{number:064x}"


def look(number: int) -> str:
    return f"GET /containers/{container(number)}/json"


def removal(number: int) -> str:
    return f"DELETE /containers/{container(number)}"


def every(*but: int) -> frozenset[SandboxId]:
    return frozenset(SandboxId(f"{number:016x}") for number in range(MANY) if number not in but)


async def test_one_that_the_engine_is_stuck_with_costs_neither_the_others_nor_the_start(
    fake: engines.FakeEngine, backend: DockerBackend, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    fake.held[look(STUCK)] = fake.held[removal(STUCK)] = release
    found = frozenset(sandbox.id for sandbox in await backend.adoptable())
    assert found == every(STUCK)
    assert "cannot be taken over" in caplog.text
    assert await backend.remove_leftovers(found) == 1
    await until(lambda: backend.hanging() == 1)
    release.set()
    await until(lambda: backend.hanging() == 0)
    asked = [what for what, _ in fake.asked if what.startswith("DELETE")]
    assert set(asked) == {removal(STUCK)}


async def test_they_are_looked_at_side_by_side(fake: engines.FakeEngine, backend: DockerBackend) -> None:
    """No answer comes before all have been asked for."""
    release = threading.Event()
    fake.held |= {look(number): release for number in range(MANY)}

    def all_asked() -> None:
        while {look(number) for number in range(MANY)} - {what for what, _ in fake.asked}:
            if release.wait(0.005):
                return
        release.set()

    waiting = threading.Thread(target=all_asked)
    waiting.start()
    try:
        assert {sandbox.id for sandbox in await backend.adoptable()} == every()
    finally:
        release.set()
        waiting.join()


@pytest.mark.parametrize("status", [404, 500])
async def test_one_that_has_gone_or_that_the_engine_does_not_tell_of_is_left_out(
    fake: engines.FakeEngine, backend: DockerBackend, status: int
) -> None:
    fake.answers[look(STUCK)] = (status, {"message": "a fault"})
    assert {sandbox.id for sandbox in await backend.adoptable()} == every(STUCK)


async def test_an_engine_that_goes_away_meanwhile_makes_nothing_lost(
    fake: engines.FakeEngine, backend: DockerBackend
) -> None:
    fake.answers |= {look(number): (503, {"message": "shutting down"}) for number in range(STUCK, MANY)}
    with pytest.raises(BackendUnavailable, match="does not answer"):
        await backend.adoptable()
    assert [what for what, _ in fake.asked if what.startswith("DELETE")] == []
