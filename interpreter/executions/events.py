"""The events of one execution: numbered without gaps, readable from any point on, bounded.

What is long lies in a file once it is more than ``MEMORY_BYTES``, so that many streams with slow readers cost the service little
memory. Neighbouring pieces of text are one event until somebody has read it.

Promises: ``finished`` is the last event and there is exactly one; a reader that asks again with the number of the last event
it has seen loses nothing; at most ``limit`` bytes of each stream, as many of everything else, and ``MAX_EVENTS`` events; what
says how it goes has a place even then, and that something was left out is known.
Leaves to http: how events travel.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from sys import getsizeof
from typing import Any

import msgspec
from sandboxd.protocol import StreamName

from interpreter.executions.spool import MEMORY_BYTES, Spool

MAX_EVENTS = 200_000
"""Of one execution. Past it only what says how it goes is added."""

ASKING_BYTES = 512 * 1024
"""For each ``input_request`` that comes when there is no room."""

MAX_TEXT = 256 * 1024
"""Bytes of one text event."""

BATCH_BYTES = 256 * 1024
"""Of what a reader gets at once."""

_EVENTS_AT_ONCE = 4096

_json = msgspec.json.Encoder()
_TYPES = (
    "started",
    "stdout",
    "stderr",
    "display",
    "update_display",
    "clear_output",
    "result",
    "error",
    "input_request",
    "kernel",
    "finished",
)
_ONCE = frozenset({"started", "error", "kernel", "finished"})
"""Of which one execution has one each, as long as the answer may hold: there is always room."""

_TEXTS = {"stdout": _TYPES.index("stdout"), "stderr": _TYPES.index("stderr")}


@dataclass(slots=True)
class Room:
    """What logs in files may have together. left: in bytes."""

    left: int


@dataclass(frozen=True, slots=True)
class Event:
    """One event. body: all of it, as a JSON object."""

    seq: int
    type: str
    body: bytes


def encoded(**fields: Any) -> bytes:
    """Return the fields of an event as they are kept."""
    return _json.encode(fields)


class EventLog:
    """The events of one execution, in order.

    folder: for what is long; None keeps it in memory. limit: in bytes, of each stream and of everything else. room: shared with
    others by what is long; None is without end.
    """

    def __init__(
        self, execution_id: str, *, folder: Path | None = None, limit: int = 2**26, room: Room | None = None
    ) -> None:
        self._execution_id = _json.encode(execution_id)
        self._spool = Spool(folder)
        self._kinds = array("B")
        self._ends = array("Q")  # of each event's payload in the spool
        self._tail = bytearray()  # the payload of the last event, where that is text that nobody has read
        self.limit = limit
        """In bytes, of each stream."""
        self._left = {"stdout": limit, "stderr": limit}
        self._left_rich = limit
        self._room = room
        self._taken = 0  # of it
        self._full = (
            False  # whether it had no room for text: then none is added any more, so that there is one gap at most
        )
        self._left_asking = ASKING_BYTES
        self._rest: Callable[[], object] | None = None
        self._more = asyncio.Event()
        self.closed = False
        """Whether nothing comes any more: ``finished`` is there, or another service will say it."""
        self.cut = False
        """Whether something was left out for want of room."""

    def __len__(self) -> int:
        """How many there are."""
        self._complete()
        return len(self._kinds)

    def add(self, kind: str, **fields: Any) -> bool:
        """Append an event of type ``kind``; False where there is no room. After ``finished`` nothing is added."""
        return self.add_encoded(kind, encoded(**fields))

    def add_encoded(self, kind: str, payload: bytes) -> bool:
        """The same where ``encoded`` has been called already."""
        size = len(payload)
        if self.closed:
            return False
        if kind not in _ONCE:
            if self.has_room(size) and self._take(size):
                self._left_rich -= size
            elif kind == "input_request" and size <= self._left_asking:
                self._left_asking -= size
            else:
                self.cut = True
                return False
        self._append(_TYPES.index(kind), payload)
        self.closed = kind == "finished"
        self._wake()
        return True

    def has_room(self, size: int) -> bool:
        """Whether an event of about ``size`` bytes, which is no text, would be taken."""
        return size <= self._left_rich and len(self._kinds) < MAX_EVENTS

    def add_text(self, stream: StreamName, text: str) -> bool:
        """Append output; False where it is over the limit: then nothing of that stream is added any more.

        Past ``MAX_EVENTS``, or where there is no room, it is left out without that: whoever sends cannot know of it.
        """
        data = text.encode()
        if len(data) > self._left[stream]:
            self._left[stream] = 0
            self.cut = True
            return False
        if self.closed:
            return True
        if self._full or len(self._kinds) >= MAX_EVENTS or not self._take(len(data)):
            self._full = self.cut = True
            return True
        self._left[stream] -= len(data)
        kind = _TEXTS[stream]
        if self._tail and self._kinds[-1] == kind and len(self._tail) + len(data) <= MAX_TEXT:
            self._tail += data
            self._ends[-1] += len(data)
        else:
            self._append(kind, b"")
            self._tail += data
            self._ends[-1] += len(data)
        self._wake()
        return True

    def finish(self, add: Callable[[], object]) -> None:
        """No more comes but what ``add`` adds, ``finished`` last: it is called once somebody reads that far."""
        self._rest = add
        self._seal()
        self._wake()

    def keep_in(self, folder: Path | None, *, limit: int, room: Room | None = None) -> None:
        """Have this folder, limit and room from here on, as if made with them. Before there is any output."""
        self._spool.keep_in(folder)
        self._room = room
        self.limit = limit
        self._left = {"stdout": limit, "stderr": limit}
        self._left_rich = limit

    def abandon(self) -> None:
        """Nothing comes any more from here, though it has not finished."""
        self.closed = True
        self._wake()

    def discard(self) -> None:
        """Let go of what is kept; whoever reads is at the end. May be called twice."""
        self._spool.close()
        if self._room is not None:
            self._room.left += self._taken
        self._room, self._taken = None, 0
        self._rest, self._tail = None, bytearray()
        self._kinds, self._ends = array("B"), array("Q")
        self.abandon()

    @property
    def held(self) -> int:
        """How many bytes of memory it takes."""
        return self._spool.held + len(self._tail) + getsizeof(self._kinds) + getsizeof(self._ends)

    def grows(self, size: int) -> int:
        """Return how many bytes of memory more it may take once somebody reads of ``size`` bytes what ``finish`` has left."""
        return 0 if self._rest is None else self._spool.room(size)

    @property
    def lost(self) -> bool:
        """Whether the disk has not taken something."""
        return self._spool.lost

    @property
    def stored(self) -> int:
        """How many bytes of it lie in a file."""
        return self._spool.stored

    def after(self, seq: int = -1) -> list[Event]:
        """Return events numbered above ``seq``, in order, about ``BATCH_BYTES`` of them; -1 asks from the first.

        Whoever asks beyond the end of a log that is closed gets the last event: an earlier service may have counted further.
        """
        self._complete()
        self._seal()
        first = seq + 1
        if self.closed and first >= len(self._kinds) and seq != len(self._kinds) - 1:
            first = len(self._kinds) - 1
        found = []
        size, window, window_at = 0, b"", 0
        for number in range(max(first, 0), len(self._kinds)):
            start, end = self._ends[number - 1] if number else 0, self._ends[number]
            if end > window_at + len(window):  # read many at once: each read costs some system calls
                window_at, length = start, max(end - start, min(BATCH_BYTES, len(self._spool) - start))
                window = self._spool.read(start, length)
            found.append(self._event(number, window[start - window_at : end - window_at]))
            size += len(found[-1].body)
            if size > BATCH_BYTES:
                break
        return found

    async def more(self, seq: int, *, wait_s: float) -> None:
        """Return once there are events numbered above ``seq``, none will come, or ``wait_s`` have passed. Reads none of them."""
        more = self._more
        if len(self) <= seq + 1 and not self.closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await more.wait()

    async def wait(self, seq: int = -1, *, wait_s: float) -> list[Event]:
        """Return events numbered above ``seq``; an empty list when none came within ``wait_s``, or none will."""
        await self.more(seq, wait_s=wait_s)
        return self.after(seq)

    def text_size(self, stream: StreamName) -> int:
        """Return how many bytes of ``stream`` there are."""
        return sum(end - start for start, end in self._texts(stream))

    def text(self, stream: StreamName, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes of ``stream`` from ``start`` up to ``stop``, in pieces of some 256 KiB, or of some thousand events."""
        self._seal()
        at, piece, window, window_at = 0, bytearray(), b"", 0
        for number, (begin, end) in enumerate(self._texts(stream), 1):
            first, last = max(begin, begin + start - at), min(end, begin + stop - at)
            if first < last:
                # Many that are short lie side by side, and each read costs some system calls.
                if last > window_at + len(window):
                    window_at, length = first, max(last - first, min(BATCH_BYTES, len(self._spool) - first))
                    window = self._spool.read(first, length)
                piece += window[first - window_at : last - window_at]
            at += end - begin
            if at >= stop:
                break
            if len(piece) >= BATCH_BYTES or number % _EVENTS_AT_ONCE == 0:
                yield bytes(piece)
                piece.clear()
        if piece:
            yield bytes(piece)

    def _texts(self, stream: StreamName) -> Iterator[tuple[int, int]]:
        self._complete()
        kinds, kind, start = self._kinds, _TEXTS[stream], 0  # as they are now: the log may be discarded meanwhile
        for number, end in enumerate(self._ends):
            if kinds[number] == kind:
                yield start, end
            start = end

    def _take(self, size: int) -> bool:
        """Whether there is room for so many bytes, which are taken of it then."""
        total = len(self._spool) + len(self._tail) + size
        if self._room is None or total <= MEMORY_BYTES:
            return True
        more = total - self._taken
        if more > self._room.left:
            return False
        self._room.left -= more
        self._taken = total
        return True

    def _append(self, kind: int, payload: bytes) -> None:
        self._seal()
        self._spool.append(payload)
        self._kinds.append(kind)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(payload))

    def _seal(self) -> None:
        """Let nothing be added to the last event."""
        if self._tail:
            self._spool.append(self._tail)
            self._tail = bytearray()

    def _complete(self) -> None:
        if self._rest is not None:
            add, self._rest = self._rest, None
            add()

    def _event(self, number: int, payload: bytes) -> Event:
        kind = _TYPES[self._kinds[number]]
        if kind in _TEXTS:  # which a full disk may have cut within a letter
            payload = b'"text":%s}' % _json.encode(payload.decode(errors="replace"))
        elif b"\0" in payload:
            payload = b"}"  # the disk did not take it: that it was there is still told
        else:
            payload = payload[1:]
        comma = b"" if payload == b"}" else b","
        head = b'{"seq":%d,"type":"%s","execution_id":%s' % (number, kind.encode(), self._execution_id)
        return Event(number, kind, head + comma + payload)

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()
