"""The two pipes that one kernel writes to, and the order of what it writes there and what it publishes.

The two ways are of different speed. So a kernel that is asked to writes a mark where a message belongs, before it sends that;
what is written behind the mark waits here for the message, and a message is told after ``take``.

Promises: text waits for a message at most ``PLACE_S``, and while it waits nothing else is read, so the writer waits too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial

from .marks import Heard, MarkReader, Pipe
from .output import PipeReader

PLACE_S = 1.0
"""For a message whose place among the text has come. It may never come: the code was interrupted before it was sent, or lies."""


class Pipes:
    """Those of one kernel, none at first. full: while it says so what the kernel writes stays in them."""

    def __init__(self, full: Callable[[], bool]) -> None:
        self._full = full
        self._loop = asyncio.get_running_loop()
        self._readers: list[PipeReader] = []
        self._marks: list[MarkReader] = []
        self._ordered = False
        self._come = 0  # the highest place whose message has come
        self._late: asyncio.TimerHandle | None = None

    def add(self, secret: str, pipe: Pipe, heard: Heard) -> int:
        """Make a pipe and read it; return the end that the kernel is to have, which is the caller's. Raises OSError."""
        read, write = os.pipe2(os.O_CLOEXEC)
        mark = MarkReader(secret, pipe, heard, self._placed)
        self._marks.append(mark)
        self._readers.append(PipeReader(read, mark.feed, partial(self._stays, mark)))
        return write

    def take(self) -> None:
        """Hand on what is in them now, up to where text waits for a message."""
        for reader, mark in zip(self._readers, self._marks, strict=True):
            if not mark.waits:
                reader.drain()

    def drain(self) -> None:
        """Hand on what is in them now, all of it."""
        self.unordered()
        self.take()
        for mark in self._marks:
            mark.settle()

    def ordered(self) -> None:
        """From here on text waits for what was published before it."""
        self._ordered = True

    def unordered(self) -> None:
        """Nothing is published any more that text would have to wait for."""
        self._ordered = False
        self.come(max((mark.waits for mark in self._marks), default=0))

    def come(self, place: int) -> None:
        """Hand on what waits for the message of ``place``, or of an earlier one: it has come, or never will."""
        self._no_longer_late()
        self._come = max(self._come, place)
        for mark in self._marks:
            mark.go_on(place)

    def close(self) -> None:
        """Read no more. May be called twice."""
        self._no_longer_late()
        for reader in self._readers:
            reader.close()

    def _placed(self, place: int) -> bool:
        if not self._ordered or place <= self._come:
            return False
        self._no_longer_late()
        self._late = self._loop.call_later(PLACE_S, self.come, place)
        return True

    def _no_longer_late(self) -> None:
        if self._late is not None:
            self._late.cancel()

    def _stays(self, mark: MarkReader) -> bool:
        return mark.waits > 0 or self._full()
