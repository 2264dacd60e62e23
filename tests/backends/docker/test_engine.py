"""What an engine says and does that it should not: each is an error of ours, with a sentence that helps. No container runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from interpreter.backends.base import BackendError, BackendUnavailable
from interpreter.backends.docker import failure
from interpreter.backends.docker.backend import DockerBackend
from interpreter.backends.docker.engine import Client, Conflict, DiskFull, EngineError, EngineGone, NotThere
from interpreter.backends.docker.sources import Planted
from tests.fakes import engine as engines

FULL = {"message": "mkdir /var/lib/docker/overlay2/1: no space left on device"}
ADDRESS = "unix:///run/engine"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[engines.FakeEngine]:
    with engines.running(tmp_path / "engine") as engine:
        yield engine


@pytest.fixture
def client(engine: engines.FakeEngine) -> Iterator[Client]:
    client = Client(engine.address, within_s=5)
    yield client
    client.close()


@pytest.fixture
async def backend(engine: engines.FakeEngine, tmp_path: Path) -> AsyncIterator[DockerBackend]:
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    made = DockerBackend(root=root, idle_s=60, probe_uid=299_999, image="there:latest", address=engine.address)
    yield made
    await made.aclose()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, {"message": "No such image: x"}, NotThere),
        (409, {"message": "The container name is already in use"}, Conflict),
        (500, FULL, DiskFull),
        (500, {"message": "a fault"}, EngineError),
        (503, {"message": "shutting down"}, EngineGone),
        (400, "no JSON at all", EngineError),
        (201, "", EngineError),
        (201, "[1", EngineError),
        (201, {"Warnings": []}, EngineError),
    ],
)
def test_every_answer_is_an_error_of_ours(
    client: Client, engine: engines.FakeEngine, status: int, body: Any, kind: type[EngineError]
) -> None:
    engine.answers["POST /containers/create"] = (status, body)
    with pytest.raises(kind):
        client.create("x", {"Image": "x"})


def test_an_engine_that_is_not_there_or_not_one_is_gone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nothing", tmp_path / "file"):
        client = Client(f"unix://{path}", within_s=5)
        with pytest.raises(EngineGone):
            client.ping()
        client.close()


def test_what_is_gone_already_is_removed(client: Client) -> None:
    client.remove("0" * 64)


async def test_a_missing_image_says_how_to_get_it(engine: engines.FakeEngine, backend: DockerBackend) -> None:
    del engine.answers["GET /images/there:latest/json"]
    with pytest.raises(BackendUnavailable, match="cellbox image build"):
        await backend.check()


async def test_a_missing_network_says_how_to_get_it(engine: engines.FakeEngine, tmp_path: Path) -> None:
    backend = DockerBackend(
        root=tmp_path, idle_s=60, probe_uid=299_999, image="there:latest", network="lan", address=engine.address
    )
    with pytest.raises(BackendUnavailable, match="docker network create"):
        await backend.check()
    await backend.aclose()


async def test_an_engine_that_cannot_limit_is_refused(engine: engines.FakeEngine, backend: DockerBackend) -> None:
    engine.answers["GET /info"] = (200, {**engines.INFO, "PidsLimit": False})
    with pytest.raises(BackendUnavailable, match="cannot limit processes"):
        await backend.check()


async def test_a_limit_that_the_engine_ignores_ends_the_start(
    engine: engines.FakeEngine, backend: DockerBackend
) -> None:
    """The probe is what meets it first. Nothing is left of it."""
    container = "f" * 64
    engine.answers["POST /containers/create"] = (201, {"Id": container, "Warnings": ["no pids limit here"]})
    engine.answers[f"POST /containers/{container}/start"] = (204, "")
    engine.answers[f"DELETE /containers/{container}"] = (204, "")
    made = {"Id": container, "State": {"Pid": 0, "Running": True}, "HostConfig": {"Memory": 1}}
    engine.answers[f"GET /containers/{container}/json"] = (200, made)
    with pytest.raises(BackendUnavailable, match=r"ignores limits.*PidsLimit"):
        await backend.check()
    asked = [what for what, _ in engine.asked]
    assert f"DELETE /containers/{container}" in asked
    sent = next(body for what, body in engine.asked if what == "POST /containers/create")
    assert json.dumps(sent).count("/:/") == 0


async def test_a_name_that_is_taken_touches_nobody_elses_container(
    engine: engines.FakeEngine, backend: DockerBackend
) -> None:
    engine.answers["POST /containers/create"] = (409, {"message": "The container name is already in use"})
    with pytest.raises(BackendError, match="its name is taken"):
        await backend.check()
    assert not [what for what, _ in engine.asked if what.startswith("DELETE")]


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (EngineGone("x"), BackendUnavailable, "does not answer at unix:///run/engine"),
        (NotThere("No such image: there"), BackendUnavailable, "cellbox image build"),
        (NotThere("No such container"), BackendError, "log of the service"),
        (DiskFull("x"), BackendError, "disk of the container engine is full"),
        (Conflict("x"), BackendError, "name is taken"),
        (failure.Ignored(["Memory"]), BackendUnavailable, "ignores limits that have to hold (Memory)"),
        (Planted("x"), BackendError, "directories are not as the service has made them"),
        (OSError(28, "x"), BackendError, "disk of the data root is full"),
        (OSError(24, "x"), BackendError, "out of descriptors"),
        (EngineError("fork/exec: Resource temporarily unavailable"), BackendError, "no further process"),
        (EngineError("/var/lib/docker: odd"), BackendError, "log of the service"),
    ],
)
def test_the_caller_is_told_the_cause_and_no_word_of_the_engine(
    error: Exception, kind: type[BackendError], words: str
) -> None:
    told = failure.of_start(error, "there", ADDRESS)
    assert type(told) is kind
    assert words in str(told)
    assert "/var/lib" not in str(told)
