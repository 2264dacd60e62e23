"""``multipart/form-data`` as it arrives, piece by piece. Pure.

Promises: keeps no more than one head of a part, or a boundary that is not whole yet; raises InvalidRequest for what is malformed.
Leaves to its user: how many bytes and parts there may be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from interpreter.errors import InvalidRequest

MAX_HEAD_BYTES = 8 * 1024

_BOUNDARY = re.compile(
    r'multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s";,]{1,70})(?![^\s";,]))', re.IGNORECASE
)
_DISPOSITION = re.compile(rb"^content-disposition:[ \t]*form-data[ \t]*;(.*)$", re.IGNORECASE | re.MULTILINE)
_FILENAME = re.compile(rb';?[ \t]*filename="((?:[^"\\]|\\.)*)"', re.IGNORECASE)


class Multipart:
    """The parser of one body. content_type: of the request."""

    def __init__(self, content_type: str) -> None:
        found = _BOUNDARY.match(content_type)
        if found is None:
            raise InvalidRequest("Content-Type must be multipart/form-data with a boundary.")
        self._delimiter = b"\r\n--" + (found[1] or found[2]).encode("latin-1")
        self._buffer = bytearray(b"\r\n")  # the first delimiter stands at the very beginning
        self._at, self._more = "preamble", True

    def feed(self, data: bytes) -> Iterator[str | bytes]:
        """Yield the file name of a part as text when it begins, and its content in bytes as it comes."""
        self._buffer += data
        while self._more:
            self._more = False
            if self._at in ("preamble", "content"):
                yield from self._content()
            elif self._at == "delimiter":
                self._delimiter_end()
            elif self._at == "head":
                yield from self._head()
            else:
                self._buffer.clear()
        self._more = True

    def _go(self, at: str) -> None:
        self._at, self._more = at, True

    def _content(self) -> Iterator[bytes]:
        end = self._buffer.find(self._delimiter)
        ready = end if end >= 0 else max(0, len(self._buffer) - len(self._delimiter) + 1)
        piece = bytes(self._buffer[:ready]) if self._at == "content" else b""
        del self._buffer[: ready if end < 0 else end + len(self._delimiter)]
        if end >= 0:
            self._go("delimiter")
        if piece:
            yield piece

    def _delimiter_end(self) -> None:
        if len(self._buffer) < 2:
            return
        following = {b"--": "end", b"\r\n": "head"}.get(bytes(self._buffer[:2]))
        if following is None:
            raise InvalidRequest("The body has a malformed boundary.")
        del self._buffer[:2]
        self._go(following)

    def _head(self) -> Iterator[str]:
        end = self._buffer.find(b"\r\n\r\n")
        if end > MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > MAX_HEAD_BYTES):
            raise InvalidRequest(f"A part of the body has a head of more than {MAX_HEAD_BYTES} bytes.")
        if end >= 0:
            name = _filename(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            self._go("content")
            yield name

    def close(self) -> None:
        """Raise InvalidRequest unless the body was whole."""
        if self._at != "end":
            raise InvalidRequest("The body ends before its last boundary.")


def _filename(head: bytes) -> str:
    disposition = _DISPOSITION.search(head.replace(b"\r\n", b"\n"))
    found = None if disposition is None else _FILENAME.search(disposition[1])
    if found is None:
        raise InvalidRequest("Every part of the body has to be a file, with the path of it as its filename.")
    try:
        return re.sub(rb"\\(.)", rb"\1", found[1]).replace(b"%22", b'"').decode()
    except UnicodeDecodeError:
        raise InvalidRequest("A filename is not UTF-8.") from None
