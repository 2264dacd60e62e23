"""Reads what the Node process writes where nobody else does: text in marks that say whose it is, and bytes of its children."""

from __future__ import annotations

import re
from collections.abc import Callable

_LONGEST = 64
"""Bytes of a mark after the secret."""


class MarkReader:
    """Takes one pipe of the process apart.

    text: called with execution, stream 1 or 2, and bytes. raw: called with bytes of children and native code. shown: called with
    the number of a display where that has its place among them.
    """

    def __init__(
        self,
        secret: str,
        text: Callable[[int, int, bytes], None],
        raw: Callable[[bytes], None],
        shown: Callable[[int], None],
    ) -> None:
        self._prefix = b"\x1b]cellbox;" + secret.encode() + b";"
        self._mark = re.compile(re.escape(self._prefix) + rb"(?:t;(\d{1,15});([12]);(\d{1,4})|d;(\d{1,15}))\a")
        self._text = text
        self._shown = shown
        self._raw = raw
        self._pending = b""

    def feed(self, data: bytes) -> None:
        """Hand on what ``data`` says, together with what was unfinished before it."""
        data = self._pending + data
        self._pending = b""
        at = 0
        while at < len(data):
            start = data.find(self._prefix, at)
            if start < 0:
                start = self._beginning(data, at)
            if start > at:
                self._raw(data[at:start])
            mark = self._mark.match(data, start)
            if mark is None:
                if len(data) - start < len(self._prefix) + _LONGEST:
                    self._pending = data[start:]
                    return
                at = start + len(self._prefix)  # what only looks like a mark is output
                self._raw(data[start:at])
                continue
            if mark[4] is not None:
                at = mark.end()
                self._shown(int(mark[4]))
                continue
            number, stream, size = int(mark[1]), int(mark[2]), int(mark[3])
            if len(data) - mark.end() < size:
                self._pending = data[start:]
                return
            at = mark.end() + size
            self._text(number, stream, data[mark.end() : at])

    def settle(self) -> None:
        """All that was written has been fed: what is unfinished is output."""
        rest, self._pending = self._pending, b""
        if rest:
            self._raw(rest)

    def _beginning(self, data: bytes, at: int) -> int:
        """Return where the end of ``data`` may be the beginning of a mark, else its end."""
        escape = data.rfind(b"\x1b", max(at, len(data) - len(self._prefix)))
        return escape if escape >= 0 and self._prefix.startswith(data[escape:]) else len(data)
