"""One link after it was accepted: sends what the service asks, sorts what the sandbox answers.

Promises: a peer that sends anything but well-formed frames within the limits ends this connection and nothing else. Ids are
looked up among those asked on this connection; unknown, late and repeated ones are dropped and counted, and too many of them end
the connection. What is held per execution is bounded by the limits it was sent with; what nobody asked for is read within a
budget. A peer that does not read for ``write_s`` seconds is disconnected. When the connection ends, everything that waits
on it gets LinkClosed.
Leaves to its owner: running ``run``, deadlines of executions, ending the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from sandboxd.protocol import (
    MAX_KNOWN,
    VERSION,
    Asked,
    Cancel,
    Cleared,
    Displayed,
    Execute,
    Finished,
    FromSandbox,
    Hello,
    Input,
    KernelGone,
    KernelStopped,
    Output,
    Preparing,
    Progress,
    ProtocolError,
    Refused,
    Settled,
    Started,
    StillWriting,
    StopKernel,
    Streamed,
    StreamName,
    ToSandbox,
    decode_from_sandbox,
    encode,
    longest_frame,
    read_frame,
)

from interpreter.link.budget import Budget
from interpreter.link.errors import LinkClosed, LinkNotSent, LinkTimeout

log = logging.getLogger(__name__)

MAX_DROPPED = 1000
"""Messages for nobody after which the peer is taken for a hostile one. An honest one sends a few, when ends cross."""

_STREAMED = (Output, Displayed, Cleared, Asked)

_MAX_UNSENT = 2**20
"""Bytes that wait here for the peer to read, past which it is told later of answers that are settled."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """frame: bytes of one frame from the sandbox. write_s: for a frame to be taken. per_s, burst: see Budget.

    streams_per_s: the same for what is streamed: some thousand pieces a second, or some 60 MiB.
    """

    frame: int
    write_s: float = 10.0
    per_s: float = 400.0
    burst: float = 2000.0
    streams_per_s: float = 4000.0

    @classmethod
    def of(cls, *, output_bytes: int, result_bytes: int) -> LinkLimits:
        """Return the limits that go with those of an execution."""
        return cls(frame=longest_frame(text=output_bytes, results=result_bytes))


Hear = Callable[[Streamed], Awaitable[bool]]


async def _asked_for(_message: Streamed) -> bool:
    return True


async def _not_asked_for(_message: Streamed) -> bool:
    return False


class Pending:
    """An execution on the link. ``end`` gives how it ended; the rest is what the sandbox has told so far.

    hear: takes what is streamed; False where that is more than was asked for. starting: it waits for a kernel. changed: set
    whenever ``starting`` may have changed or the end has come.
    """

    def __init__(self, text_limit: int, hear: Hear = _not_asked_for) -> None:
        self.hear = hear
        self.end: asyncio.Future[Finished | Refused] = asyncio.get_running_loop().create_future()
        self.starting = False
        self.prepared = False
        self.changed = asyncio.Event()
        self._text_limit = text_limit
        self._text: dict[StreamName, str] = {}

    def text(self, stream: StreamName) -> str:
        """Return the output that came ahead of the end."""
        return self._text.get(stream, "")

    def add(self, message: Progress) -> None:
        """Keep more output, within the text limit in characters."""
        before = self.text(message.stream)
        self._text[message.stream] = before + message.text[: max(0, self._text_limit - len(before))]


class Connection:
    """The service end. ``run`` must run for anything to arrive.

    on_kernel_gone: told of each kernel that ended between executions. on_writing: told that the sandbox is at work though
    nothing is executed in it. dropped: messages for nobody so far.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        limits: LinkLimits,
        on_kernel_gone: Callable[[KernelGone], None] = lambda _gone: None,
        on_writing: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._on_kernel_gone = on_kernel_gone
        self._on_writing = on_writing
        self._clock = clock
        self._budget = Budget(per_s=limits.per_s, burst=limits.burst, now=clock())
        self._streams = Budget(per_s=limits.streams_per_s, burst=limits.burst, now=clock())
        self._sending = asyncio.Lock()
        self._executions: dict[str, Pending] = {}
        self._stops: dict[str, asyncio.Future[KernelStopped]] = {}
        self._preparing: frozenset[str] = frozenset()
        self._settled: list[str] = []
        self._closed = False
        self.ended = asyncio.Event()
        self.dropped = 0
        self.received = 0
        """Bytes of frames."""
        # A drain returns when the frame has left us, so that the write deadline means the peer and not our buffer.
        writer.transport.set_write_buffer_limits(high=0)

    @classmethod
    async def open(
        cls,
        accepted: socket.socket,
        *,
        limits: LinkLimits,
        on_kernel_gone: Callable[[KernelGone], None] = lambda _gone: None,
        on_writing: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Connection:
        """Return the connection over ``accepted``, which it owns from here on."""
        try:
            reader, writer = await asyncio.open_unix_connection(sock=accepted, limit=256 * 1024)
        except BaseException:
            accepted.close()
            raise
        return cls(reader, writer, limits=limits, on_kernel_gone=on_kernel_gone, on_writing=on_writing, clock=clock)

    async def hello(self, *, within_s: float) -> Hello:
        """Return the first message. Raises LinkTimeout, LinkClosed, ProtocolError for anything else than a hello of ours."""
        try:
            async with asyncio.timeout(within_s):
                body = await read_frame(self._reader, limit=self._limits.frame)
        except TimeoutError as error:
            raise LinkTimeout("no hello in time") from error
        except OSError as error:
            raise LinkClosed("the connection broke before a hello") from error
        if body is None:
            raise LinkClosed("the connection ended before a hello")
        self.received += len(body)
        message = decode_from_sandbox(body)
        if not isinstance(message, Hello) or message.version != VERSION:
            raise ProtocolError("the first message is no hello of this version")
        if len({known.id for known in message.known}) < len(message.known):
            raise ProtocolError("an execution is known twice")
        self._preparing = frozenset(known.id for known in message.known if known.preparing)
        return message

    async def run(self) -> None:
        """Read until the connection ends; return then, whatever ended it."""
        try:
            while (pause_s := await self._take_next()) is not None:
                # Not reading is what slows the peer down: its socket fills and it blocks.
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
        except ProtocolError as error:
            log.warning("a link broke the protocol", extra={"error": str(error)[:200]})
        except OSError:
            log.info("a link broke")
        finally:
            self.close()

    async def execute(self, message: Execute, hear: Hear = _not_asked_for) -> Pending:
        """Send ``message`` and return what becomes of it. Raises as ``send``. ``forget`` it when nobody waits any more.

        hear: as of ``Pending``; nothing else of this link is read before it returns. Must not raise.
        """
        if message.id in self._executions:
            raise ValueError("this execution is already on the link")
        pending = Pending(message.limits.text, hear)
        self._executions[message.id] = pending
        try:
            await self.send(message)
        except BaseException:
            self.forget(message.id)
            raise
        return pending

    def adopt(self, execution_id: str, text_limit: int) -> Pending:
        """Return what becomes of an execution that the hello has named. To be called between ``hello`` and ``run``.

        What it streams from here on is no fault, and nobody's: its events are made of its answer.
        """
        if execution_id in self._executions:
            raise ValueError("this execution is already on the link")
        pending = self._executions[execution_id] = Pending(text_limit, _asked_for)
        pending.prepared = pending.starting = execution_id in self._preparing
        return pending

    def settle(self, execution_ids: Iterable[str]) -> None:
        """Say soon that these answers are recorded, or unwanted: the peer need not keep them. Never waits; may be lost."""
        if not self._settled:
            asyncio.get_running_loop().call_soon(self._send_settled)
        self._settled.extend(execution_ids)

    def forget(self, execution_id: str) -> None:
        """Drop whatever else comes for this execution."""
        self._executions.pop(execution_id, None)

    async def cancel(self, execution_id: str) -> None:
        """Ask that an execution end. Raises LinkClosed."""
        await self.send(Cancel(id=execution_id))

    async def input(self, execution_id: str, text: str) -> None:
        """Give an execution what it reads. Raises LinkClosed."""
        await self.send(Input(id=execution_id, text=text))

    async def stop_kernel(self, language: str, context: str, *, restart: bool, within_s: float) -> KernelStopped:
        """End a kernel, and start it anew if ``restart``; return what came of it. Raises LinkTimeout, LinkClosed."""
        request = secrets.token_hex(8)
        answer: asyncio.Future[KernelStopped] = asyncio.get_running_loop().create_future()
        self._stops[request] = answer
        try:
            async with asyncio.timeout(within_s):
                await self.send(StopKernel(request=request, language=language, context=context, restart=restart))
                return await answer
        except TimeoutError as error:
            raise LinkTimeout("a kernel did not stop in time") from error
        finally:
            self._stops.pop(request, None)

    async def send(self, message: ToSandbox) -> None:
        """Send one message, after those before it. Cancelling sends all of a frame or none of it.

        Raises LinkNotSent where nothing of it has left us, else LinkClosed.
        """
        frame = encode(message)
        async with self._sending:
            if self._closed:
                raise LinkNotSent("the link has ended")
            self._writer.write(frame)
            if self._writer.transport.is_closing():
                # It was not before. A transport writes at once what it can, and ends itself where that fails: the
                # kernel has taken none of it, since the peer has closed its end.
                self.close()
                raise LinkNotSent("the link has ended")
            try:
                async with asyncio.timeout(self._limits.write_s):
                    await self._writer.drain()
            except (TimeoutError, OSError) as error:
                self.close()
                raise LinkClosed("the sandbox does not read") from error
            self._send_settled()  # what had to wait for this frame

    def close(self) -> None:
        """End the connection at once; everything that waits on it gets LinkClosed. May be called any number of times."""
        if self._closed:
            return
        self._closed = True
        self._writer.transport.abort()
        for pending in self._executions.values():
            if not pending.end.done():
                pending.end.set_exception(LinkClosed("the link has ended"))
                pending.end.exception()
            pending.changed.set()
        for answer in self._stops.values():
            if not answer.done():
                answer.set_exception(LinkClosed("the link has ended"))
                answer.exception()
        self.ended.set()

    async def wait_closed(self) -> None:
        """Close, and wait until the descriptor is free."""
        self.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _send_settled(self) -> None:
        while self._settled and not self._closed:
            if self._writer.transport.get_write_buffer_size() > _MAX_UNSENT:
                del self._settled[:-MAX_KNOWN]  # It keeps no more answers than that.
                return
            settled, self._settled = self._settled[:MAX_KNOWN], self._settled[MAX_KNOWN:]
            # Whole frames, so it may come between those of ``send``.
            self._writer.write(encode(Settled(ids=settled)))

    async def _take_next(self) -> float | None:
        """Deliver the next message; return the seconds to pause after it, None at the end. Nothing of it is kept here."""
        body = await read_frame(self._reader, limit=self._limits.frame)
        if body is None:
            return None
        self.received += len(body)
        message = decode_from_sandbox(body)
        if isinstance(message, _STREAMED):
            return await self._hear(message, len(body))
        return 0.0 if self._take(message) else self._budget.charge(len(body), self._clock())

    async def _hear(self, message: Streamed, size: int) -> float:
        """Deliver what is streamed; return the seconds to pause after it."""
        pending = self._executions.get(message.id)
        if pending is not None and await pending.hear(message):
            return self._streams.charge(size, self._clock())
        self._drop()
        return self._budget.charge(size, self._clock())

    def _take(self, message: FromSandbox) -> bool:
        """Deliver one message; False where it counts against the budget of what nobody asked for."""
        match message:
            case Finished() | Refused():
                pending = self._executions.pop(message.id, None)
                if pending is None or pending.end.done():
                    return self._drop()  # not settled: a service that is ending waits no more, and the next one will
                pending.end.set_result(message)
                pending.changed.set()
                return True
            case KernelStopped():
                answer = self._stops.pop(message.request, None)
                if answer is None or answer.done():
                    return self._drop()
                answer.set_result(message)
                return True
            case Preparing() | Started() | Progress():
                pending = self._executions.get(message.id)
                if pending is None or not _told(pending, message):
                    return self._drop()
            case KernelGone():
                self._on_kernel_gone(message)
            case StillWriting():
                self._on_writing()
            case Hello():
                raise ProtocolError("a second hello")
        return False

    def _drop(self) -> bool:
        self.dropped += 1
        if self.dropped > MAX_DROPPED:
            raise ProtocolError("too many messages for nobody")
        return False


def _told(pending: Pending, message: Preparing | Started | Progress) -> bool:
    """Keep what ``message`` tells; False where it comes a second time or out of order."""
    match message:
        case Preparing():
            # Once: an execution that could go back to preparing would stop its own clock for ever.
            if pending.prepared:
                return False
            pending.prepared = pending.starting = True
        case Started():
            if not pending.starting:
                return False
            pending.starting = False
        case Progress():
            pending.add(message)
            return True
    pending.changed.set()
    return True
