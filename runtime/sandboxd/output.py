"""What programs write: pipes read without blocking, and text kept within a limit.

``Capture`` keeps the first and the last bytes of one stream and counts all of them; ``PipeReader`` feeds it.

Promises: memory is bounded by twice the limit however much is written; the text is valid UTF-8 of whole characters, bad
bytes replaced, no lone surrogates, never longer than the limit.
Leaves to its users: which execution a byte belongs to, and the clock.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import fcntl
import os
from collections.abc import Callable

_CHUNK = 256 * 1024
_READS_AT_ONCE = 4
"""So that one flooding program does not keep the loop from the others: at most 1 MiB before they have their turn."""

_PIPE = 256 * 1024
"""Bytes a pipe is to hold, so that its writer does not wait while we gather."""

_GATHER_S = 0.002
_QUICK_S = 0.006
_BUSY = 8
"""Reads, each within ``_QUICK_S`` of the one before, after which we gather: a program that writes lines wakes us for each of
them else, which costs both sides more than the lines do."""

_PROGRESS = 2**19
"""Bytes of one piece of progress; the link allows 2**20 characters."""


class Capture:
    """One stream of one execution, as text of at most ``limit`` bytes of UTF-8.

    All bytes here are those of the text: a byte that is no UTF-8 counts as the three of its replacement character.
    ``feed`` may go on after ``text``; what is then said changes accordingly.

    tell: gets all of it, as UTF-8 of whole characters, as it comes: at once, or from where it is more than the limit on, and then
    what came before as well.
    """

    def __init__(self, limit: int, tell: Callable[[bytes], None] | None = None, *, at_once: bool = False) -> None:
        self.limit = limit
        self._tell = tell
        self._telling = at_once
        self.size = 0
        """Bytes of text written so far, kept or not. A character that is still incomplete does not count yet."""
        self._head = bytearray()  # everything, until it is more than the limit
        self._tail = bytearray()  # the last bytes of what came after the head
        self._told = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def truncated(self) -> bool:
        """Whether ``text`` leaves something out."""
        return self.size > self.limit

    @property
    def ends_line(self) -> bool:
        """Whether a line may begin here: nothing was written, or a line break last."""
        return not self.size or (self._tail or self._head).endswith(b"\n")

    def feed(self, data: bytes) -> None:
        """Add bytes as a program wrote them, cut anywhere."""
        self._keep(self._decoder.decode(data).encode())

    def close(self) -> None:
        """No more bytes come: a character that is still incomplete is replaced."""
        self._keep(self._decoder.decode(b"", final=True).encode())

    def text(self) -> str:
        """Return all of it, or the first and the last half around one line saying how many bytes were left out."""
        if not self.truncated:
            return self._head.decode()
        room = self.limit - len(_left_out(self.size)) - 1
        if room < 0:
            return whole_start(self._head, self.limit).decode()
        first = whole_start(self._head, room - room // 2)
        last = _whole_end(self._end(room // 2), room // 2)
        separator = b"" if first.endswith(b"\n") or not first else b"\n"
        line = _left_out(self.size - len(first) - len(last))
        return (first + separator + line + last).decode()

    def progress(self) -> str:
        """Return the next piece of the first half of the limit that this method has not returned before; "" if none."""
        piece = whole_start(self._head[self._told : self.limit // 2], _PROGRESS)
        self._told += len(piece)
        return piece.decode()

    def rewind(self) -> None:
        """Let ``progress`` begin anew: what it has returned was told to a service that is gone."""
        self._told = 0

    def _keep(self, data: bytes) -> None:
        if self._tell is not None and data:
            if self._telling:
                self._tell(data)
            elif self.size + len(data) > self.limit:
                self._telling = True
                self._tell(bytes(self._head) + data)
        self.size += len(data)
        room = self.limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            half = self.limit // 2
            self._tail += data[-half:] if half else b""
            if len(self._tail) > max(2 * half, _CHUNK):
                del self._tail[: len(self._tail) - half]

    def _end(self, length: int) -> bytes:
        if len(self._tail) >= length:
            return bytes(self._tail[len(self._tail) - length :])
        return bytes((self._head[-length:] + self._tail)[-length:]) if length else b""


class PipeReader:
    """Reads the pipe ``fd``, which it owns, and hands on what comes; ``eof`` is done at the end of the pipe.

    receive: called in the loop with 1 byte to 256 KiB; must not raise. The descriptor is closed at the end of the pipe
    or by ``close``, whichever is first; ``eof`` is done in both cases. To be made and used in the loop's thread.

    What comes in a stream of small pieces is gathered for ``_GATHER_S``; ``drain`` is for whoever cannot wait that long.
    full: while it says so nothing else is read, so that the writer waits.
    """

    def __init__(self, fd: int, receive: Callable[[bytes], None], full: Callable[[], bool] = lambda: False) -> None:
        self._fd = fd
        self._receive = receive
        self._full = full
        self._loop = asyncio.get_running_loop()
        self._gathering: asyncio.TimerHandle | None = None
        self._quick = 0  # reads in a row
        self._read_at = 0.0
        self.eof: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # the user has too many of them
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE)
        self._loop.add_reader(fd, self._readable)

    def drain(self) -> None:
        """Hand on, now, what is in the pipe, at most 4 MiB of it."""
        for _ in range(4):
            if self.eof.done() or not self._read()[1]:
                return

    def close(self) -> None:
        """Read no more and close the descriptor. May be called twice."""
        if self.eof.done():
            return
        if self._gathering is not None:
            self._gathering.cancel()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self.eof.set_result(None)

    def _readable(self) -> None:
        if self._full():
            self._pause()
            return
        size, _ = self._read()
        now = self._loop.time()
        self._quick = self._quick + 1 if now - self._read_at < _QUICK_S else 0
        self._read_at = now
        if self._quick >= _BUSY and size < _PIPE // 2 and not self.eof.done():
            self._pause()

    def _pause(self) -> None:
        self._loop.remove_reader(self._fd)
        self._gathering = self._loop.call_later(_GATHER_S, self._gathered)

    def _gathered(self) -> None:
        self._loop.add_reader(self._fd, self._readable)
        self._readable()

    def _read(self) -> tuple[int, bool]:
        """Read some; return how many bytes and whether there may be more."""
        size = 0
        for _ in range(_READS_AT_ONCE):
            try:
                data = os.read(self._fd, _CHUNK)
            except BlockingIOError:
                return size, False
            except OSError:
                data = b""  # nothing more can be read of it
            if not data:
                self.close()
                return size, False
            size += len(data)
            self._receive(data)
            if self.eof.done():
                return size, False
        return size, True


def _left_out(size: int) -> bytes:
    return b"[... %d bytes left out ...]\n" % size


def whole_start(data: bytes | bytearray, length: int) -> bytes:
    """Return the first ``length`` bytes of UTF-8 ``data``, less a character that is cut."""
    start = bytes(data[:length])
    return start.decode("utf-8", "ignore").encode() if start and start[-1] >= 0x80 else start


def _whole_end(data: bytes, length: int) -> bytes:
    """Return the last ``length`` bytes of UTF-8 ``data``, less a character that would be cut."""
    start = max(len(data) - length, 0)
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
