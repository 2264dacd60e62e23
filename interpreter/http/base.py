"""What every route has in common: who may call, the body and its limits, answers and errors in JSON, one log line.

Promises: deny by default: a handler's method runs only for a request with an accepted Host, Origin and key, unless its
operation says ``public``; nothing but JSON leaves, whatever fails; the body is whole, within its limit and its time.
Leaves to the handlers: ``on_get``, ``on_post`` and ``on_delete`` with the names from the path, the query and the body.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, ClassVar

from tornado.httputil import HTTPServerRequest
from tornado.web import HTTPError, RequestHandler, stream_request_body

from interpreter import wire
from interpreter.errors import (
    BodyTooLarge,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    RouteNotFound,
    ServiceError,
    ShuttingDown,
    Unauthorized,
)
from interpreter.executions.model import HEAVY_JSON, Answer
from interpreter.http.body import Body, too_large
from interpreter.http.errors import (
    HeadTooLarge,
    RangeNotSatisfiable,
    RequestTimeout,
    UnsupportedEncoding,
    exhausted,
    retry_after_s,
    status_of,
)
from interpreter.http.operations import Api, Operation, Route
from interpreter.http.requests import read_body, read_query
from interpreter.http.server import error_body, peer_of
from interpreter.logs import REQUEST_ID

log = logging.getLogger("cellbox.http")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ALLOWED_HEADERS = (
    "X-API-Key, Authorization, Content-Type, X-Request-ID, Last-Event-ID, Range, If-Range, If-Match, If-None-Match, "
    "If-Modified-Since"
)
_EXPOSED_HEADERS = "X-Request-ID, Retry-After, ETag, Content-Range, Accept-Ranges, Content-Disposition"
_NO_ROUTE = "No route has this path; GET /docs shows those there are, GET /openapi.json describes them."
LINGER_S = 2.0
"""For which a client that still sends a refused body is read, so that it can read its answer: a close with unread data
resets the connection, and the answer would be lost."""


@stream_request_body
class ApiHandler(RequestHandler):
    """Base of all handlers. ``route`` is None where no route has the path."""

    CHECKED_NAMES: ClassVar[tuple[str, ...]] = ("scope", "session", "execution_id")

    def initialize(self, route: Route | None = None) -> None:
        """Take the route and start empty."""
        self.route = route
        self.operation: Operation | None = None
        self._body = Body(wire.MAX_BODY_BYTES, self.api.bodies)
        self._refusal: ServiceError | None = None
        self._admitted = False
        self._answered = False
        self._timers: list[asyncio.TimerHandle] = []
        self._when_gone: Callable[[], None] | None = None
        self._code = "-"

    @property
    def api(self) -> Api:
        """What the handlers share."""
        api: Api = self.application.settings["api"]
        return api

    @property
    def request_id(self) -> str:
        """The caller's id of this request if it is a sane one, else one of ours."""
        request: Any = self.request
        if not hasattr(request, "id"):
            given = self.request.headers.get("X-Request-ID", "")
            request.id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        return str(request.id)

    # --- in ---------------------------------------------------------------------------------------------------------

    def prepare(self) -> Awaitable[None] | None:
        """Decide on the head alone whether the call may go on, and how long its body may take."""
        REQUEST_ID.set(self.request_id)
        headers = self.request.headers
        length = headers.get("Content-Length", "0")
        try:
            self._admit()
            if sum(1 for _ in headers.get_all()) > self.api.connections.max_headers:
                raise HeadTooLarge(f"The request has more than {self.api.connections.max_headers} headers.")
            self.operation = self._find_operation()
            if self.api.draining and not self.operation.while_draining:
                raise ShuttingDown("The service is stopping; send the call again in a moment.")
            if headers.get("Content-Encoding", "identity").lower() not in ("identity", ""):
                raise UnsupportedEncoding("Send the body without a Content-Encoding.")
            limit = wire.MAX_BODY_BYTES if self.operation.takes is None else self.api.limits.max_upload_bytes
            if _bytes(length) > limit:
                raise too_large(limit)
        except ServiceError as error:
            self._refuse(error)
        if length != "0" or "Transfer-Encoding" in headers:
            self._later(self.api.connections.body_timeout_s, self._body_is_late)
        return None

    def _refuse(self, error: ServiceError) -> None:
        """Have the call answered with ``error`` after its body has been read and dropped: before that, the connection would have
        to be closed, which is done where the body is long, or waits to be asked for."""
        self._refusal = error
        self._body.drop()
        headers = self.request.headers
        if "Expect" in headers:
            raise error
        if isinstance(error, BodyTooLarge) or _bytes(headers.get("Content-Length", "0")) > wire.MAX_BODY_BYTES:
            self._refuse_early(error)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Keep a piece of the body, or drop it where the call is refused already."""
        try:
            self._body.add(chunk)
        except ServiceError as error:
            self._refuse_early(error)
        if self._body.received > 2 * wire.MAX_BODY_BYTES:
            if self._refusal is None or self._answered:
                self._hang_up()
            else:
                self._refuse_early(self._refusal)
        return None

    async def _serve(self, *names: str) -> None:
        self._stop_timers()
        if self._answered:
            self._hang_up()
            return
        if self._refusal is not None:
            raise self._refusal
        if self.operation is None or self.route is None:
            raise RouteNotFound(_NO_ROUTE)
        for name, value in zip(self.route.names, names, strict=True):
            if name in self.CHECKED_NAMES and not re.fullmatch(wire.NAME, value):
                raise InvalidRequest(f"{name} {wire.NAME_RULE}.")
        query = read_query(self.operation.query, self.request.query)
        body = wire.NoBody() if self.operation.takes is not None else read_body(self.operation.body, self._body.data)
        self._body.data = bytearray()
        method = "get" if self.request.method == "HEAD" else str(self.request.method).lower()
        call: Callable[..., Awaitable[None]] = getattr(self, f"on_{method}")
        await call(*names, query, body)

    get = head = post = put = patch = delete = _serve

    def options(self, *_names: str) -> None:
        """Answer the question that browsers ask before they call from a listed origin."""
        self._stop_timers()
        if self._refusal is not None:
            raise self._refusal
        self.set_status(204)
        self.set_header("Access-Control-Allow-Methods", self.route.allow if self.route is not None else "")
        self.set_header("Access-Control-Allow-Headers", _ALLOWED_HEADERS)
        self.set_header("Access-Control-Max-Age", "600")
        self.finish()

    def _admit(self) -> None:
        """Raise ServiceError unless the head may call. Done for everything, also for what no route or method has."""
        headers, guard = self.request.headers, self.api.guard
        host = headers.get("Host")
        guard.check_host(host)
        guard.check_origin(headers.get("Origin"), host)
        method = str(self.request.method)
        operation = self.route.operations.get("GET" if method == "HEAD" else method) if self.route else None
        if not (operation is not None and operation.public) and not self._is_preflight():
            guard.check_key(headers.get("X-API-Key"), headers.get("Authorization"), self._offered_key())
        self._admitted = True

    def _offered_key(self) -> str | None:
        """The key of the call where it came in neither of the two headers, on a route that has another way."""
        return None

    def _is_preflight(self) -> bool:
        headers = self.request.headers
        return (
            self.request.method == "OPTIONS"
            and self.route is not None
            and "Access-Control-Request-Method" in headers
            and self.api.guard.is_listed(headers.get("Origin"))
        )

    def _find_operation(self) -> Operation:
        if self.route is None:
            raise RouteNotFound(_NO_ROUTE)
        if self._is_preflight():
            return Operation(summary="", while_draining=True)
        method = str(self.request.method)
        operation = self.route.operations.get("GET" if method == "HEAD" else method)
        if operation is None:
            raise MethodNotAllowed(f"This route knows {self.route.allow}.{self.route.hint}")
        return operation

    # --- out --------------------------------------------------------------------------------------------------------

    def set_default_headers(self) -> None:
        """Say what holds for every answer."""
        self._headers.clear()
        self.set_header("Content-Type", "application/json")
        self.set_header("X-Request-ID", self.request_id)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")
        origin = self.request.headers.get("Origin")
        if origin is not None:
            self.set_header("Vary", "Origin")
            if self.api.guard.is_listed(origin):
                self.set_header("Access-Control-Allow-Origin", origin)
                self.set_header("Access-Control-Expose-Headers", _EXPOSED_HEADERS)

    def compute_etag(self) -> None:
        """Make no ETag: answers are not cached, and hashing them costs."""

    def send(self, body: bytes | Mapping[str, Any], status: int = 200) -> None:
        """Answer with JSON: bytes as they are, or an object."""
        self.set_status(status)
        self.finish(body if isinstance(body, bytes) else json.dumps(body).encode())

    async def send_answer(self, answer: Answer, *, before: bytes = b"") -> None:
        """Answer with that of an execution. before: the first fields of the object, each with a comma.

        Of those that are long, one is made ready at a time, and between two of them all others have as long as that took: it may
        be asked for by many at once, and what nobody reads is bounded only once it is with its connection.
        """
        if answer.size() <= HEAVY_JSON:
            self.send(_joined(before, answer))
            return
        async with self.api.reading:
            if not self._has_left():
                began = time.monotonic()
                self.send(_joined(before, answer))
                await asyncio.sleep(time.monotonic() - began)

    def _has_left(self) -> bool:
        stream = getattr(self.request.connection, "stream", None)
        return stream is None or stream.closed()

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with the JSON of what went wrong; called by Tornado for everything that a handler raises."""
        error = kwargs["exc_info"][1] if "exc_info" in kwargs else None
        if not self._admitted:
            try:
                self._admit()
            except ServiceError as refused:
                error = refused
        self._put_error(_as_service_error(error, status_code, self.route))
        if "Expect" in self.request.headers:
            self.set_header("Connection", "close")  # Tornado does so where the body has not been read
        self.finish()

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log a fault of ours with its traceback; refusals are in the request's line."""
        if exhausted(value) is not None:
            log.error("request failed", extra={"error": type(value).__name__, "errno": getattr(value, "errno", None)})
        elif not isinstance(value, ServiceError | HTTPError):
            log.error("request failed", exc_info=(typ, value, tb) if typ and value else None)

    def _put_error(self, error: ServiceError) -> None:
        body = error_body(error)
        self._code = error.code
        self.set_status(status_of(error))
        self.set_header("Content-Length", str(len(body)))
        if isinstance(error, RangeNotSatisfiable) and error.size is not None:
            self.set_header("Content-Range", f"bytes */{error.size}")
        if isinstance(error, Unauthorized):
            self.set_header("WWW-Authenticate", "Bearer")
        if isinstance(error, MethodNotAllowed) and self.route is not None:
            self.set_header("Allow", self.route.allow)
        if (seconds := retry_after_s(error)) is not None:
            self.set_header("Retry-After", str(max(1, round(seconds))))
        self.write(body)

    def _refuse_early(self, error: ServiceError) -> None:
        """Answer now, and read on for a moment without keeping anything."""
        self._refusal = error
        self._answered = True
        self._body.drop()
        self.set_header("Connection", "close")
        self._put_error(error)
        # The result is nobody's: a client that has left is noticed by on_connection_close.
        self.flush().add_done_callback(lambda written: written.cancelled() or written.exception())
        self._later(LINGER_S, self._hang_up)

    def _body_is_late(self) -> None:
        if not self._finished and not self._answered:
            self.set_header("Connection", "close")
            self._put_error(RequestTimeout("The body of the request did not come in time."))
            self.finish()

    def break_off(self) -> None:
        """End the connection in the middle of an answer, so that its part is not taken for the whole."""
        connection: Any = self.request.connection
        connection.stream.close()

    def _hang_up(self) -> None:
        if not self._finished:
            self.finish()

    # --- the end ----------------------------------------------------------------------------------------------------

    def when_client_leaves(self, act: Callable[[], None]) -> None:
        """Call ``act`` once if the client goes before its answer, at once if it has gone."""
        if self._has_left():
            act()
        else:
            self._when_gone = act

    def on_connection_close(self) -> None:
        """Act on a client that has left."""
        super().on_connection_close()
        self._stop_timers()
        if self._when_gone is None:
            self._body.drop()
        if self._when_gone is not None and not self._finished:
            act, self._when_gone = self._when_gone, None
            act()

    def on_finish(self) -> None:
        """Stop the clocks, and give the body's room back."""
        self._stop_timers()
        self._body.drop()

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, act))

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    @property
    def code(self) -> str:
        """The error code of the answer; ``-`` for none."""
        return self._code


def _joined(before: bytes, answer: Answer) -> bytes:
    return b"".join((b"{", before, memoryview(answer.to_json())[1:]))


def _bytes(length: str) -> int:
    """The value of a Content-Length; 0 for what is none."""
    return int(length[:20]) if length.isdecimal() else 0


def _as_service_error(error: BaseException | None, status: int, route: Route | None) -> ServiceError:
    if isinstance(error, ServiceError):
        return error
    if (refused := exhausted(error)) is not None:
        return refused
    if isinstance(error, HTTPError) and error.status_code == 405 and route is None:
        return RouteNotFound(_NO_ROUTE)
    if isinstance(error, HTTPError) and error.status_code == 405 and route is not None:
        return MethodNotAllowed(f"This route knows {route.allow}.{route.hint}")
    if isinstance(error, HTTPError) and 400 <= status < 500:
        return InvalidRequest("The path of the request is malformed.")
    return InternalError("The service failed; its log has the reason under this X-Request-ID.")


def log_request(handler: RequestHandler) -> None:
    """Log one line for an ended request. Names of fields are constant; no query, body, key or path value is in it."""
    request: HTTPServerRequest = handler.request
    route = handler.route if isinstance(handler, ApiHandler) else None
    if isinstance(handler, ApiHandler) and handler.code != "-":
        handler.api.service.metrics.refused(handler.code)
    log.info(
        "request",
        extra={
            "method": request.method if request.method in RequestHandler.SUPPORTED_METHODS else "other",
            "route": route.path if route is not None else "-",
            "status": handler.get_status(),
            "code": handler.code if isinstance(handler, ApiHandler) else "-",
            "elapsed_ms": round(request.request_time() * 1000, 1),
            "client": peer_of(request.connection),
            "request_id": handler.request_id if isinstance(handler, ApiHandler) else "-",
        },
    )
