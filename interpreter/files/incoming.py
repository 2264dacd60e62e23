"""An upload, of one file or several, while its bytes arrive.

Promises: at most two blocks of it are in memory, one that fills and one that is being written in a thread; one of its files is
open at a time; whatever happens to it, ``discard`` leaves neither a descriptor nor a file in staging, and never while a thread
still uses them.
Leaves to http: the pace of the caller, and what it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from interpreter.errors import BodyTooLarge
from interpreter.files import together
from interpreter.files.tree import Check, Parts, Stored, Upload

BLOCK_BYTES = 1024 * 1024


class Incoming:
    """One upload of at most ``limit`` bytes. ``start``, ``add`` and a commit are called one after the other; then, or at any time
    instead, ``discard``.

    begin: starts work in a thread. opened: a new file in staging. end: called once, when nothing of it is at work any more.
    """

    def __init__(
        self,
        begin: Callable[[Callable[[], Any]], asyncio.Future[Any]],
        opened: Callable[[Parts], Upload],
        end: Callable[[], None],
        limit: int,
    ) -> None:
        self._begin = begin
        self._opened = opened
        self._limit = limit
        self._uploads: list[Upload] = []
        self._end = end
        self._block = bytearray()
        self._working: asyncio.Future[Any] | None = None
        self._discarded = False
        self.size = 0
        """Bytes that have arrived."""

    async def start(self, parts: Parts) -> None:
        """Begin a file: what is added from now on is its. Nothing after ``discard``."""
        await self._flush()
        await self._idle()  # the end of the file before is written by another thread
        if not self._discarded:
            self._working = self._begin(lambda: self._open(parts))
            await self._working

    async def add(self, chunk: bytes) -> None:
        """Take bytes; returns when there is room for more. Raises BodyTooLarge at once, OSError for bytes before these."""
        self.size += len(chunk)
        if self.size > self._limit:
            raise BodyTooLarge(f"The upload is over {self._limit} bytes.")
        self._block += chunk
        if len(self._block) >= BLOCK_BYTES:
            await self._flush()

    async def commit(self, *, overwrite: bool = True, check: Check | None = None) -> Stored:
        """Write the rest, and make it the file of its name, see ``Upload.commit``. Not after ``discard``."""
        await self._flush()
        await self._idle()
        (upload,) = self._uploads
        self._working = self._begin(lambda: upload.commit(overwrite=overwrite, check=check))
        stored: Stored = await self._working
        return stored

    async def commit_all(self) -> list[Stored]:
        """The same for all files, together or none. Raises FileExists."""
        await self._flush()
        await self._idle()
        self._working = self._begin(lambda: together.commit(self._uploads))
        stored: list[Stored] = await self._working
        return stored

    def discard(self) -> None:
        """Free all that it has; a file that was not committed is gone. May be called twice."""
        if self._discarded:
            return
        self._discarded = True
        self._block = bytearray()
        if self._working is None:
            self._end()
        elif self._working.done():
            self._worked(self._working)  # it may have failed since it was last waited for
        else:
            self._working.add_done_callback(self._worked)

    def _open(self, parts: Parts) -> None:
        """Open the next file; one at a time is open, however many there are."""
        if self._uploads:
            self._uploads[-1].complete()
        self._uploads.append(self._opened(parts))

    async def _flush(self) -> None:
        """Begin to write what there is."""
        block, self._block = self._block, bytearray()
        await self._idle()
        if block and not self._discarded:
            upload = self._uploads[-1]
            self._working = self._begin(lambda: upload.write(block))

    async def _idle(self) -> None:
        if self._working is not None:
            await self._working

    def _worked(self, working: asyncio.Future[Any]) -> None:
        if not working.cancelled():
            working.exception()  # nobody asks for it: the caller has gone
        self._end()
