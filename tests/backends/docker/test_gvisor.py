"""gVisor proved on an engine of the test's own, which is told about it as an operator tells his."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interpreter.backends.base import BackendUnavailable
from interpreter.backends.docker import gvisor
from interpreter.backends.docker.backend import DockerBackend
from interpreter.backends.docker.engine import Client
from tests import engines
from tests.apart import PROBE_UID
from tests.backends.docker import tiny
from tests.backends.docker.conftest import PrivateEngine

pytestmark = [
    engines.needed,
    pytest.mark.skipif(shutil.which("runsc") is None, reason="needs gVisor: apt-get install runsc"),
]


@pytest.fixture
def root() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="cellbox-test-"))
    yield place
    shutil.rmtree(place)


def tell(engine: PrivateEngine, registration: str) -> None:
    """Write the engine's configuration and have it read, as ``systemctl reload docker`` does."""
    engine.configuration.write_text(registration)
    assert engine.process is not None
    engine.process.send_signal(signal.SIGHUP)
    client, wanted = Client(engine.address), json.loads(registration)["runtimes"]["runsc"]["runtimeArgs"]
    deadline = time.monotonic() + 20
    while client.about()[1]["Runtimes"].get("runsc", {}).get("runtimeArgs") != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    client.close()


async def checked(engine: PrivateEngine, root: Path) -> str:
    """What the backend refuses with; nothing if it does not."""
    backend = DockerBackend(
        root=root,
        idle_s=60,
        probe_uid=PROBE_UID,
        image=tiny.make(engine.address),
        runtime="runsc",
        address=engine.address,
    )
    try:
        await backend.check()
    except BackendUnavailable as refusal:
        return str(refusal)
    finally:
        await backend.aclose()
    return ""


async def test_what_is_printed_for_an_operator_works(private: PrivateEngine, root: Path) -> None:
    """Word for word, without a restart of the engine."""
    assert "does not know the runtime runsc" in await checked(private, root)
    (registration,) = [line for line in gvisor.how_to_register(network="none") if line.startswith("{")]
    tell(private, registration)
    assert await checked(private, root) == ""


async def test_a_registration_that_only_looks_right_fails_the_probe(private: PrivateEngine, root: Path) -> None:
    """The last of two arguments counts: inside nothing is reachable."""
    arguments = ["--host-uds=open", "--network=none", "--host-uds=none"]
    tell(private, json.dumps({"runtimes": {"runsc": {"path": shutil.which("runsc"), "runtimeArgs": arguments}}}))
    refusal = await checked(private, root)
    assert refusal.startswith("a throw-away container of gVisor could not connect")
    assert "systemctl reload docker" in refusal
