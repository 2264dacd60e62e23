"""Events of executions over HTTP: server-sent events, and how any connection follows a log.

Promises: whoever reads slowly is waited for, and holds one batch of events here; of all who follow one reads at a time; an event
is sent once, in its place; leaving ends nothing but the reading.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from tornado.iostream import StreamClosedError

from interpreter import wire
from interpreter.errors import InvalidRequest
from interpreter.executions.events import Event, EventLog
from interpreter.executions.execution import Execution
from interpreter.http.base import ApiHandler

PING_S = 15.0


class EventsHandler(ApiHandler):
    """The events of one execution."""

    async def on_get(self, execution_id: str, query: wire.EventsQuery, _body: wire.NoBody) -> None:
        """Send them from where the client left off, until the last one."""
        await self.api.service.recall(execution_id, query.scope)
        execution = self.api.service.execution(execution_id, query.scope)
        await send_events(self, execution, after=last_event_id(self) if query.after is None else query.after)


async def send_events(handler: ApiHandler, execution: Execution, *, after: int = -1) -> None:
    """Answer with the events numbered above ``after``, as server-sent events, to the end.

    The answer begins with the first of them, or at the first ping; one that never ran is the error that it is, if that is known
    by then.
    """
    handler.when_client_leaves(lambda: None)
    await execution.events.more(after, wait_s=PING_S)
    if execution.error is not None and execution.phase == "finished" and len(execution.events) <= 1:
        raise execution.error
    handler.set_header("Content-Type", "text/event-stream; charset=utf-8")
    handler.set_header("X-Accel-Buffering", "no")
    if handler.request.method == "HEAD":
        handler.finish()
        return

    def send(batch: list[Event]) -> Awaitable[None]:
        handler.write(b"".join(map(_framed, batch)) or _PING)
        return handler.flush()

    with handler.api.service.metrics.stream("events"), contextlib.suppress(StreamClosedError):  # it may come back
        await follow(execution.events, send, after=after, ping_s=PING_S, reading=handler.api.reading)
        await handler.finish()


async def follow(
    log: EventLog,
    send: Callable[[list[Event]], Awaitable[None]],
    *,
    after: int = -1,
    ping_s: float,
    reading: asyncio.Lock,
    sending: AbstractAsyncContextManager[object] | None = None,
) -> None:
    """Give ``send`` the events numbered above ``after``, in batches, to the end; an empty one where ``ping_s`` have brought none.

    send: hands them to the connection; what it returns is over when the peer has taken them. sending: held until then.
    reading: of the whole service. A batch may be 16 MiB: were it read by all who follow at once, nobody else would be served
    meanwhile, and memory would have no bound.
    """
    ended = False
    while not ended:
        async with sending or contextlib.nullcontext():
            async with reading:
                await asyncio.sleep(0)  # All others have their turn between two batches.
                batch = log.after(after)
                taken = send(batch)
            if batch:
                after = batch[-1].seq
            ended = batch[-1].type == "finished" if batch else log.closed
            batch = []
            await taken
        if not ended:
            await log.more(after, wait_s=ping_s)


def last_event_id(handler: ApiHandler) -> int:
    """Return the number of the last event that the client says it has; -1 for none. Raises InvalidRequest."""
    given = handler.request.headers.get("Last-Event-ID", "")
    if not given:
        return -1
    if not (given.isascii() and given.isdecimal() and len(given) < 16):
        raise InvalidRequest("Last-Event-ID must be the id of an event, a number.")
    return int(given)


_PING = b": ping\n\n"


def _framed(event: Event) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), event.body)
