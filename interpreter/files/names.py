"""Paths as callers write them, and names as they are shown.

Promises: a path is decoded once and split afterwards, so an encoded slash is a separator and nothing is decoded twice; every
name that a file system can hold has a form that comes back as the same bytes. Normal forms of Unicode are kept as they are.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes

from interpreter.errors import InvalidRequest

MAX_NAME_BYTES = 255
MAX_PARTS = 64

_MALFORMED = re.compile(r"%(?![0-9A-Fa-f]{2})")


def parts_of(path: str, *, directory: bool = False) -> tuple[bytes, ...]:
    """Return the names in a percent-encoded path; none for the root.

    directory: one slash at the end may stand for nothing. Raises InvalidRequest.
    """
    if _MALFORMED.search(path):
        raise InvalidRequest("The path has a malformed percent encoding.")
    raw = unquote_to_bytes(path)
    if directory:
        raw = raw.removesuffix(b"/")
        if not raw:
            return ()
    parts = tuple(raw.split(b"/"))
    if len(parts) > MAX_PARTS:
        raise InvalidRequest(f"The path has more than {MAX_PARTS} parts.")
    for part in parts:
        if part in (b"", b".", b".."):
            raise InvalidRequest("The path has an empty part, or one that is `.` or `..`.")
        if b"\0" in part:
            raise InvalidRequest("The path has a NUL byte.")
        if len(part) > MAX_NAME_BYTES:
            raise InvalidRequest(f"The path has a part of more than {MAX_NAME_BYTES} bytes.")
    return parts


def parts_of_text(path: str) -> tuple[bytes, ...]:
    """Return the names in a path that is decoded already. Raises InvalidRequest."""
    return parts_of(quote(path, safe="/"))


def quoted(parts: Sequence[bytes]) -> str:
    """Return a path so that it can stand in a message: cut, in ASCII, in quotes."""
    return ascii(shown(b"/".join(parts))[0][:100])


def shown(name: bytes) -> tuple[str, str | None]:
    """Return how a name or path is shown, and its percent-encoded bytes where that is not the same name (else None)."""
    try:
        return name.decode(), None
    except UnicodeDecodeError:
        return name.decode(errors="replace"), quote_from_bytes(name)
