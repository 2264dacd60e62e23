"""Starting, watching and ending the processes that run tenant code, from inside sandboxd.

Owns the socket to the zygote (``zygote.py``) and one control socket per supervisor (``supervise.py``). A program is spawned
by asking the zygote for a supervisor and handing that one the program over its own control socket, so the zygote itself
never sees a byte of a request; one supervisor may be kept ready ahead of time.

Promises: ``Process.wait`` and ``Process.gone`` end, whatever the tenant does to its own processes or to the supervisor:
all that can be done from inside is done, and ``gone`` says whether it was enough.
Leaves to its users: timeouts, reading output, and what an exit status means.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from . import proc

CLEAN_WITHIN_S = 1.0
"""From the end of a program to the end of all its descendants; what lives on after that is ended from outside."""

START_WITHIN_S = 5.0
"""From the request to the program's pid. A fork takes milliseconds; a starved machine a second."""

MAX_SPAWN = 2**17
"""Bytes of one spawn request: the environment is at most 64 KiB and argv is ours."""


class SpawnError(Exception):
    """The program could not be started. The text is one sentence for the caller. errno: of the failed call, or None."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class Exited(NamedTuple):
    """status: exit code, or minus the number of the signal that ended it; None: unknown, since the supervisor is gone."""

    status: int | None


class PythonRun(msgspec.Struct, frozen=True, tag=True):
    """A stateless Python program, forked. Its code is the first of ``extra``. env: complete. cwd: exists."""

    env: dict[str, str]
    cwd: str


class PythonKernel(msgspec.Struct, frozen=True, tag=True):
    """Our Python kernel, forked. env: complete, with the secret of the marks. cwd: exists."""

    connection_file: str
    env: dict[str, str]
    cwd: str


class Command(msgspec.Struct, frozen=True, tag=True):
    """Any program. argv[0] is looked up in the PATH of ``env``, which is complete. cwd: exists."""

    argv: list[str]
    env: dict[str, str]
    cwd: str


Program = PythonRun | PythonKernel | Command


class Process:
    """A spawned program and everything that came out of it."""

    pid: int
    """Of the program, which leads a session and a process group of that number."""

    async def wait(self) -> Exited:
        """Return how the program ended, once it has. Any number may wait, at any time; cancelling is harmless."""

    async def gone(self) -> bool:
        """True once the program and all its descendants are ended and reaped.

        False if that is not so ``CLEAN_WITHIN_S`` after the program's end (or after the first ``kill``), or if the supervisor was
        killed: then the sandbox is to be stopped from outside. Any number may wait, at any time.
        """

    def signal_group(self, number: int) -> None:
        """Send a signal to the program's process group; nothing happens once the program has ended."""

    def kill(self) -> None:
        """SIGKILL the program and every descendant, now. May be repeated; returns at once, ``gone`` says when it is done."""

    def descendants(self) -> list[tuple[int, int]]:
        """Return (pid, start time in ticks since boot) of every live process below the program. Reads /proc, about 1 ms."""


class Zygote:
    """The way to new processes."""

    async def spawn(
        self, program: Program, *, stdin: int, stdout: int, stderr: int, extra: Sequence[int] = ()
    ) -> Process:
        """Start ``program``; return once it exists.

        stdin, stdout, stderr become its descriptors 0, 1, 2 and ``extra`` its descriptors 3, 4, …; the caller closes its own.
        It starts with default signals, an own session, and no other descriptor. Raises SpawnError. Cancelled: nothing is left.
        """
