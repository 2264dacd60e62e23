"""What cells write, told in one of two forms: as marks on descriptors 1 and 2, or as stream messages on iopub.

    ESC ] cellbox ; SECRET ; t ; NUMBER ; STREAM ; BYTES BEL  and that many bytes of its text; STREAM is 1 or 2
    ESC ] cellbox ; SECRET ; d ; PLACE BEL                    here belongs the message with the frame ``place:PLACE``

Each mark is one write of at most PIPE_BUF bytes. All text goes through descriptor 1, so its order is kept.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import select
from collections.abc import Callable
from typing import Protocol

_LONGEST = min(select.PIPE_BUF, 4096) - 96
"""Bytes of text in one mark, which takes at most 72 bytes itself."""

_GATHER_S = 0.015
_GATHER_CHARACTERS = 65_536


class Output(Protocol):
    """Where the text of cells goes."""

    def begin(self, *, ordered: bool) -> None:
        """A cell begins. ordered: ``place`` is to have an effect."""

    def end(self, number: int) -> None:
        """It has ended: all that it wrote in the foreground has been written here, and is now told."""

    def write(self, number: int, stream: int, data: bytes) -> None:
        """Text of that cell on stream 1 (stdout) or 2 (stderr), cut anywhere. Also after its end."""

    def place(self) -> int | None:
        """A message is about to be published: tell now what was written; return the place of the message behind that, if any."""

    def flush(self) -> None:
        """Tell now what was written."""


class Marks:
    """Output as marks, for the one who gave the secret. Blocks while the reader does not read."""

    def __init__(self, secret: str) -> None:
        self._prefix = b"\x1b]cellbox;" + secret.encode() + b";"
        self._ordered = False
        self._places = 0

    def begin(self, *, ordered: bool) -> None:
        """See ``Output``."""
        self._ordered = ordered

    def end(self, number: int) -> None:
        """See ``Output``: all was told as it was written."""

    def write(self, number: int, stream: int, data: bytes) -> None:
        """See ``Output``."""
        head = b"%st;%d;%d;" % (self._prefix, number, stream)
        for start in range(0, len(data), _LONGEST):
            piece = data[start : start + _LONGEST]
            _write(1, b"%s%d\a%s" % (head, len(piece), piece))

    def place(self) -> int | None:
        """See ``Output``."""
        if not self._ordered:
            return None
        self._places += 1
        _write(1, b"%sd;%d\a" % (self._prefix, self._places))
        return self._places

    def flush(self) -> None:
        """See ``Output``: nothing waits here."""


class Streams:
    """Output as stream messages, gathered for 15 ms or 64 Ki characters.

    publish: number of the cell, name of the stream, text.
    """

    def __init__(self, publish: Callable[[int, str, str], None]) -> None:
        self._publish = publish
        self._decoders: dict[
            tuple[int, int], codecs.IncrementalDecoder
        ] = {}  # those that wait for the rest of a character
        self._pieces: list[str] = []
        self._owner = (0, 1)  # of the pieces
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, *, ordered: bool) -> None:
        """See ``Output``: nothing is to be told, and messages have their order anyway."""

    def end(self, number: int) -> None:
        """See ``Output``."""
        for key in [key for key in self._decoders if key[0] == number]:
            self._add(key, self._decoders.pop(key).decode(b"", final=True))
        self.flush()

    def write(self, number: int, stream: int, data: bytes) -> None:
        """See ``Output``."""
        key = (number, stream)
        decoder = self._decoders.pop(key, None) or codecs.getincrementaldecoder("utf-8")("replace")
        self._add(key, decoder.decode(data))
        if decoder.getstate()[0]:
            self._decoders[key] = decoder

    def place(self) -> None:
        """See ``Output``."""
        self.flush()

    def flush(self) -> None:
        """See ``Output``."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pieces:
            text, self._pieces, self._size = "".join(self._pieces), [], 0
            self._publish(self._owner[0], "stdout" if self._owner[1] == 1 else "stderr", text)

    def _add(self, owner: tuple[int, int], text: str) -> None:
        if not text:
            return
        if owner != self._owner:
            self.flush()
            self._owner = owner
        self._pieces.append(text)
        self._size += len(text)
        if self._size > _GATHER_CHARACTERS:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self.flush)


def _write(descriptor: int, data: bytes) -> None:
    """Write all, also to a pipe that a child made non-blocking; a reader that is gone is no error of the cell."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
        except OSError:
            return
