"""An upload while its bytes arrive.

Promises: at most two blocks of it are in memory, one that fills and one that is being written in a thread; whatever happens
to it, ``discard`` leaves neither a descriptor nor a file in staging, and never while a thread still uses them.
Leaves to http: the pace of the caller, and what it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from interpreter.errors import BodyTooLarge
from interpreter.files.tree import Check, Stored, Upload

BLOCK_BYTES = 1024 * 1024

_T = TypeVar("_T")


class Incoming:
    """One upload. ``add`` and ``commit`` are called one after the other; then, or at any time instead, ``discard``.

    begin: starts work in a thread. end: called once, when nothing of it is at work any more.
    """

    def __init__(
        self,
        begin: Callable[[Callable[[], Any]], asyncio.Future[Any]],
        upload: Upload,
        end: Callable[[], None],
    ) -> None:
        self._begin = begin
        self._upload = upload
        self._end = end
        self._block = bytearray()
        self._working: asyncio.Future[Any] | None = None
        self._discarded = False
        self.size = 0
        """Bytes that have arrived."""

    async def add(self, chunk: bytes) -> None:
        """Take bytes; returns when there is room for more. Raises BodyTooLarge at once, OSError for bytes before these."""
        self.size += len(chunk)
        if self.size > self._upload.limit:
            raise BodyTooLarge(f"The file is over {self._upload.limit} bytes.")
        self._block += chunk
        if len(self._block) >= BLOCK_BYTES:
            block, self._block = self._block, bytearray()
            await self._idle()
            if not self._discarded:
                self._working = self._begin(lambda: self._upload.write(block))

    async def commit(self, *, overwrite: bool = True, check: Check | None = None) -> Stored:
        """Write the rest, and make it the file of its name, see ``Upload.commit``. Not after ``discard``."""
        await self._idle()

        def work() -> Stored:
            self._upload.write(self._block)
            return self._upload.commit(overwrite=overwrite, check=check)

        self._working = self._begin(work)
        stored: Stored = await self._working
        return stored

    def discard(self) -> None:
        """Free all that it has; a file that was not committed is gone. May be called twice."""
        if self._discarded:
            return
        self._discarded = True
        self._block = bytearray()
        if self._working is None or self._working.done():
            self._end()
        else:
            self._working.add_done_callback(self._worked)

    async def _idle(self) -> None:
        if self._working is not None:
            await self._working

    def _worked(self, working: asyncio.Future[Any]) -> None:
        if not working.cancelled():
            working.exception()  # nobody asks for it: the caller has gone
        self._end()
