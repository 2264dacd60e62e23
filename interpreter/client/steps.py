"""The steps of a call, without any I/O: what to send, how long to wait, what an outcome means.

A call is a generator. It yields ``Request`` and gets the response, or the ``httpx.TransportError`` that came instead; ``Wait``
and gets None; ``READ`` and gets the next bytes of a streamed body, empty at its end; ``Event`` for whoever follows. Clients
differ in how they take these steps, and in nothing else.

Promises: a request is sent again only where it cannot be done twice: nothing of it was sent, it is one that changes nothing,
it carries an ``execution_id``, or the service said that it was not done.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from pydantic import ValidationError

from interpreter.client import errors
from interpreter.client.errors import CellboxError, NotReachable, Refused, TimedOut
from interpreter.client.results import Event

T = TypeVar("T")
CONNECT_S = 10.0
SILENCE_S = 45.0
"""Without a byte of a stream, after which it is taken for lost: three pings of the service."""
UNDO_S = 2.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 2.0
_MAY_GO_ON = frozenset({"shutting_down", "unreadable_answer"})
"""Refusals of what may go on all the same: only the same id may be sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to send.

    answer_s: how long to wait for each byte of the answer. streamed: the body is read by ``READ``. save_to: where the body goes.
    id_made: the ``execution_id`` in the body is ours.
    """

    method: str
    path: str
    answer_s: float
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    content: bytes | Path | None = None
    save_to: Path | None = None
    streamed: bool = False
    repeatable: bool = False
    id_made: bool = False

    @property
    def timeout(self) -> httpx.Timeout:
        """How long each part of it may take."""
        return httpx.Timeout(self.answer_s, connect=min(CONNECT_S, self.answer_s), pool=None)

    def sent_headers(self) -> dict[str, str]:
        """The headers of this request: how long a file is, for one, and that events are wanted."""
        size = {"Content-Length": str(self.content.stat().st_size)} if isinstance(self.content, Path) else {}
        accept = {"Accept": "text/event-stream"} if self.streamed else {}
        return {**accept, **size, **self.headers}

    @property
    def undo(self) -> Request | None:
        """What to send if the caller does not wait for the answer; None if what was asked has to go on, or is done at once."""
        if not self.id_made or self.streamed or self.body is None:
            return None
        path = f"/v1/executions/{self.body['execution_id']}"
        return Request(method="DELETE", path=path, params={"scope": self.body["scope"]}, answer_s=UNDO_S)


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for so long."""

    seconds: float


class Read:
    """Read on in the body of the answer."""


READ: Final = Read()

Outcome = httpx.Response | httpx.TransportError | bytes | None
Call = Generator[Request | Wait | Read, Outcome, T]
Following = Generator[Request | Wait | Read | Event, Outcome, None]


def new_id() -> str:
    """Return an ``execution_id`` that nobody else has."""
    return uuid.uuid4().hex


class Pauses:
    """How long to wait before a request is sent again. budget_s: in all."""

    def __init__(self, budget_s: float) -> None:
        self._left_s = budget_s
        self._next_s = _FIRST_PAUSE_S

    def next(self, asked_s: float | None = None) -> float | None:
        """Return how long to wait now, ``asked_s`` if the service said so; None where that is more than is left."""
        pause_s = self._next_s if asked_s is None else asked_s
        self._next_s = min(self._next_s * 2, _LAST_PAUSE_S)
        if pause_s > self._left_s:
            return None
        self._left_s -= pause_s
        return pause_s


def answered(request: Request, patience_s: float) -> Call[httpx.Response]:
    """Send ``request``, again where that is safe, and return the answer. Raises CellboxError."""
    pauses = Pauses(patience_s)
    while True:
        outcome = yield request
        error = _error(request, outcome)
        if error is None:
            assert isinstance(outcome, httpx.Response)  # noqa: S101 - what has no error
            return outcome
        pause_s = pauses.next(error.retry_after_s) if _may_repeat(request, error, outcome) else None
        if pause_s is None:
            raise error
        yield Wait(pause_s)
        request = _again(request, error)


def events(request: Request, patience_s: float, after: int = -1) -> Following:
    """Send ``request``, whose answer is a stream, and yield each event above ``after`` once and in order, to ``finished``.

    A stream that is cut off is asked for again from where it was; so ``request`` must be repeatable. Raises CellboxError, also
    for an execution that never ran.
    """
    last = after
    pauses = Pauses(patience_s)
    while True:
        outcome = yield replace(request, headers={"Last-Event-ID": str(last)} if last >= 0 else {})
        error = _error(request, outcome)
        if error is None:
            framer = Framer()
            while isinstance(outcome := (yield READ), bytes) and outcome:
                for event in framer.feed(outcome):
                    if event.type == "finished":
                        _check_ran(event)
                        yield event
                        yield READ  # to the end of the answer, so that the connection can serve again
                        return
                    if event.seq > last:
                        last, pauses = event.seq, Pauses(patience_s)
                        yield event
            error = _error(request, outcome) or NotReachable("The stream ended before the execution.")
        pause_s = pauses.next(error.retry_after_s) if _may_repeat(request, error, outcome) else None
        if pause_s is None:
            raise error
        yield Wait(pause_s)
        if last == after:
            request = _again(request, error)


class Framer:
    """Makes events of the bytes of a stream, however they are cut."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that are complete with ``data``. Raises Refused for what is no event."""
        self._rest += data
        if b"\n" not in data:
            return
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        for line in lines:
            if line.startswith(b"data:"):
                try:
                    yield Event.model_validate_json(line[5:])
                except ValidationError as error:
                    raise _unreadable("The stream has an event that is none.") from error


def decoded(response: httpx.Response) -> Any:
    """Return the JSON of an answer. Raises Refused for what is none."""
    try:
        return response.json()
    except ValueError as error:
        raise _unreadable("The answer is not of this service: it is no JSON.") from error


def _unreadable(message: str) -> Refused:
    return Refused(message, code="unreadable_answer")


def _check_ran(event: Event) -> None:
    if isinstance(code := event.fields.get("code"), str):
        message = event.fields.get("message")
        raise Refused(message if isinstance(message, str) else code, code=code)


def _error(request: Request, outcome: Outcome) -> CellboxError | None:
    """Return what is wrong with the outcome of ``request``; None if nothing is."""
    if isinstance(outcome, httpx.TransportError):
        return _lost(request, outcome)
    if not isinstance(outcome, httpx.Response) or outcome.is_success:
        return None
    try:
        told = json.loads(outcome.content)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        told = {}
    message = told.get("message") or f"{request.method} {request.path} was answered with {outcome.status_code}."
    return errors.kind(outcome.status_code)(
        str(message),
        code=str(told.get("code", "unreadable_answer")),
        retryable=told.get("retryable") is True or (not told and outcome.status_code in (502, 503, 504)),
        retry_after_s=_seconds(outcome.headers.get("Retry-After")),
        status=outcome.status_code,
        request_id=outcome.headers.get("X-Request-ID"),
    )


def _lost(request: Request, error: httpx.TransportError) -> NotReachable:
    match error:
        case httpx.ConnectTimeout():
            found: NotReachable = TimedOut(f"No connection to the service within {CONNECT_S:g} s.", "connect")
        case httpx.WriteTimeout():
            found = TimedOut(f"The service took nothing of the request for {request.answer_s:g} s.", "send")
        case httpx.TimeoutException():
            found = TimedOut(f"Nothing of the answer came for {request.answer_s:g} s.", "answer")
        case httpx.ConnectError():
            found = NotReachable(f"No connection to the service: {error}")
        case _:
            found = NotReachable(f"The connection to the service was lost: {str(error) or type(error).__name__}")
    found.__cause__ = error
    return found


def _may_repeat(request: Request, error: CellboxError, outcome: Outcome) -> bool:
    if isinstance(error, TimedOut) and error.layer != "connect":
        return (
            request.streamed
        )  # what was waited for in vain is not waited for again, but a silent stream has been lost
    if isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout):
        return True
    if isinstance(error, NotReachable):
        return request.repeatable
    if error.code == "unreadable_answer":  # of something between, which may have passed it on
        return error.retryable and request.repeatable
    return error.retryable and error.status in (429, 503) and error.code != "queue_timeout"


def _again(request: Request, error: CellboxError) -> Request:
    """Return ``request`` as it has to be sent after ``error``: one that was refused under an id of ours has another one, since
    the service keeps the refusal under the first."""
    if not request.id_made or request.body is None or isinstance(error, NotReachable) or error.code in _MAY_GO_ON:
        return request
    return replace(request, body={**request.body, "execution_id": new_id()})


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 6 else None
