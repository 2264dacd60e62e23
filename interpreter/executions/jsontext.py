"""JSON texts that a sandbox sent, checked so that they can stand inside an answer as they are.

Promises: no call into C holds the interpreter for longer than some 80 ms for 16 MiB, whatever the text, so that in a thread
it does not stop the loop; a text that would take long to judge is refused instead.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

MAX_DEPTH = 100
"""Deeper texts are refused: JSON readers of clients end at a depth of some hundreds."""

_SLICE = 256 * 1024
_EFFORT = 64 * 1024 * 1024
"""Bytes that may be gone over while the depth of one text is judged: enough for any text of 640 kB, and for larger ones that
are deep in few places."""

_STRING = re.compile(rb'"[^"]*"')
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def checked(text: str) -> Raw | None:
    """Return ``text`` ready to be embedded in JSON; None if it is no JSON or nested deeper than ``MAX_DEPTH``."""
    data = text.encode()
    try:
        msgspec.json.decode(data, type=Raw)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError):
        return None
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and not _shallow(_brackets(data), _EFFORT):
        return None
    return Raw(data)


def _shallow(brackets: bytes, effort: int) -> bool:
    """Whether ``brackets`` are closed within ``MAX_DEPTH``: each round takes the innermost level away."""
    for _ in range(MAX_DEPTH):
        effort -= len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return True
        if effort < 0:
            return False
    return False


def _brackets(data: bytes) -> bytes:
    """Return the brackets of valid JSON outside its strings, all of one kind."""
    data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    found: list[bytes] = []
    inside = b""
    for start in range(0, len(data), _SLICE):
        outside, inside, _ = _STRING.sub(b"", inside + data[start : start + _SLICE]).partition(b'"')
        found.append(outside.translate(_ONE_KIND, _NO_BRACKETS))
    return b"".join(found)
