"""Copying a directory with all that is in it, into one that only the service can see yet.

Promises: links are copied as links, what is neither file nor directory is left out; bytes and entries are bounded, and
descriptors are few, however deep it is; a file is as long as it was when it was opened. Blocks.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from interpreter.errors import BodyTooLarge
from interpreter.files import confine
from interpreter.files.errors import NoSuchFile
from interpreter.files.names import MAX_PARTS
from interpreter.files.position import Position

BLOCK_BYTES = 1024 * 1024
MAX_ENTRIES = 100_000
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Copying:
    """One copy. left: of its bytes. give: makes a descriptor's file the tenant's, with a mode. uid, gid: for links."""

    left: int
    give: Callable[[int, int], None]
    uid: int | None
    gid: int | None
    entries: int = MAX_ENTRIES

    def directory(self, source: int, target: int) -> None:
        """Copy what is in ``source`` to the empty ``target``. Raises BodyTooLarge, FileBusy."""
        with contextlib.closing(Position(source)) as here, contextlib.closing(Position(target)) as there:
            self._contents(here, there, 0)

    def _contents(self, here: Position, there: Position, depth: int) -> None:
        names = []
        with contextlib.suppress(FileNotFoundError), os.scandir(here.handle) as entries:
            for entry in entries:
                self.entries -= 1
                if self.entries < 0 or depth >= MAX_PARTS:
                    raise BodyTooLarge(f"The directory has more than {MAX_ENTRIES} entries, or is too deep.")
                names.append(os.fsencode(entry.name))
        for name in names:
            with contextlib.suppress(NoSuchFile, FileNotFoundError):  # it has gone meanwhile
                self._entry(here, there, name, depth)

    def _entry(self, here: Position, there: Position, name: bytes, depth: int) -> None:
        source, target = here.handle, there.handle
        state = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISLNK(state.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            if self.uid is not None and self.gid is not None:
                os.chown(name, self.uid, self.gid, dir_fd=target, follow_symlinks=False)
        elif stat.S_ISDIR(state.st_mode):
            here.down(name)
            os.mkdir(name, 0o700, dir_fd=target)
            there.down(name)
            self._contents(here, there, depth + 1)
            self.give(there.handle, stat.S_IMODE(state.st_mode) & 0o777)
            there.up()
            here.up()
        elif stat.S_ISREG(state.st_mode):
            with confine.found(source, [name]) as handle, confine.reading(handle) as descriptor:
                self._file(descriptor, target, name, stat.S_IMODE(state.st_mode) & 0o777)

    def _file(self, source: int, target: int, name: bytes, mode: int) -> None:
        size = os.fstat(source).st_size
        self.left -= size
        if self.left < 0:
            raise BodyTooLarge("The directory has more bytes than one upload may have.")
        made = os.open(name, _NEW, 0o600, dir_fd=target)
        try:
            while size > 0 and (block := os.read(source, min(size, BLOCK_BYTES))):
                size -= len(block)
                rest = memoryview(block)
                while rest:
                    rest = rest[os.write(made, rest) :]
            self.give(made, mode)
        finally:
            os.close(made)
