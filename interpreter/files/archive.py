"""A directory as one stream: tar.gz or zip, made while it is sent.

Promises: a block at a time is in memory, and of a zip what its directory needs; what is too much is refused before the first
byte; a file is as long as it was when it was opened, and one that shrinks ends the stream. tar has links as links, zip leaves
them out; what is neither file nor directory, or cannot be opened, is in neither. Blocks.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal

from interpreter.errors import BodyTooLarge, ServiceError
from interpreter.files import confine
from interpreter.files.names import shown
from interpreter.files.tree import Parts, Tree
from interpreter.files.walking import Budget, Found

Kind = Literal["tar.gz", "zip"]
MEDIA: dict[Kind, str] = {"tar.gz": "application/gzip", "zip": "application/zip"}
MAX_ENTRIES = 100_000
BLOCK_BYTES = 512 * 1024
_LEVEL = 1
"""Of deflate: what is sent has to be made meanwhile, and most that is large is compressed already."""
_EARLIEST_S, _LATEST_S = 315_532_800, 4_354_819_198
"""The years 1980 to 2107, which zip has."""


class Shrunk(Exception):
    """A file has fewer bytes than were promised."""


def blocks(tree: Tree, parts: Parts, kind: Kind, *, limit: int) -> Iterator[bytes]:
    """Yield the archive of a directory with files of at most ``limit`` bytes in all. Names are paths from the directory.

    Raises BodyTooLarge before the first block, Shrunk.
    """
    _check(tree, parts, limit)
    yield from _gathered(_tar(tree, parts) if kind == "tar.gz" else _zip(tree, parts))


def _check(tree: Tree, parts: Parts, limit: int) -> None:
    size, budget = 0, Budget()
    for entries, found in enumerate(tree.walk(parts, budget=budget), 1):
        size += found.state.st_size if stat.S_ISREG(found.state.st_mode) else 0
        if entries > MAX_ENTRIES or size > limit:
            raise BodyTooLarge(f"The directory has more than {MAX_ENTRIES} entries, or more than {limit} bytes.")
    if budget.spent:
        raise BodyTooLarge(f"The directory has more than {MAX_ENTRIES} entries.")


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks that are worth sending."""
    block = bytearray()
    for piece in pieces:
        block += piece
        if len(block) >= BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    yield bytes(block)


def _tar(tree: Tree, parts: Parts) -> Iterator[bytes]:
    packed = zlib.compressobj(_LEVEL, wbits=31)
    for found in tree.walk(parts, budget=Budget()):
        for piece in _tar_entry(found):
            yield packed.compress(piece)
    yield packed.compress(bytes(2 * tarfile.BLOCKSIZE))
    yield packed.flush()


def _tar_entry(found: Found) -> Iterator[bytes]:
    about = tarfile.TarInfo(os.fsdecode(b"/".join(found.path)))
    about.mode = stat.S_IMODE(found.state.st_mode) & 0o777
    about.mtime = int(min(max(found.state.st_mtime, 0), _LATEST_S))
    if found.is_dir:
        about.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(found.state.st_mode):
        about.type = tarfile.SYMTYPE
        try:
            about.linkname = os.readlink(os.fsdecode(found.path[-1]), dir_fd=found.directory)
        except OSError:
            return
    elif stat.S_ISREG(found.state.st_mode):
        for descriptor in _opened(found):
            about.size = os.fstat(descriptor).st_size
            yield _head(about)
            yield from _content(descriptor, about.size)
            yield bytes(-about.size % tarfile.BLOCKSIZE)
        return
    else:
        return
    yield _head(about)


def _head(about: tarfile.TarInfo) -> bytes:
    return about.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _zip(tree: Tree, parts: Parts) -> Iterator[bytes]:
    out = _Out()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as made:
        for found in tree.walk(parts, budget=Budget()):
            name, raw = shown(b"/".join(found.path))
            modified = datetime.fromtimestamp(min(max(found.state.st_mtime, _EARLIEST_S), _LATEST_S), UTC)
            about = zipfile.ZipInfo((raw or name) + ("/" if found.is_dir else ""), modified.timetuple()[:6])
            about.external_attr = (found.state.st_mode & 0o170777) << 16
            if found.is_dir:
                about.external_attr |= 0x10  # as DOS says it
                made.writestr(about, b"")
            elif stat.S_ISREG(found.state.st_mode):
                about.compress_type = zipfile.ZIP_DEFLATED
                for descriptor in _opened(found):
                    about.file_size = os.fstat(descriptor).st_size
                    with made.open(about, "w") as entry:
                        for piece in _content(descriptor, about.file_size):
                            entry.write(piece)
                            yield out.taken()
            yield out.taken()
    yield out.taken()


def _opened(found: Found) -> Iterator[int]:
    """Yield a descriptor that reads a plain file; nothing if it is none any more, or may not be read."""
    try:
        with confine.found(found.directory, found.path[-1:]) as handle, confine.reading(handle) as descriptor:
            yield descriptor
    except ServiceError:
        return


def _content(descriptor: int, size: int) -> Iterator[bytes]:
    while size:
        block = os.read(descriptor, min(size, BLOCK_BYTES))
        if not block:
            raise Shrunk
        size -= len(block)
        yield block


class _Out(io.RawIOBase):
    """What zipfile writes to: it cannot seek, and is emptied after each piece."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = bytearray()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]  # typeshed's buffer is wider
        """Keep ``data``."""
        self._bytes += data
        return len(data)

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        taken = bytes(self._bytes)
        self._bytes.clear()
        return taken
