"""One connection of a sandbox, from its first byte to its end: requests of plain HTTP, or a tunnel.

Promises: nothing is connected to that was not judged just before; each request is judged anew; what was refused is told before
the client is; both ends are closed when ``serve`` returns, also when it is cancelled.
Leaves to gate.py: what may be reached. Leaves to heads.py and bodies.py: what is taken. Leaves to listeners.py: who may be
connected, and who has been idle for too long (``expire``) or when rules have changed (``judge_again``).
"""

from __future__ import annotations

import asyncio

from egress.bodies import body
from egress.connection import Connection, connect
from egress.gate import Gate, Refused, Unreachable
from egress.heads import (
    Length,
    Malformed,
    Request,
    Response,
    Target,
    absolute_target,
    connect_target,
    expects_continue,
    outgoing_request,
    outgoing_response,
    own_response,
    parse_request,
    parse_response,
    request_length,
    response_length,
    tunnelled_target,
)
from egress.hello import NotTls
from egress.names import Host
from egress.policy import Denial
from egress.relay import SinkBroken, relay, relay_both

_PLAIN_PORT = 80
"""Inside CONNECT to it there is plain HTTP: some clients tunnel everything."""

_ATTEMPT_S = 2.5
"""For one of several addresses, so that one that swallows everything leaves time for the others."""

_ALERT_ACCESS_DENIED = b"\x15\x03\x03\x00\x02\x02\x31"
"""A TLS alert, fatal: the client says why it was cut in its own words."""

_AGAIN = frozenset({"GET", "HEAD", "OPTIONS"})
"""Sent once more where a kept connection turns out to be closed."""


class _OriginGone(Exception):
    """The origin closed before it answered anything."""


class Visit:
    """A connection. reached: where to, as judged; None before that."""

    def __init__(self, client: Connection, gate: Gate) -> None:
        self._client = client
        self._gate = gate
        self._limits = gate.limits
        self._loop = asyncio.get_running_loop()
        self._origin: Connection | None = None
        self._unanswered = False  # a request was read and nothing said to it
        self._expired = False
        self._task: asyncio.Task[None] | None = None
        self.reached: tuple[Host, int, bytes] | None = None
        self.moved_at = self._loop.time()

    async def serve(self) -> None:
        """Serve until one end has closed. Raises nothing but CancelledError."""
        self._task = asyncio.current_task()
        try:
            await self._serve()
        finally:
            self._client.close()
            self._drop_origin()

    def expire(self) -> None:
        """It has been idle for too long: end it."""
        self._expired = True
        self._end()

    def judge_again(self) -> Denial | None:
        """The rules have changed: end it if what it has reached is not allowed any longer, and return why."""
        denial = None if self.reached is None else self._gate.judge(*self.reached)
        if denial is not None:
            self.reached = None
            self._end()
        return denial

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _serve(self) -> None:
        try:
            await self._requests(None)
        except Refused as refused:
            await self._gate.refuse(refused.denial)
            await self._answer(403, refused.denial.sentence)
        except Malformed as error:
            self._gate.malformed(str(error))
            await self._answer(error.status, f"sandbox egress: {error}")
        except Unreachable as error:
            self._gate.failed(str(error))
            await self._answer(error.status, str(error))
        except (OSError, SinkBroken):
            pass  # an end is gone: there is nobody to tell
        except asyncio.CancelledError:
            if not self._expired:
                raise
            if self._task is not None:
                self._task.uncancel()
            if self._unanswered:
                self._gate.failed("the host took too long")
                await self._answer(504, "sandbox egress failed: the host took too long")

    async def _answer(self, status: int, sentence: str) -> None:
        if self._unanswered:
            await self._client.finish(own_response(status, sentence))

    # --- plain HTTP -----------------------------------------------------------------------------------------------------

    async def _requests(self, tunnel: tuple[Host, int] | None) -> None:
        """Serve requests one after the other. tunnel: the only place they may go to."""
        while (request := await self._request()) is not None:
            if request.method == "CONNECT":
                if tunnel is not None:
                    raise Malformed("there is a tunnel already")
                return await self._connect(request)
            target = absolute_target(request) if tunnel is None else tunnelled_target(request, *tunnel)
            if not await self._forward(request, target):
                if self._client.has_ended():
                    await self._client.finish()
                break
            if not await self._client.begun():
                break
            self._moved()
        return None

    async def _request(self) -> Request | None:
        self._unanswered = True
        try:
            async with asyncio.timeout(self._limits.head_s):
                head = await self._client.head()
        except TimeoutError as error:
            if not self._client.unread:
                return None
            raise Malformed("the head took too long", 408) from error
        return None if head is None else parse_request(head)

    async def _forward(self, request: Request, target: Target) -> bool:
        """Have one request answered; return whether the connection can take another."""
        length = request_length(request)
        expects_continue(request)
        # A kept connection may just be closing. Then the request is sent once more, which not all can be.
        again = length == 0 and request.method in _AGAIN
        origin, kept = await self._reach(target.host, target.port, again=again)
        try:
            try:
                return await self._exchange(origin, request, target, length)
            except _OriginGone:
                if not kept:
                    raise
            origin, _ = await self._reach(target.host, target.port)
            return await self._exchange(origin, request, target, length)
        except _OriginGone as error:
            raise Unreachable(f"host {target.host.text} closed the connection without an answer") from error

    async def _exchange(self, origin: Connection, request: Request, target: Target, length: Length) -> bool:
        try:
            await origin.send(outgoing_request(request, target, length))
        except OSError as error:
            raise _OriginGone from error
        if length == 0:
            return await self._receive(origin, request, target)
        try:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send(origin, length), name="request body")
                keeps = await self._receive(origin, request, target)
                if not sending.done():
                    sending.cancel()  # answered before it was heard out: neither end can be used again
                    return False
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return keeps and sending.result()

    async def _send(self, origin: Connection, length: Length) -> bool:
        """Send the request's body; return whether the origin took all of it. What it says instead is its answer."""
        try:
            await relay(self._client, origin, body(length), self._moved_out)
        except SinkBroken:
            return False
        return True

    async def _receive(self, origin: Connection, request: Request, target: Target) -> bool:
        try:
            response = await self._response(request, origin)
            length = response_length(response, request.method)
        except Malformed as error:
            raise Unreachable(f"the answer of host {target.host.text} is not taken: {error}") from error
        plain = request.old and length == "chunked"
        keeps = request.keeps and length != "close" and not plain and not self._client.has_ended()
        self._unanswered = False
        head = outgoing_response(response, length, method=request.method, old=request.old, keeps=keeps)
        await self._client.send(head)
        if length != 0:
            try:
                await relay(origin, self._client, body(length, plain=request.old), self._moved_in)
            except Malformed:
                return False  # the client sees that it was cut
        if not response.keeps or length == "close":
            self._drop_origin()
        return keeps

    async def _response(self, request: Request, origin: Connection) -> Response:
        """Return the head of the final answer; those before it are passed on."""
        begun = False
        while True:
            try:
                if not await origin.begun():
                    raise ConnectionResetError
                self._moved()
                async with asyncio.timeout(self._limits.head_s):
                    head = await origin.head()
            except TimeoutError as error:
                raise Malformed("its head took too long") from error
            except OSError as error:
                if begun:
                    raise Malformed("it ended within") from error
                raise _OriginGone from error
            response = parse_response(head or b"")
            if response.status >= 200:
                return response
            if response.status == 101:
                raise Malformed("it changes the protocol")
            begun = True
            if not request.old:
                await self._client.send(outgoing_response(response, 0, method=request.method, old=False, keeps=True))

    # --- tunnels --------------------------------------------------------------------------------------------------------

    async def _connect(self, request: Request) -> None:
        host, port = connect_target(request)
        origin, _ = await self._reach(host, port)
        self._unanswered = False
        await self._client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        if port == _PLAIN_PORT:
            if await self._client.begun():
                await self._requests((host, port))
            return
        if (denial := await self._judge_hello(host, port)) is not None:
            await self._gate.refuse(denial)
            await self._client.finish(_ALERT_ACCESS_DENIED)
            return
        await relay_both(self._client, origin, moved_out=self._moved_out, moved_in=self._moved_in)

    async def _judge_hello(self, host: Host, port: int) -> Denial | None:
        """Return why what the client begins with is not TLS to the host it was let through to, or None."""
        try:
            async with asyncio.timeout(self._limits.hello_s):
                server = (await self._client.hello()).server
        except (NotTls, TimeoutError):
            return Denial("not_tls", host.text, port)
        if server is None:
            return None if host.packed is not None else Denial("no_server_name", host.text, port)
        return None if server == host else Denial("other_server_name", host.text, port)

    # --- origins --------------------------------------------------------------------------------------------------------

    async def _reach(self, host: Host, port: int, *, again: bool = False) -> tuple[Connection, bool]:
        """Return a connection to where is allowed to go, and whether it is the one that was there: only if ``again``.

        Raises Refused, Unreachable.
        """
        origin = self._origin if again and self._goes_on(host, port) else None
        if origin is not None:
            self._gate.allow(host, port)
            return origin, True
        self._drop_origin()
        addresses = await self._gate.way(host, port)
        self._gate.allow(host, port)
        try:
            async with asyncio.timeout(self._limits.connect_s):
                self._origin = await self._first(host, port, addresses)
        except TimeoutError as error:
            raise Unreachable(f"host {host.text} port {port} took too long to connect", 504) from error
        self._moved()
        return self._origin, False

    def _goes_on(self, host: Host, port: int) -> bool:
        """Whether the connection that was there leads there, is open, and is still allowed."""
        if self._origin is None or self.reached is None or (host, port) != self.reached[:2]:
            return False
        return not self._origin.has_ended() and self._gate.judge(*self.reached) is None

    async def _first(self, host: Host, port: int, addresses: list[bytes]) -> Connection:
        for number, packed in enumerate(addresses, 1):
            if denial := self._gate.judge(host, port, packed):
                raise Refused(denial)  # the policy has changed meanwhile
            self.reached = (host, port, packed)
            try:
                async with asyncio.timeout(_ATTEMPT_S if number < len(addresses) else None):
                    return await connect(packed, port)
            except (OSError, TimeoutError) as error:
                last = error
        raise Unreachable(f"host {host.text} port {port} cannot be connected to") from last

    def _drop_origin(self) -> None:
        if self._origin is not None:
            self._origin.close()
        self._origin = self.reached = None

    def _moved(self) -> None:
        self.moved_at = self._loop.time()

    def _moved_in(self, count: int) -> None:
        self.moved_at = self._loop.time()
        self._gate.counts.bytes_in += count

    def _moved_out(self, count: int) -> None:
        self.moved_at = self._loop.time()
        self._gate.counts.bytes_out += count
