"""What follows a head: how far a body goes, and how its bytes go on.

Chunks are read and written anew, since extensions, trailers and sizes are where parsers disagree.

Promises: pure, no byte of a body is copied, what is held is bounded by one line of chunk framing. ``Malformed`` and nothing
else is raised.
Leaves to relay.py: reading and writing.
"""

from __future__ import annotations

import re
from typing import Protocol

from egress.heads import Length, Malformed

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_MAX_LINE = 1024
"""Bytes of a chunk's first line, its extensions included, and of all trailers together."""

Parts = list[bytes | memoryview]


class Body(Protocol):
    """Bytes on their way."""

    ended: bool

    def take(self, data: memoryview) -> tuple[int, Parts]:
        """Return how many bytes of ``data`` belong to the body, and what goes on in their place. Raises Malformed.

        Fewer than all are taken only by the one that ends it. The parts are views of ``data``.
        """

    def cut(self) -> Parts:
        """The sender has closed: return what goes on, or raise Malformed if the body had not ended."""


class Sized:
    """A body of so many bytes."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.ended = size == 0

    def take(self, data: memoryview) -> tuple[int, Parts]:
        """See Body."""
        taken = min(len(data), self._left)
        self._left -= taken
        self.ended = self._left == 0
        return taken, [data[:taken]]

    def cut(self) -> Parts:
        """See Body."""
        if not self.ended:
            raise Malformed("the body ended before its length")
        return []


class UntilClose:
    """A body, or one direction of a tunnel, that ends when its sender closes."""

    ended = False

    def take(self, data: memoryview) -> tuple[int, Parts]:
        """See Body."""
        return len(data), [data]

    def cut(self) -> Parts:
        """See Body."""
        self.ended = True
        return []


class Chunked:
    """A body in chunks. plain: what goes on has no framing, for a client of HTTP/1.0."""

    def __init__(self, *, plain: bool = False) -> None:
        self.ended = False
        self._plain = plain
        self._line = bytearray()
        self._left = 0  # of the chunk
        self._after = False  # the chunk's data have ended, not its line
        self._trailers = -1  # bytes of them; below 0: not there yet

    def take(self, data: memoryview) -> tuple[int, Parts]:
        """See Body."""
        at, parts = 0, Parts()
        while at < len(data) and not self.ended:
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                self._after = self._left == 0
                at += len(piece)
                parts += [piece] if self._plain else [b"%x\r\n" % len(piece), piece, b"\r\n"]
                continue
            at += self._until_newline(data[at:])
            if self._line.endswith(b"\n"):
                line, self._line = bytes(self._line), bytearray()
                parts += self._read(line)
        return at, parts

    def cut(self) -> Parts:
        """See Body."""
        if not self.ended:
            raise Malformed("the body ended before its last chunk")
        return []

    def _until_newline(self, data: memoryview) -> int:
        piece = bytes(data[: _MAX_LINE + 1])
        end = piece.find(b"\n") + 1
        self._line += piece[:end] if end else piece
        if len(self._line) > _MAX_LINE:
            raise Malformed("a line between chunks is too long")
        return end or len(piece)

    def _read(self, line: bytes) -> Parts:
        if not line.endswith(b"\r\n") or b"\0" in line or b"\r" in line[:-2]:
            raise Malformed("a line between chunks does not end with CR LF")
        if self._after:
            if line != b"\r\n":
                raise Malformed("a chunk is longer than its size")
            self._after = False
        elif self._trailers >= 0:
            self._trailers += len(line)
            if self._trailers > _MAX_LINE:
                raise Malformed("the trailers are too long")
            if line == b"\r\n":
                self.ended = True
                return [] if self._plain else [b"0\r\n\r\n"]
        elif (found := _SIZE.fullmatch(line[:-2])) is None:
            raise Malformed("the size of a chunk is none")
        else:
            self._left = int(found[1], 16)
            self._trailers = -1 if self._left else 0
        return []


def body(length: Length, *, plain: bool = False) -> Body:
    """Return how a body of this length goes on."""
    if length == "chunked":
        return Chunked(plain=plain)
    return UntilClose() if length == "close" else Sized(length)
