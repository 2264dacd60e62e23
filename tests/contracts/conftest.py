"""Fixtures: ``house`` is one backend of each kind with a data root, and starts sandboxes that behave as asked."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from interpreter.backends.base import Backend, Limits, Sandbox, SandboxId, SandboxSpec
from interpreter.backends.bubblewrap.backend import BubblewrapBackend
from interpreter.backends.docker.backend import DockerBackend
from interpreter.backends.docker.engine import Client
from interpreter.backends.docker.spec import INSTANCE, SANDBOX
from interpreter.backends.fake import FakeBackend, FakeHost
from interpreter.backends.process.backend import ProcessBackend
from tests import apart, engines
from tests.apart import PROBE_UID
from tests.backends.docker import tiny

BUBBLEWRAP = pytest.param(
    "bubblewrap",
    marks=pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("bwrap") is None, reason="needs root and bubblewrap on this host"
    ),
)
DOCKER = pytest.param("docker", marks=engines.needed)
GVISOR = pytest.param("runsc", marks=[engines.needed, engines.gvisor_needed])
PROCESS = pytest.param("process", marks=pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"))

PROGRAMS = {
    "idle": "ready(); time.sleep(3600)",
    "exits": "sys.exit(3)",
    "exits when told": "ready(); when_told(); sys.stdout.write('bye'); sys.stdout.flush(); sys.exit(5)",
    "memory hog when told": """
ready(); when_told()
if os.fork() == 0:
    open('/proc/self/oom_score_adj', 'w').write('900')
    hog = b''
    while True: hog += b'x' * 2**22
os.wait()
""",
    "killed": "os.kill(os.fork() or os.getpid(), 0); os.abort()",
    "deaf": """
for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
for _ in range(3): os.fork()
ready(); time.sleep(3600)
""",
    "daemons": """
for number in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        for descriptor in (0, 1, 2): os.close(descriptor)
        time.sleep(3600)
    os.wait()
ready(); time.sleep(3600)
""",
    "leaves daemons": """
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    time.sleep(3600)
os.wait()
sys.exit(4)
""",
    "stopped": "ready(); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(3600)",
    "fork bomb": """
ready()
while True:
    try: os.fork()
    except OSError: pass
""",
    "memory hog": """
if os.fork() == 0:
    open('/proc/self/oom_score_adj', 'w').write('900')
    hog = b''
    while True: hog += b'x' * 2**22
os.wait(); ready(); time.sleep(3600)
""",
}
_FRAME = """
import json, os, signal, sys, time
config = json.loads(sys.argv[1])
def ready(): open(config["workspace"] + "/ready", "w").close()
def when_told():
    while not os.path.exists(config["workspace"] + "/told"): time.sleep(0.01)
"""


class House:
    """A backend with what it needs around it."""

    def __init__(self, kind: str, root: Path, *, uid: int | None = None, idle_s: float = 60.0) -> None:
        self.kind = "docker" if kind == "runsc" else kind
        self.runtime = "runsc" if kind == "runsc" else ""
        self.root = root
        self.uid = uid or apart.uid()
        self.behaviour = "idle"
        self.lock = root / ".lock"
        self._lock_fd = -1
        self.take()
        self.fakes = FakeHost()
        self.backend = self.make(idle_s)

    def make(self, idle_s: float = 60.0) -> Backend:
        """A backend on this root, as a service makes one when it starts."""
        if self.kind == "bubblewrap":
            return BubblewrapBackend(
                root=self.root, lock=self.lock, idle_s=idle_s, probe_uid=PROBE_UID, boot=self._boot("/usr/bin/python3")
            )
        if self.kind == "docker":
            return DockerBackend(
                root=self.root,
                idle_s=idle_s,
                probe_uid=PROBE_UID,
                image=tiny.make(engines.ADDRESS),
                runtime=self.runtime,
                address=engines.ADDRESS,
                boot=self._boot("/usr/bin/python3"),
            )
        if self.kind == "process":
            return ProcessBackend(root=self.root, boot=self._boot(sys.executable))
        return FakeBackend(self._scripted, host=self.fakes)

    def spec(self, limits: Limits | None = None) -> SandboxSpec:
        place = self.root / secrets.token_hex(4)
        places = {name: place / name for name in ("workspace", "user", "link")}
        for path in places.values():
            path.mkdir(parents=True)
            if self.kind in ("bubblewrap", "docker"):
                os.chown(path, self.uid, self.uid)
        return SandboxSpec(
            id=SandboxId(secrets.token_hex(8)),
            uid=self.uid,
            gid=self.uid,
            workspace=places["workspace"],
            user=places["user"],
            link_dir=places["link"],
            limits=limits or Limits(memory_mib=64, pids=32, tmp_mib=8),
        )

    async def start(self, behaviour: str = "idle", *, until_ready: bool = True) -> Sandbox:
        """A started sandbox that behaves so, and has got as far as to be interesting."""
        self.behaviour = behaviour
        spec = self.spec()
        sandbox = await self.backend.start(spec)
        if until_ready and self.kind != "fake":
            await until((spec.workspace / "ready").exists)
        return sandbox

    def supervisor(self, sandbox: Sandbox) -> int:
        """Pid of the supervisor of a bubblewrap sandbox."""
        state = (self.root / ".run" / f"{sandbox.id}.sandbox").read_text()
        return int(ast.literal_eval(state)["pid"])

    def processes(self, *, zombies: bool = False) -> set[int]:
        """Pids on the host that belong to sandboxes of this house, monitors included."""
        found = set()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid = int(entry.name)
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z" and not zombies:
                    continue
                marked = str(self.root).encode() in (entry / "cmdline").read_bytes()
                if entry.stat().st_uid == self.uid or (self.kind == "process" and marked):
                    found.add(pid)
        return found

    def nothing_left(self) -> None:
        """Assert that the host has no process, cgroup, mount or state file of a sandbox of this house."""
        assert self.processes() == set()
        assert [str(path) for path in (self.root / ".run").glob("*")] == []
        assert str(self.root) not in Path("/proc/self/mountinfo").read_text()
        if self.kind == "bubblewrap":
            assert isinstance(self.backend, BubblewrapBackend)
            assert self.backend.groups_left() == []
        if isinstance(self.backend, DockerBackend):
            assert self.containers() == []

    def known(self) -> set[str]:
        """Ids of the sandboxes of this house that the host knows, running or not."""
        if self.kind == "docker":
            return {container["Labels"][SANDBOX] for container in self.containers()}
        return {path.stem for path in (self.root / ".run").glob("*.sandbox")}

    def runs(self, ident: str) -> bool:
        """Whether that sandbox runs, as the host knows."""
        if self.kind != "docker":
            return ident in self.known()
        return any(each["Labels"][SANDBOX] == ident and each["State"] == "running" for each in self.containers())

    def containers(self) -> list[dict[str, Any]]:
        """The containers of this house's sandboxes that the engine knows."""
        assert isinstance(self.backend, DockerBackend)
        client = Client(engines.ADDRESS)
        try:
            return client.containers(f"{INSTANCE}={self.backend.instance}")
        finally:
            client.close()

    def take(self) -> None:
        """Take the lock of the data root, as a service that starts; waits for whoever has it. May be called twice."""
        if self._lock_fd >= 0:
            return
        self._lock_fd = os.open(self.lock, os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)

    def let_go(self) -> None:
        """Give the lock of the data root back, as a service that ends."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _boot(self, python: str) -> Callable[[str], list[str]]:
        return lambda config: [python, "-I", "-c", _FRAME + PROGRAMS[self.behaviour], config]

    async def _scripted(self, spec: SandboxSpec) -> int:
        if self.behaviour == "exits":
            return 3
        await asyncio.Event().wait()
        return 0


async def until(condition: Callable[[], bool], *, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not so within {within_s} s"
        await asyncio.sleep(0.01)


@pytest.fixture
async def house(kind: str) -> AsyncIterator[House]:
    root = Path(tempfile.mkdtemp(prefix="cellbox-test-"))
    made = House(kind, root)
    try:
        await made.backend.check()
        yield made
        if made.kind == "docker":  # what has ended is removed from the engine a moment later
            await until(lambda: not made.containers())
        made.nothing_left()
    finally:
        await made.backend.remove_leftovers()
        await made.backend.aclose()
        made.let_go()
        shutil.rmtree(root)
