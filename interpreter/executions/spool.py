"""Bytes that are appended and read again from anywhere: in memory while they are few, then in a file.

Promises: memory is bounded by ``MEMORY_BYTES`` where there is a folder; the file is gone after ``close``; no descriptor is held
between two calls, so that all spools together have one, however many executions there are: opening a file anew costs a call
some microseconds. Calls block as writes to the page cache do, and wait for no disk.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from interpreter import shortage

log = logging.getLogger(__name__)

MEMORY_BYTES = 64 * 1024
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Spool:
    """folder: for the file; None keeps everything in memory.

    What a full disk does not take is read as NUL bytes, but for the beginning and for what was added last.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory = bytearray()
        self._file: Path | None = None
        self._refused = b""  # by the disk: what was added last, if it did not take that
        self._refused_at = 0
        self.lost = False
        """Whether there is something that the disk did not take."""
        self._size = 0

    def __len__(self) -> int:
        """How many bytes there are."""
        return self._size

    @property
    def stored(self) -> int:
        """How many of them lie in a file."""
        return 0 if self._file is None else self._size

    @property
    def held(self) -> int:
        """How many of them lie in memory."""
        return len(self._memory) + len(self._refused)

    def room(self, size: int) -> int:
        """Return how many of ``size`` bytes more would lie in memory."""
        if self._folder is None:
            return size
        return 0 if self._file is not None else min(size, MEMORY_BYTES - len(self._memory))

    def keep_in(self, folder: Path | None) -> None:
        """Have ``folder`` for the file from here on."""
        self._folder = folder

    def append(self, data: bytes | bytearray) -> None:
        """Add ``data`` at the end."""
        if self._file is None and self._folder is not None and self._size + len(data) > MEMORY_BYTES:
            self._file = self._folder / secrets.token_hex(16)
            if self._write(self._memory, 0):
                self._memory = bytearray()
        if self._file is None:
            self._memory += data
        else:
            self._refused = b"" if self._write(data, self._size) else bytes(data)
            self._refused_at = self._size
        self._size += len(data)

    def read(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start`` on."""
        if self._file is None or start + length <= len(self._memory):
            return bytes(self._memory[start : start + length])
        for edge in (len(self._memory), self._refused_at if self._refused else 0):
            if start < edge < start + length:
                return self.read(start, edge - start) + self.read(edge, start + length - edge)
        if self._refused and start >= self._refused_at:
            return self._refused[start - self._refused_at :][:length]
        try:
            with self._opened() as handle:
                data = os.pread(handle, length, start)
        except OSError:
            data = b""
        return data.ljust(length, b"\0")

    def close(self) -> None:
        """Let go of everything. May be called twice."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()
        self._folder = self._file = None
        self._memory, self._refused = bytearray(), b""

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        if self._file is None:
            raise FileNotFoundError
        try:
            handle = os.open(self._file, _FLAGS, 0o600)
        except FileNotFoundError:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)  # it may have had no room when the service started
            handle = os.open(self._file, _FLAGS, 0o600)
        try:
            yield handle
        finally:
            os.close(handle)

    def _write(self, data: bytes | bytearray, at: int) -> bool:
        """Whether the disk has taken all of ``data``."""
        try:
            with self._opened() as handle:
                if os.pwrite(handle, data, at) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if not self.lost:
                log.error("output could not be kept", extra={"error": error.strerror})
            self.lost = True
            return False
        return True


def make_empty(folder: Path) -> list[str]:
    """Have ``folder``, without what an earlier service left in it; return what is to be said where there is no room for it: it
    is made later then."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        if (short := shortage.told(error.errno)) is None:
            raise
        return [f"long output of executions is not kept until there is room: {short}"]
    for left in folder.iterdir():
        left.unlink()
    return []
