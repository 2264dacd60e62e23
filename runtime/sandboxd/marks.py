"""The marks that kernels put into their output: which execution it belongs to, and in which order it came.

A kernel that was given a secret writes, each in one atomic write (at most 4096 bytes):

    ESC ] cellbox ; SECRET ; t ; EXECUTION ; STREAM ; BYTES BEL  and that many bytes of its text; STREAM is 1 or 2
    ESC ] cellbox ; SECRET ; d ; PLACE BEL                       here belongs the message that is published with this place

EXECUTION and PLACE are decimal numbers; places rise, and are written before their messages are sent, by a kernel that was asked
to. Bytes between marks are of C code or children. Code of a tenant can forge marks: it then lies about its own output and no
more. What only looks like a mark is output.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, Protocol

Pipe = Literal[1, 2]

_WINDOW = 16 * 1024
_LONG = 256
"""Bytes of a text from which it is cheaper taken by itself than together with those around it."""
_LONGEST = 64
"""Bytes of a mark after the secret: no honest one is longer."""


class Heard(Protocol):
    """What one pipe says, in order. Called from ``MarkReader.feed``."""

    def text(self, execution: int, stream: Pipe, data: bytes) -> None:
        """Text of an execution, never empty; a character may be split between two calls."""

    def raw(self, pipe: Pipe, data: bytes) -> None:
        """Bytes without a mark, never empty."""


class MarkReader:
    """Takes the bytes of one pipe of a kernel apart.

    placed: says of a place whether what comes behind it has to wait for the message that belongs there.
    Holds at most one unfinished mark (about 120 bytes), and what it is fed while it ``waits``.
    """

    def __init__(
        self, secret: str, pipe: Pipe, heard: Heard, placed: Callable[[int], bool] = lambda _place: False
    ) -> None:
        self._prefix = b"\x1b]cellbox;" + secret.encode() + b";"
        self._mark = re.compile(re.escape(self._prefix) + rb"(?:d;(\d{1,15})|t;(\d{1,15});([12]);(\d{1,4}))\a")
        self._pipe: Pipe = pipe
        self._heard = heard
        self._placed = placed
        self.waits = 0
        """The place at which it waits to ``go_on``; 0: it does not."""
        self._pending = b""
        self._at = 0  # where to go on in that
        self._owner: tuple[int, Pipe] = (0, pipe)  # of the text that is being read
        self._missing = 0  # bytes of it that have not come yet
        self._pieces: list[bytes] = []  # joined, since most come from prints of a few bytes

    def feed(self, data: bytes) -> None:
        """Hand on what ``data`` says, together with what was unfinished before it."""
        data = self._pending + data if self._pending else data
        self._pending = b""
        if self.waits:
            self._pending = data
        else:
            self._read(data, 0)

    def go_on(self, place: int) -> None:
        """What belongs at ``place`` has come, or never will: hand on what was written behind it."""
        if 0 < self.waits <= place:
            data, at = self._pending, self._at
            self.waits, self._pending, self._at = 0, b"", 0
            self._read(data, at)

    def _read(self, data: bytes, at: int) -> None:
        while at < len(data):
            if self._missing:
                piece = data[at : at + self._missing]
                self._pieces.append(piece)
                self._missing -= len(piece)
                at += len(piece)
                at = self._texts(data, at)
                continue
            start = data.find(self._prefix, at)
            if start < 0:
                self._rest(data, at)
                break
            self._raw(data[at:start])
            mark = self._mark.match(data, start)
            if mark is not None:
                at = mark.end()
                if self._marked(mark):
                    self._pending, self._at = data, at
                    break
            elif self._may_go_on(data[start + len(self._prefix) :]):
                self._pending = data[start:]
                break
            else:
                at = start + len(self._prefix)
                self._raw(data[start:at])
        self._flush()

    def _texts(self, data: bytes, at: int) -> int:
        """Take whole texts of the present owner that begin at ``at``; return where they end.

        Does nothing that the general way would not, only faster: one print makes two of these. A text that does not end where
        the next mark begins, or the window, is left to that way.
        """
        head = b"%st;%d;%d;" % (self._prefix, *self._owner)
        while data.startswith(head, at):
            before, begin = at, at + len(head)
            stop = data.find(b"\a", begin, begin + 5)
            digits = data[begin:stop] if stop > 0 else b""
            if digits.isdigit() and int(digits) >= _LONG:
                end = stop + 1 + int(digits)
                if end > len(data):
                    break
                self._pieces.append(data[stop + 1 : end])
                at = end
                continue
            for part in data[begin : at + _WINDOW].split(head):
                size, bell, text = part.partition(b"\a")
                if not (bell and text and size.isdigit() and len(size) <= 4 and int(size) == len(text)):
                    break
                self._pieces.append(text)
                at += len(head) + len(part)
            if at == before:
                break
        return at

    def settle(self) -> None:
        """All that was written has been fed: what is unfinished is a forgery, and output."""
        rest, self._pending, self._missing = self._pending, b"", 0
        self._raw(rest)

    def _marked(self, mark: re.Match[bytes]) -> bool:
        """Take a mark; return whether to wait behind it."""
        place, owner, stream, size = mark.groups()
        if place is None:
            of: tuple[int, Pipe] = (int(owner), 1 if stream == b"1" else 2)
            if of != self._owner:
                self._flush()
                self._owner = of
            self._missing = int(size)
            return False
        self._flush()
        self.waits = int(place) if self._placed(int(place)) else 0
        return self.waits > 0

    @staticmethod
    def _may_go_on(rest: bytes) -> bool:
        """Whether what follows the secret, to the end of the data, can be the beginning of a mark."""
        return len(rest) < _LONGEST and not rest.strip(b"dt;0123456789")

    def _rest(self, data: bytes, at: int) -> None:
        """Hand on all but what may be the beginning of a mark."""
        escape = data.rfind(b"\x1b", max(at, len(data) - len(self._prefix)))
        if escape >= 0 and self._prefix.startswith(data[escape:]):
            self._pending = data[escape:]
            self._raw(data[at:escape])
        else:
            self._raw(data[at:])

    def _raw(self, data: bytes) -> None:
        if data:
            self._flush()
            self._heard.raw(self._pipe, data)

    def _flush(self) -> None:
        if self._pieces:
            data, self._pieces = b"".join(self._pieces), []
            self._heard.text(*self._owner, data)
