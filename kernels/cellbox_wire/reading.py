"""Input that is asked for when a program waits for it.

Who gives a program a pipe is not told when it reads that. But Linux says of each thread in which call it waits: so what a cell
has running is looked at again and again, every 20 ms to 100 ms, and only in cells whose input somebody can give. A thread that
is in a read of our pipe, or in a wait of epoll for it, while nothing is in there, really waits for input.
Not seen: who waits with ``select`` or ``poll``, and processes that have left the tree of the cell.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import platform
import termios
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from . import processes
from .language import Ask, Cell, Error

_SOON_S = 0.02
_LATEST_S = 0.1
_SLOWER = 1.2
_SHARE = 20
"""Times as long as a look took until the next one: a cell may have thousands of threads."""

_READ_CALLS = {"x86_64": (0, 19), "aarch64": (63, 65), "riscv64": (63, 65)}
_EPOLL_CALLS = {"x86_64": (232, 281, 441), "aarch64": (22, 441), "riscv64": (22, 441)}
_EPOLLIN = 1

CANNOT_TELL = Error("StdinNotImplementedError", "allow_input: this system does not tell what a program waits for")


def can_tell() -> bool:
    """Whether this system tells what a program waits for."""
    return platform.machine() in _READ_CALLS and os.access("/proc/thread-self/syscall", os.R_OK)


def asking(cell: Cell) -> Ask | None:
    """Return what asks for the input of ``cell``; None: it has all there is, or nobody can give any, or be asked in time."""
    return cell.ask if cell.stdin is None and can_tell() else None


class AskedInput:
    """A named pipe ``path``, made for one cell, from which its programs read lines that are asked for one by one.

    root: returns the process below which, itself included, programs count. ask: called with the process that waits, and not again
    before it has returned the line. Raises OSError.
    """

    def __init__(self, path: Path, root: Callable[[], int], ask: Callable[[int], Awaitable[str]]) -> None:
        self.path = path
        self._root = root
        self._ask = ask
        os.mkfifo(path, 0o600)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._pipe = os.fstat(self._descriptor)
        self._closed = False
        self._serving = asyncio.get_running_loop().create_task(self._serve(), name="input of a cell")

    async def _serve(self) -> None:
        """Ask and give."""
        delay_s = _SOON_S
        while True:
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * _SLOWER, _LATEST_S)
            began = time.monotonic()
            waiting = _waiting(self._root(), self._pipe)
            delay_s = max(delay_s, _SHARE * (time.monotonic() - began))
            if waiting is not None and not self._unread():
                await self._give((await self._ask(waiting)).encode("utf-8", "replace") + b"\n")
                delay_s = _SOON_S

    async def aclose(self) -> None:
        """As ``close``; then nothing of it goes on."""
        self.close()
        await asyncio.wait([self._serving])

    def close(self) -> None:
        """Ask no more; who still reads is at its end. May be called twice."""
        if not self._closed:
            self._closed = True
            self._serving.cancel()
            self.path.unlink(missing_ok=True)  # first: to open it without us would wait for ever
            os.close(self._descriptor)

    def _unread(self) -> int:
        size = array.array("i", [0])
        fcntl.ioctl(self._descriptor, termios.FIONREAD, size)
        return size[0]

    async def _give(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        while data:
            with contextlib.suppress(BlockingIOError):
                data = data[os.write(self._descriptor, data) :]
                continue
            room = loop.create_future()
            loop.add_writer(self._descriptor, _done, room)
            try:
                await room
            finally:
                loop.remove_writer(self._descriptor)


def _done(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


def _waiting(root: int, pipe: os.stat_result) -> int | None:
    """Return a process at or below ``root`` that waits to read ``pipe``, if there is one."""
    pids = (root, *processes.below(root)) if root else ()
    return next((pid for pid in pids if waits(pid, pipe)), None)


def waits(pid: int, pipe: os.stat_result) -> bool:
    """Whether a thread of the process waits to read ``pipe``; False where the system does not tell, see ``can_tell``."""
    if not can_tell():
        return False
    with contextlib.suppress(OSError):  # it, or a thread of it, has gone
        for thread in os.listdir(f"/proc/{pid}/task"):
            call = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()
            if any(_is(f"/proc/{pid}/fd/{descriptor}", pipe) for descriptor in _read_by(pid, call)):
                return True
    return False


def _read_by(pid: int, call: list[str]) -> Iterator[int]:
    """Yield the descriptors from which a thread in that system call wants to read. call: as /proc tells it."""
    if len(call) < 2 or not call[0].isdecimal():
        return  # it runs, or waits for something else than a call
    number, first = int(call[0]), int(call[1], 16)
    if number in _READ_CALLS[platform.machine()]:
        yield first
    elif number in _EPOLL_CALLS[platform.machine()]:
        for line in Path(f"/proc/{pid}/fdinfo/{first}").read_text().splitlines():
            match line.split():
                case ["tfd:", descriptor, "events:", events, *_] if int(events, 16) & _EPOLLIN:
                    yield int(descriptor)


def _is(path: str, pipe: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), pipe)
    except OSError:
        return False
