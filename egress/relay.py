"""Bytes from one socket to another, as they come, at the pace of the slower one.

Callbacks instead of a loop per direction: a tick of the event loop reads once and writes once for each socket that is ready, so
nobody who sends much keeps others waiting, and a connection that is silent holds no buffer.

Promises: what is held of one direction is one read at most, and reads shrink while the sink is slow.
Leaves to bodies.py: where a body ends, and what goes on in its place. Leaves to its users: every limit of time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from egress.bodies import Body, UntilClose
from egress.connection import Connection

_LARGEST_READ = 256 * 1024
_FIRST_READ = 64 * 1024
_LEAST_READ = 16 * 1024
_SCRATCH = memoryview(bytearray(_LARGEST_READ))
"""Where everybody reads to: what is there is used up or copied before the callback returns."""

Moved = Callable[[int], None]
"""Told how many bytes have come."""


class SinkBroken(Exception):
    """The receiving end takes nothing more."""


async def relay(source: Connection, sink: Connection, body: Body, moved: Moved) -> None:
    """Carry ``body`` from ``source`` to ``sink``; what follows it stays unread.

    Raises Malformed for the body, SinkBroken, and OSError of the source. Cancelled halfway, both have to be closed.
    """
    relaying = _Relay(source, sink, body, moved)
    try:
        relaying.start()
        await relaying.ended
    finally:
        relaying.stop()


async def relay_both(one: Connection, other: Connection, *, moved_out: Moved, moved_in: Moved) -> None:
    """Carry what ``one`` sends (out) and what it gets (in), until both directions have ended or one cannot go on."""

    async def direction(source: Connection, sink: Connection, moved: Moved) -> None:
        await relay(source, sink, UntilClose(), moved)
        with contextlib.suppress(OSError):
            sink.socket.shutdown(socket.SHUT_WR)

    with contextlib.suppress(ExceptionGroup):  # a peer that is gone ends it for both
        async with asyncio.TaskGroup() as group:
            group.create_task(direction(one, other, moved_out), name="relay out")
            group.create_task(direction(other, one, moved_in), name="relay in")


class _Relay:
    def __init__(self, source: Connection, sink: Connection, body: Body, moved: Moved) -> None:
        self._loop = asyncio.get_running_loop()
        self._from, self._source, self._sink = source, source.socket, sink.socket
        self._body = body
        self._moved = moved
        self._size = _FIRST_READ
        self._rest = memoryview(b"")  # read, and not written yet
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        if self._from.unread:
            data = bytes(self._from.unread)
            self._from.unread.clear()
            self._guarded(self._take, memoryview(data))
        if not self._rest:
            self._go_on()

    def stop(self) -> None:
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)

    def _go_on(self) -> None:
        if self.ended.done():
            return
        if self._body.ended:
            self.ended.set_result(None)
        else:
            self._loop.add_reader(self._source, self._guarded, self._read)

    def _guarded(self, step: Callable[..., None], *arguments: memoryview) -> None:
        """A callback of the loop: its failure is the relay's."""
        if self.ended.done():
            return
        try:
            step(*arguments)
        except BlockingIOError:
            pass  # somebody was woken for nothing
        except Exception as error:  # noqa: BLE001 -- it is raised where the relay is awaited
            self.stop()
            self.ended.set_exception(error)

    def _read(self) -> None:
        count = self._source.recv_into(_SCRATCH[: self._size])
        if count == self._size:
            self._size = min(2 * self._size, _LARGEST_READ)
        self._take(_SCRATCH[:count])

    def _take(self, data: memoryview) -> None:
        if data:
            used, parts = self._body.take(data)
            self._from.unread += data[used:]
            self._moved(used)
        else:
            parts = self._body.cut()
        if parts:
            self._write(memoryview(parts[0] if len(parts) == 1 else b"".join(parts)))
        if not self._rest and self._body.ended:
            self._loop.remove_reader(self._source)
            self.ended.set_result(None)

    def _write(self, data: memoryview) -> None:
        sent = self._send(data)
        if sent < len(data):
            self._rest = memoryview(bytes(data[sent:]))
            self._size = max(self._size // 2, _LEAST_READ)
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._sink, self._guarded, self._drain)

    def _drain(self) -> None:
        self._rest = self._rest[self._send(self._rest) :]
        if not self._rest:
            self._loop.remove_writer(self._sink)
            self._go_on()

    def _send(self, data: memoryview) -> int:
        try:
            return self._sink.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise SinkBroken from error
