"""Fixtures: ``house`` (see tests/contracts) with docker; ``inside`` runs Python in a sandbox and returns what it said;
``private`` is an engine of the test's own, which it may kill, stop and fill.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interpreter.backends.docker.engine import Client, EngineError
from tests import engines
from tests.backends.bubblewrap import conftest as bubblewrap
from tests.contracts import conftest as contracts

house = contracts.house
inside = bubblewrap.inside


@pytest.fixture
def kind() -> str:
    return "docker"


class PrivateEngine:
    """A ``dockerd`` with a small disk and without a network."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.data = place / "data"
        self.configuration = place / "daemon.json"
        self.configuration.write_text("{}")
        self.address = f"unix://{place}/docker.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        # In a network of its own: an engine without a bridge removes that of the host, which is another engine's.
        command = [
            "unshare",
            "--net",
            "dockerd",
            "--host",
            self.address,
            "--data-root",
            str(self.data),
            "--storage-driver",
            "overlay2",
        ]
        command += [
            "--config-file",
            str(self.configuration),
            "--exec-root",
            str(self.place / "exec"),
            "--pidfile",
            str(self.place / "pid"),
        ]
        command += ["--bridge", "none", "--iptables=false", "--ip6tables=false", "--shutdown-timeout", "1"]
        for pid in ("pid", "exec/containerd/containerd.pid"):  # it believes in a pid whose zombie is there
            (self.place / pid).unlink(missing_ok=True)
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        client = Client(self.address)
        try:
            while True:
                try:
                    return client.ping()
                except EngineError:
                    assert self.process.poll() is None, (self.place / "log").read_text()[-2000:]
                    assert time.monotonic() < deadline, (self.place / "log").read_text()[-2000:]
                    time.sleep(0.05)
        finally:
            client.close()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it by a signal."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None

    def end_shims(self) -> None:
        """End what a killed engine has left: the processes that hold its containers, and what is in these."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"{self.place}/exec" in (entry / "cmdline").read_text():
                    children = (entry / "task" / entry.name / "children").read_text().split()
                    for pid in map(int, [*children, entry.name]):
                        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def private() -> Iterator[PrivateEngine]:
    if not engines.answers() or shutil.which("dockerd") is None:
        pytest.skip("needs root and dockerd: .ci/engine.sh start")
    place = Path(tempfile.mkdtemp(prefix="cellbox-engine-", dir="/run"))
    engine = PrivateEngine(place)
    engine.data.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m", "cellbox-tests", str(engine.data)]
    subprocess.run(mount, check=True)
    try:
        engine.start()
        yield engine
    finally:
        engine.end()
        engine.end_shims()
        subprocess.run(["umount", "-l", str(engine.data)], check=True)
        shutil.rmtree(place, ignore_errors=True)
