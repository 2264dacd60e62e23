"""``GET /v1/ws``: executions of one session over one socket, side by side.

Promises: events of an execution leave in order and once; a peer that reads slowly is waited for, and holds one batch of events
here; what the peer sends is bounded in size and in number; the end of a socket ends no execution.
Leaves to events.py: following a log; to exec.py: what a request may ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from tornado.iostream import IOStream, StreamClosedError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from interpreter import wire
from interpreter.errors import InvalidRequest, ServiceError, TooManyExecutions, UnknownField
from interpreter.executions.events import Event
from interpreter.executions.execution import Execution
from interpreter.http import strict_json
from interpreter.http.base import ApiHandler
from interpreter.http.events import follow
from interpreter.http.exec import exec_request
from interpreter.http.guard import offered_key
from interpreter.http.operations import Api
from interpreter.http.requests import quoted, read_values
from interpreter.tasks import Tasks

MAX_FRAME = 2**20
PING_S = 20.0
MAX_FOLLOWED = 100
"""Executions that one socket follows at a time."""
CLOSE_S = 2.0
SUBPROTOCOL = Subprotocol("cellbox")
"""What a page has to offer beside its key: a browser wants one of those that it offers to be chosen."""
_READ = 64 * 1024


class WebSocketHandler(ApiHandler):
    """Opens a socket."""

    def _offered_key(self) -> str | None:
        return offered_key(self.request.headers.get("Sec-WebSocket-Protocol"))

    async def on_get(self, query: wire.SocketQuery, _body: wire.NoBody) -> None:
        """Serve it to its end."""
        protocol = ServerProtocol(max_size=MAX_FRAME, select_subprotocol=_chosen)
        protocol.receive_data(_head(self))
        opening = next((event for event in protocol.events_received() if isinstance(event, Request)), None)
        if opening is None or "upgrade" not in self.request.headers.get("Connection", "").lower():
            raise InvalidRequest("This route is a WebSocket: send Connection: Upgrade and Upgrade: websocket.")
        response = protocol.accept(opening)
        if response.status_code != 101:
            raise InvalidRequest("This is no opening handshake of a WebSocket.")
        response.headers["X-Request-ID"] = self.request_id
        protocol.send_response(response)
        self.set_status(101)
        stream = cast("Any", self.request.connection).stream
        # Tornado neither reads nor writes here until this call has returned, and then finds the stream closed.
        with self.api.service.metrics.stream("websocket"):
            await Socket(self.api, stream, protocol, query).serve()


class Socket:
    """One socket. query: whose session it is of."""

    def __init__(self, api: Api, stream: IOStream, protocol: ServerProtocol, query: wire.SocketQuery) -> None:
        self._api = api
        self._stream = stream
        self._protocol = protocol
        self._query = query
        self._tasks = Tasks()
        self._sending = asyncio.Lock()
        self._followed: dict[str, Execution] = {}
        self._message = bytearray()
        self._heard = True
        self._pinged = False

    async def serve(self) -> None:
        """Do what the peer asks, until either side ends it."""
        self._api.sockets.add(self)
        ping = self._tasks.start(self._keep_alive(), name="websocket pings")
        try:
            await self._flush()
            self._api.service.warm(self._query.scope, self._query.session)
            while not self._protocol.close_expected():
                data = await self._stream.read_bytes(_READ, partial=True)
                self._heard = True
                self._protocol.receive_data(data)
                for frame in self._protocol.events_received():
                    await self._take(cast("Frame", frame))
                await self._flush()
        except StreamClosedError:
            pass  # Its executions go on.
        finally:
            self._api.sockets.discard(self)
            ping.cancel()
            await self._tasks.aclose(within_s=CLOSE_S)
            await self._hang_up()

    async def close(self, code: CloseCode) -> None:
        """End it and say why. May be called twice."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code)
        await self._hang_up()

    async def _hang_up(self) -> None:
        """Send what is left and close; read on for a moment, since a close with unread data would take the last words back."""
        with contextlib.suppress(StreamClosedError, TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_S):
                await self._flush()
                if self._stream.closed():
                    return
                self._stream.socket.shutdown(socket.SHUT_WR)
                while not self._stream.reading():
                    await self._stream.read_bytes(_READ, partial=True)
        self._stream.close()

    # --- in ---------------------------------------------------------------------------------------------------------

    async def _take(self, frame: Frame) -> None:
        """Act on one frame. The protocol itself answers pings and closes, and bounds messages."""
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        self._message += frame.data
        if not frame.fin:
            return
        message, self._message = self._message, bytearray()
        name: str | None = None
        try:
            values = strict_json.parse(message)
            name = values.get("id") if isinstance(values.get("id"), str) else None
            await self._do(values)
        except ServiceError as error:
            self._api.service.metrics.refused(error.code)
            await self._say({"type": "refused", "id": name, "code": error.code, "message": str(error)})

    async def _do(self, values: dict[str, Any]) -> None:
        kind = values.pop("type", None)
        act = self._ACTS.get(kind) if isinstance(kind, str) else None
        if act is None:
            raise InvalidRequest(f"type must be one of {', '.join(self._ACTS)}.")
        await act(self, values)

    async def _execute(self, values: dict[str, Any]) -> None:
        name = _name(values)
        for field in ("scope", "session", "detach"):
            if field in values:
                raise UnknownField(f"There is no field {quoted(field)} here; the socket has its scope and session.")
        self._check_room(name)
        body = read_values(wire.ExecBody, values | {"scope": self._query.scope, "session": self._query.session})
        request = replace(exec_request(body, self._api.limits), stream=True)
        await self._api.service.recall(request.execution_id, request.scope)
        self._follow(name, self._api.service.submit(request), -1)

    async def _attach(self, values: dict[str, Any]) -> None:
        body = read_values(wire.AttachMessage, values)
        name = body.id or body.execution_id
        self._check_room(name)
        await self._api.service.recall(body.execution_id, self._query.scope)
        execution = self._api.service.execution(body.execution_id, self._query.scope)
        self._follow(name, execution, -1 if body.after is None else body.after)

    async def _input(self, values: dict[str, Any]) -> None:
        execution = self._named(_name(values))
        await self._api.service.input(execution, read_values(wire.InputBody, values).text)

    async def _interrupt(self, values: dict[str, Any]) -> None:
        execution = self._named(_name(values))
        read_values(wire.NoBody, values)
        self._api.service.cancel(execution)

    async def _ping(self, values: dict[str, Any]) -> None:
        await self._say({"type": "pong", **({"id": _name(values)} if "id" in values else {})})

    _ACTS: ClassVar[dict[str, Callable[[Socket, dict[str, Any]], Coroutine[Any, Any, None]]]] = {
        "execute": _execute,
        "input": _input,
        "interrupt": _interrupt,
        "attach": _attach,
        "ping": _ping,
    }

    def _named(self, name: str) -> Execution:
        if (execution := self._followed.get(name)) is None:
            raise InvalidRequest(f"Nothing of the id {quoted(name)} runs on this socket.")
        return execution

    def _check_room(self, name: str) -> None:
        if name in self._followed:
            raise InvalidRequest(f"The id {quoted(name)} is in use on this socket.")
        if len(self._followed) >= MAX_FOLLOWED:
            raise TooManyExecutions(f"One socket follows {MAX_FOLLOWED} executions at a time.", retry_after_s=1.0)

    # --- out --------------------------------------------------------------------------------------------------------

    def _follow(self, name: str, execution: Execution, after: int) -> None:
        self._followed[name] = execution
        self._tasks.start(
            self._send_events(name, execution, after), name="websocket events", expected=StreamClosedError
        )

    async def _send_events(self, name: str, execution: Execution, after: int) -> None:
        head = b'{"id":%s,' % json.dumps(name).encode()

        def send(batch: list[Event]) -> Awaitable[None]:
            self._put(batch, head)
            if batch and batch[-1].type == "finished":
                self._followed.pop(name, None)  # before anybody can answer it
            return self._flush()

        log, api = execution.events, self._api
        try:
            await follow(log, send, after=after, ping_s=PING_S, reading=api.reading, sending=self._sending)
        finally:
            self._followed.pop(name, None)

    def _put(self, batch: Iterable[Event], head: bytes) -> None:
        for event in batch:
            if self._protocol.state is State.OPEN:
                self._protocol.send_text(head + event.body[1:])

    async def _say(self, message: dict[str, Any]) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_text(json.dumps(message).encode())
            await self._flush()

    async def _flush(self) -> None:
        """Send what there is to be sent, and wait until the peer has taken it. Raises StreamClosedError."""
        if data := b"".join(self._protocol.data_to_send()):
            await self._stream.write(data)

    async def _keep_alive(self) -> None:
        """Ping, so that whatever lies between keeps the connection, and end it where nobody answers."""
        while True:
            self._heard = False
            await asyncio.sleep(PING_S)
            if self._protocol.state is not State.OPEN:
                return
            if not self._heard and self._pinged:
                self._stream.close()
                return
            self._pinged = not self._heard
            self._protocol.send_ping(b"")
            with contextlib.suppress(StreamClosedError):
                await self._flush()


async def close_all(sockets: Iterable[Any]) -> None:
    """End all of them, since the service goes away."""
    await asyncio.gather(*(one.close(CloseCode.GOING_AWAY) for one in list(sockets)))


def _chosen(_protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return SUBPROTOCOL if SUBPROTOCOL in offered else None


def _name(values: dict[str, Any]) -> str:
    """Take the id of a message out of it. Raises InvalidRequest."""
    name = values.pop("id", None)
    if not isinstance(name, str) or not 1 <= len(name) <= 64:
        raise InvalidRequest("id must be a string of 1 to 64 characters.")
    return name


def _head(handler: ApiHandler) -> bytes:
    """Return the head of a request as it came, for the protocol to judge."""
    lines = [f"GET {handler.request.uri} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in handler.request.headers.get_all()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
