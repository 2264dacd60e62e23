"""One end of what is relayed: a socket that never blocks, and what was read from it beyond what was asked for.

Promises: each wait can be cancelled without losing a byte; ``close`` may be called twice. Reading and writing may wait at the
same time, each in one task.
Leaves to its users: every limit of time. Leaves to relay.py: bodies.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from egress.heads import MAX_HEAD, end_of_head
from egress.hello import MAX_HELLO, Hello, parse_hello

_LINGER_S = 1.0
_LINGER_BYTES = 256 * 1024


class Connection:
    """A connected stream socket, which it owns from now on."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.unread = bytearray()

    async def head(self) -> bytes | None:
        """Return the next head, its empty line included; None if the peer closes instead of beginning one.

        Raises Malformed, ConnectionError if it closes within the head, OSError.
        """
        while (end := end_of_head(self.unread)) is None:
            if not await self._more(MAX_HEAD):
                if self.unread:
                    raise ConnectionResetError("the peer closed within a head")
                return None
        head = bytes(self.unread[:end])
        del self.unread[:end]
        return head

    async def begun(self) -> bool:
        """Wait for the first byte of what comes next; False if the peer closes instead."""
        return bool(self.unread) or await self._more(MAX_HEAD)

    async def hello(self) -> Hello:
        """Return the ClientHello that comes next; its bytes stay unread. Raises NotTls, ConnectionError, OSError."""
        while (found := parse_hello(self.unread)) is None:
            if not await self._more(MAX_HELLO):
                raise ConnectionResetError("the peer closed within its hello")
        return found

    async def send(self, data: bytes) -> None:
        """Send all of ``data``. Raises OSError."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.socket.send(rest) :]
            except BlockingIOError:
                await writable(self.socket)

    async def finish(self, data: bytes = b"") -> None:
        """Send ``data`` and close so that also a peer that is still sending gets it. Raises nothing; takes a second at most."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self.send(data)
                self.socket.shutdown(socket.SHUT_WR)
                # Closed with bytes unread, the peer is told that the connection was reset, and may not read the answer.
                left = _LINGER_BYTES
                self.unread.clear()
                while left > 0 and await self._more(_LINGER_BYTES):
                    left -= len(self.unread)
                    self.unread.clear()
        self.close()

    def has_ended(self) -> bool:
        """Whether the peer has closed, or sent what it was not asked for."""
        try:
            if not self.unread:
                self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """Close at once."""
        self.socket.close()

    async def _more(self, limit: int) -> bool:
        """Read up to ``limit`` unread bytes in all; False at the end."""
        while True:
            try:
                data = self.socket.recv(limit - len(self.unread))
                break
            except BlockingIOError:
                await readable(self.socket)
        self.unread += data
        return bool(data)


async def readable(connected: socket.socket) -> None:
    """Wait until there is something to read, or an end."""
    loop = asyncio.get_running_loop()
    await _ready(connected, loop.add_reader, loop.remove_reader)


async def writable(connected: socket.socket) -> None:
    """Wait until something can be written."""
    loop = asyncio.get_running_loop()
    await _ready(connected, loop.add_writer, loop.remove_writer)


async def _ready(connected: socket.socket, add: Callable[..., object], remove: Callable[[int], object]) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    number = connected.fileno()
    add(number, _done, ready)
    try:
        await ready
    finally:
        remove(number)


def _done(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def connect(packed: bytes, port: int) -> Connection:
    """Return a connection to exactly this address. Raises OSError."""
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            connecting.connect((socket.inet_ntop(family, packed), port))
        except BlockingIOError:
            await writable(connecting)
            if error := connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, "connect") from None
        return Connection(connecting)
    except BaseException:
        connecting.close()
        raise


def is_of_this_host(packed: bytes) -> bool:
    """Whether an interface of this host has the address: then the kernel would reach it from itself. Nothing is sent."""
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((text := socket.inet_ntop(family, packed), 9))
            return bool(asked.getsockname()[0] == text)
        except OSError:
            return False  # there is no way to it, so nothing to protect
