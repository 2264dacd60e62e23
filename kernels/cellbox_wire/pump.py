"""Reading a pipe from the loop, all the time."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable

_CHUNK = 256 * 1024
_PIPE = 256 * 1024
"""Bytes a pipe is to hold, so that its writer does not wait while we gather."""

_GATHER_S = 0.002
_QUICK_S = 0.006
_BUSY = 8
"""Reads, each within ``_QUICK_S`` of the one before, after which we gather: a program that writes lines wakes us for each of
them else, which costs both sides more than the lines do."""


class Pump:
    """Reads the pipe ``descriptor``, which it owns, until its end or ``close``.

    receive: called in the loop with what comes, 1 byte to 256 KiB. ended: called once, at the end of the pipe. prompt: without
    gathering, for answers that somebody waits for.
    """

    def __init__(
        self,
        descriptor: int,
        receive: Callable[[bytes], None],
        ended: Callable[[], None] = lambda: None,
        *,
        prompt: bool = False,
    ) -> None:
        self._prompt = prompt
        self._descriptor = descriptor
        self._receive = receive
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._quick = 0
        self._read_at = 0.0
        self.closed = False
        os.set_blocking(descriptor, False)
        with contextlib.suppress(OSError):  # the user has too many of them
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE)
        self._loop.add_reader(descriptor, self._readable)

    def drain(self) -> None:
        """Hand on, now, all that is in the pipe, but no more than a pipe holds: somebody may go on writing."""
        left = 2 * _PIPE
        while left > 0 and not self.closed and (size := self._read()):
            left -= size

    def close(self) -> None:
        """Read no more and close the descriptor. May be called twice."""
        if not self.closed:
            self.closed = True
            if self._timer is not None:
                self._timer.cancel()
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)

    def _readable(self) -> None:
        size = self._read()
        now = self._loop.time()
        self._quick = self._quick + 1 if now - self._read_at < _QUICK_S else 0
        self._read_at = now
        if not self._prompt and self._quick >= _BUSY and size < _PIPE // 2 and not self.closed:
            self._loop.remove_reader(self._descriptor)
            self._timer = self._loop.call_later(_GATHER_S, self._gathered)

    def _gathered(self) -> None:
        self._loop.add_reader(self._descriptor, self._readable)
        self._readable()

    def _read(self) -> int:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if data:
            self._receive(data)
        elif not self.closed:
            self.close()
            self._ended()
        return len(data)
