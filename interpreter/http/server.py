"""Connections: accepted, limited, and answered in JSON even where no handler is reached.

Promises: a head comes whole within ``head_timeout_s`` of its first byte, an idle connection lives ``idle_timeout_s``, one
whose peer reads nothing of its answer ``stall_timeout_s``; all answers that wait to be read are ``max_unread_bytes`` together,
one more of them aside; an address has at most ``max_per_address`` connections, all together ``max_connections``, and where
there is no descriptor for one more it is told so; what is not HTTP gets the JSON error of any bad request.
Leaves to base.py: the body, its limit and its time, since they depend on the route.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import select
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream, StreamClosedError, UnsatisfiableReadError

from interpreter.errors import InvalidRequest, ServiceError
from interpreter.http.accept import Acceptor
from interpreter.http.errors import HeadTooLarge, RequestTimeout, TooManyConnections, retry_after_s, status_of

log = logging.getLogger("cellbox.http")

_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
}
_TORNADOS_REFUSAL = b"HTTP/1.1 400 Bad Request\r\n\r\n"
_NEVER = 2**62
_SEND_BYTES, _SEND_WAIT_MS = 16 * 2**20, 2
"""What a thread sends of a file before others have their turn, and how long it waits for a peer that will take more."""
_Sent = tuple[int, Literal["sent", "full", "ended"]]
_RunInThread = Callable[[Callable[[], _Sent]], Awaitable[_Sent]]
Refusal = Callable[[str, int], None]
"""Told of an answer that no handler gave: its code and status."""
FEWEST_CONNECTIONS = 16
"""An operator must be able to look at a service however few descriptors it has."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Seconds, bytes and counts. body_timeout_s: for a whole body. stall_timeout_s: in which nothing of an answer is read."""

    max_head_bytes: int = 32 * 1024
    max_headers: int = 100
    head_timeout_s: float = 10.0
    body_timeout_s: float = 120.0
    idle_timeout_s: float = 75.0
    stall_timeout_s: float = 60.0
    max_per_address: int = 1024
    max_connections: int = 4096
    max_unread_bytes: int = 256 * 2**20


def error_body(error: ServiceError) -> bytes:
    """Return the JSON of ``error``, as every answer that is not 2xx has it."""
    return json.dumps({"code": error.code, "message": str(error), "retryable": error.retryable}).encode()


def bare_answer(error: ServiceError) -> bytes:
    """Return a whole HTTP answer for ``error``, for a request that no handler has. The connection ends after it."""
    status = status_of(error)
    body = error_body(error)
    retry = retry_after_s(error)
    head = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"X-Request-ID: {secrets.token_hex(16)}",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
        "Connection: close",
        *([] if retry is None else [f"Retry-After: {retry:.0f}"]),
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


class ApiStream(IOStream):
    """A connection that times its heads and says in JSON why it ends."""

    def __init__(
        self,
        connection: socket.socket,
        limits: ConnectionLimits,
        on_unread: Callable[[ApiStream], None],
        on_refusal: Refusal,
        **kwargs: Any,
    ) -> None:
        self._limits = limits
        self._on_unread = on_unread
        self._on_refusal = on_refusal
        self._in_head = False
        self.at_rest = asyncio.Event()
        """Set while no request is being read or answered, and once it is closed."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._room: asyncio.Future[None] | None = None
        self.progress_at = 0.0
        """When the peer has last read something, or was first asked to."""
        super().__init__(connection, **kwargs)

    def set_nodelay(self, value: bool) -> None:
        """Change nothing: small packets leave at once, always, which was set when the connection was accepted."""

    def read_until_regex(self, regex: bytes, max_bytes: int | None = None) -> asyncio.Future[bytes]:
        """Read the head of the next request; Tornado reads nothing else this way."""
        self._in_head = True
        self.at_rest.set()
        self._idle_timer = asyncio.get_running_loop().call_later(self._limits.idle_timeout_s, self.close)
        future: asyncio.Future[bytes] = super().read_until_regex(regex, max_bytes)  # type: ignore[assignment]  # Any result
        future.add_done_callback(self._head_ended)
        return future

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """Read; the first bytes of a head start its clock."""
        count = super().read_from_fd(buf)
        if count and self._in_head and self._head_timer is None:
            self._stop_head_timer()
            self.at_rest.clear()
            loop = asyncio.get_running_loop()
            self._head_timer = loop.call_later(self._limits.head_timeout_s, self._head_is_late)
        return count

    def write(self, data: bytes | memoryview) -> asyncio.Future[None]:
        """Write; Tornado's own refusal of what is not HTTP becomes ours."""
        if data == _TORNADOS_REFUSAL:
            self._on_refusal(InvalidRequest.code, 400)
            data = bare_answer(InvalidRequest("This is not a well-formed HTTP/1.1 request."))
        written = super().write(data)
        if self._stall_timer is None and not written.done():
            loop = asyncio.get_running_loop()
            self.progress_at = loop.time()
            self._stall_timer = loop.call_later(self._limits.stall_timeout_s, self._look_for_a_stall)
        if not written.done():
            self._on_unread(self)
        return written

    @property
    def unread_bytes(self) -> int:
        """How much of its answers waits for the peer."""
        return 0 if self.closed() else len(self._write_buffer)

    def write_to_fd(self, data: memoryview) -> int:
        """Write what the peer takes now."""
        count = super().write_to_fd(data)
        if count:
            self.progress_at = asyncio.get_running_loop().time()
        return count

    async def send_file(self, source: int, start: int, stop: int, run: _RunInThread) -> int:
        """Send a part of an open file without copying it, after all that was written; return how much was there of it.

        run: runs what blocks in a thread. A peer that takes nothing is waited for here and not in a thread, as long as one that
        reads nothing of another answer. Raises StreamClosedError.
        """
        at = start
        with self.socket.dup() as connection:
            while at < stop:
                self._check_closed()
                try:
                    sent, why = await run(partial(_send_now, connection, source, at, stop))
                except ConnectionError as error:  # the peer has gone, which is no fault of ours
                    self.close()
                    raise StreamClosedError(error) from error
                at += sent
                if why == "ended":
                    break
                if why == "full":
                    await self._taken(connection)
        return at - start

    async def _taken(self, connection: socket.socket) -> None:
        """Return once the peer has taken something. connection: of a descriptor that only this wait uses."""
        loop = asyncio.get_running_loop()
        self._room = loop.create_future()
        loop.add_writer(connection, self._has_room)
        try:
            async with asyncio.timeout(self._limits.stall_timeout_s):
                await self._room
        except TimeoutError:
            self._on_refusal("answer_not_read", 0)
            self.close()
        finally:
            loop.remove_writer(connection)
            self._room = None

    def _has_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def close(self, exc_info: Any = False) -> None:
        """Close; a head over its limit is told so first."""
        if self._in_head and isinstance(exc_info, UnsatisfiableReadError):
            self._say(HeadTooLarge(f"The head of the request is over {self._limits.max_head_bytes} bytes."))
        self.at_rest.set()
        self._has_room()
        self._stop_head_timer()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().close(exc_info)
        if self.error is not None:
            self.error.__traceback__ = None  # its frames hold the answer that was being written, in a cycle

    def _look_for_a_stall(self) -> None:
        self._stall_timer = None
        if self.closed() or not self.writing():
            return
        loop = asyncio.get_running_loop()
        left_s = self.progress_at + self._limits.stall_timeout_s - loop.time()
        if left_s > 0:
            self._stall_timer = loop.call_later(left_s, self._look_for_a_stall)
            return
        self._on_refusal("answer_not_read", 0)
        self.close()

    def _head_is_late(self) -> None:
        self._say(RequestTimeout("The head of the request did not come in time."))
        self.close()

    def _say(self, error: ServiceError) -> None:
        self._on_refusal(error.code, status_of(error))
        self._in_head = False
        if not self.closed():
            last_words(self.socket, error)

    def _head_ended(self, _future: object) -> None:
        self._in_head = False
        if not self.closed():
            self.at_rest.clear()
        self._stop_head_timer()

    def _stop_head_timer(self) -> None:
        for timer in (self._idle_timer, self._head_timer):
            if timer is not None:
                timer.cancel()
        self._idle_timer = self._head_timer = None


def _send_now(connection: socket.socket, source: int, at: int, stop: int) -> _Sent:
    """Send of ``source`` what the peer takes in a few milliseconds; return how much it was, and why no more."""
    begun, stop = at, min(stop, at + _SEND_BYTES)
    ready = select.poll()
    ready.register(connection, select.POLLOUT)
    while at < stop:
        try:
            count = os.sendfile(connection.fileno(), source, at, stop - at)
        except BlockingIOError:
            if not ready.poll(_SEND_WAIT_MS):
                return at - begun, "full"
            continue
        if count == 0:
            return at - begun, "ended"
        at += count
    return at - begun, "sent"


def last_words(connection: socket.socket, error: ServiceError) -> None:
    """Send the answer for ``error`` as far as it goes without waiting."""
    try:
        connection.send(bare_answer(error), socket.MSG_DONTWAIT)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # The peer is gone; there is nobody to tell.


def peer_of(connection: Any) -> str:
    """Return the address of a connection's peer; ``unix`` for a local one. connection: one of Tornado's."""
    context = connection.context
    internet = context.address_family in (socket.AF_INET, socket.AF_INET6)
    return str(context.remote_ip) if internet else "unix"


class ApiServer(HTTPServer):
    """Tornado's server with our limits on connections."""

    def initialize(self, application: Any, limits: ConnectionLimits) -> None:  # type: ignore[override]  # Configurable passes them
        """Serve ``application``. Bodies are limited by the handlers, which know how to refuse them in JSON."""
        self._limits = limits
        self._count_refusal = application.settings["api"].service.metrics.refused
        self._addresses: Counter[str] = Counter()
        self._streams: set[ApiStream] = set()
        super().initialize(
            application,
            max_header_size=limits.max_head_bytes,
            max_body_size=_NEVER,
            max_buffer_size=2 * 2**20,
        )
        # The stream has the time of a head, the handler that of a body. Tornado's own clocks take two turns of the loop for each.
        self.conn_params.header_timeout = self.conn_params.body_timeout = None

    @property
    def connections(self) -> int:
        """How many are open."""
        return self._addresses.total()

    def ports(self) -> Iterable[int]:
        """The ports it listens on, those of Unix sockets left out."""
        for listener in self._sockets.values():
            if listener.family in (socket.AF_INET, socket.AF_INET6):
                yield listener.getsockname()[1]

    async def at_rest(self, *, within_s: float) -> bool:
        """Wait until every answer has been sent whole; False if some has not been within that time."""
        try:
            async with asyncio.timeout(within_s):
                for stream in list(self._streams):
                    await stream.at_rest.wait()
        except TimeoutError:
            return False
        return True

    def add_sockets(self, sockets: Iterable[socket.socket]) -> None:
        """Accept on ``sockets``, and go on where Tornado would spin: when there is no descriptor left."""
        for listening in sockets:
            self._sockets[listening.fileno()] = listening
            acceptor = Acceptor(listening, take=self._handle_connection, refuse=self._no_descriptor)
            self._handlers[listening.fileno()] = acceptor.close

    # Tornado has no public place between accepting and making its stream; the count and the stream belong there.
    def _handle_connection(self, connection: socket.socket, address: Any) -> None:
        peer = str(address[0]) if connection.family in (socket.AF_INET, socket.AF_INET6) else "unix"
        limits = self._limits
        if self._addresses[peer] >= limits.max_per_address or self.connections >= limits.max_connections:
            self._refused(TooManyConnections.code, 429)
            last_words(connection, TooManyConnections("As many connections as are taken are open; close some."))
            connection.close()
            return
        try:
            if peer != "unix":
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # A peer that vanished without a word is noticed, and what it waits for is cancelled.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            stream = ApiStream(
                connection,
                limits,
                self._make_room,
                self._refused,
                max_buffer_size=self.max_buffer_size,
                read_chunk_size=self.read_chunk_size,
            )
        except OSError:
            connection.close()
            return
        self._addresses[peer] += 1
        self._streams.add(stream)
        self.handle_stream(stream, address)

    def _make_room(self, newest: ApiStream) -> None:
        """Close the connections that have read nothing for longest, until what waits to be read is within its limit."""
        waiting = sorted((s for s in self._streams if s.writing() and s is not newest), key=lambda s: s.progress_at)
        over = sum(stream.unread_bytes for stream in waiting) - self._limits.max_unread_bytes
        for stream in waiting:
            if over <= 0:
                return
            over -= stream.unread_bytes
            self._refused("answer_not_read", 0)
            stream.close()

    def _no_descriptor(self, connection: socket.socket) -> None:
        self._refused(TooManyConnections.code, 429)
        last_words(
            connection,
            TooManyConnections("The service has no descriptor left for a connection: its limit of open files."),
        )

    def _refused(self, code: str, status: int) -> None:
        """Log and count an answer that no handler gave."""
        log.info("request", extra={"method": "-", "route": "-", "status": status, "code": code})
        self._count_refusal(code)

    def on_close(self, server_conn: Any) -> None:
        """Count a connection as gone."""
        super().on_close(server_conn)
        self._streams.discard(server_conn.stream)
        peer = peer_of(server_conn)
        self._addresses[peer] -= 1
        if not self._addresses[peer]:
            del self._addresses[peer]
