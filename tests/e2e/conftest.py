"""Fixtures: ``serve`` starts services with given settings; ``cellbox`` is one with the defaults, shared by a module;
``scope`` is a fresh scope name; ``Cellbox.processes`` looks for a sandbox's processes on the host.

A module that says ``RUNTIMES = CONFINED`` has its tests of ``cellbox`` and ``serve`` on each of those backends.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import apart, engines, waiting

KEY = "a-key-for-the-tests-of-cellbox"


class Cellbox:
    """A running service, and what a client and an operator see of it."""

    def __init__(
        self, environment: dict[str, str], url: str, root: Path, uid_base: int, within: Sequence[str] = ()
    ) -> None:
        self.url = url
        self.root = root
        self.uid_base = uid_base
        self.client = httpx.Client(base_url=url, headers={"X-API-Key": KEY}, timeout=90)
        self._environment = environment
        self._within = within
        self._log = root.parent / "service.log"
        self.start()

    def start(self) -> None:
        """Start the service, and wait until it serves."""
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                [*self._within, sys.executable, "-m", "interpreter", "serve"],
                env=self._environment,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + 60
        while True:
            with suppress(httpx.TransportError):
                if self.client.get("/healthz").status_code == 200:
                    return
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> None:
        """End the service by a signal, and wait until it has ended."""
        self.process.send_signal(number)
        assert self.process.wait(60) == (-signal.SIGKILL if number == signal.SIGKILL else 0), self.log

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``cellbox`` with the settings of the service."""
        return subprocess.run(
            [sys.executable, "-m", "interpreter", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def post(self, **fields: Any) -> httpx.Response:
        return self.client.post("/v1/exec", json=fields)

    def exec(self, code: str, *, language: str = "python", scope: str, **fields: Any) -> dict[str, Any]:
        """The answer of an exec that must be a 200."""
        response = self.post(scope=scope, language=language, code=code, **fields)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def cell(self, code: str, *, scope: str, **fields: Any) -> dict[str, Any]:
        return self.exec(code, scope=scope, stateful=True, **fields)

    def processes(self, scope: str | None = None) -> dict[int, str]:
        """pid -> command line of every process on the host that belongs to a scope of this service, or to ``scope``."""
        lowest, count = self.uid_base, 100
        if scope is not None:
            lowest, count = (self.root / scope / "workspace").stat().st_uid, 1
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                status = (entry / "status").read_text()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            uid = int(fields["Uid"].split()[0])
            if lowest <= uid < lowest + count and not fields["State"].startswith("Z"):
                found[int(entry.name)] = command or fields["Name"]
        return found

    def wait_for(self, condition: Callable[[], bool], *, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not so within {within_s} s; processes: {self.processes()}"
            time.sleep(0.02)


@contextmanager
def running(root: Path, *, within: Sequence[str] = (), **settings: str) -> Iterator[Cellbox]:
    """A service on a data root of its own. ``settings``: SANDBOX_* without the prefix, in lower case.

    within: a command that becomes the one after it, like ``env`` or ``prlimit``.
    """
    with apart.port() as port:
        yield from _running(root, port, apart.uid_base(), within, settings)


def _running(
    root: Path, port: int, uid_base: int, within: Sequence[str], settings: dict[str, str]
) -> Iterator[Cellbox]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}
    values = {
        "data_root": str(root / "data"),
        "listen": f"127.0.0.1:{port}",
        "api_key": KEY,
        "runtime_backend": "bubblewrap",
        "uid_base": str(uid_base),
        **settings,
    }
    environment |= {f"SANDBOX_{name.upper()}": value for name, value in values.items()}
    cellbox = Cellbox(environment, f"http://127.0.0.1:{port}", root / "data", uid_base, within)
    try:
        yield cellbox
    finally:
        cellbox.client.close()
        process = cellbox.process
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert process.returncode == 0, cellbox.log
    waiting.until(lambda: not cellbox.processes())
    assert not list((root / "data").glob(".run/*"))
    waiting.until(lambda: not engines.containers(range(uid_base, uid_base + 100)))
    assert "Traceback" not in cellbox.log, cellbox.log


def bubblewrap_is_there() -> bool:
    return shutil.which("bwrap") is not None and os.geteuid() == 0


CONFINED = [
    pytest.param(
        "bubblewrap",
        marks=pytest.mark.skipif(
            not bubblewrap_is_there(), reason="needs root and bubblewrap: apt-get install bubblewrap"
        ),
    ),
    pytest.param("docker", marks=engines.image_needed),
]
GVISOR = pytest.param("runsc", marks=[engines.image_needed, engines.gvisor_needed])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "runtime" in metafunc.fixturenames:
        runtimes = getattr(metafunc.module, "RUNTIMES", CONFINED[:1])
        metafunc.parametrize("runtime", runtimes, indirect=True, scope="module")


@pytest.fixture(scope="module")
def runtime(request: pytest.FixtureRequest) -> str:
    """The backend of ``cellbox`` and ``serve``; ``runsc``: docker with gVisor."""
    named: str = request.param
    return named


@pytest.fixture(scope="module")
def cellbox(tmp_path_factory: pytest.TempPathFactory, runtime: str) -> Iterator[Cellbox]:
    with running(tmp_path_factory.mktemp("cellbox"), **_settings(runtime)) as service:
        yield service


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory, runtime: str) -> Iterator[Callable[..., Cellbox]]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(
            running(tmp_path_factory.mktemp("cellbox"), **{**_settings(runtime), **settings})
        )


def _settings(runtime: str) -> dict[str, str]:
    return {"runtime_backend": "docker", "runtime": "runsc"} if runtime == "runsc" else {"runtime_backend": runtime}


@pytest.fixture
def scope() -> str:
    return f"s{secrets.token_hex(4)}"
