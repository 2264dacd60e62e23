"""The conversation with the egress process: it is told which sandboxes there are and what each may reach, and tells what it
refused.

Promises: what was opened is opened again on each connection, in one go, before anything else; one that breaks is made anew at
once, and then in growing pauses of at most ``_LONGEST_PAUSE_S``. Nothing said here waits for the process but ``open``, and that
for a moment only: a sandbox starts without it, and its programs are refused until it is back.
Leaves to process.py: the process itself; to ways.py: what policies say.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from egress.protocol import (
    Close,
    Counted,
    Denied,
    Failed,
    Message,
    Noted,
    Open,
    Opened,
    Own,
    ProtocolError,
    Synced,
    encode,
    from_egress,
)
from interpreter.egress.process import Peer
from interpreter.tasks import Tasks

log = logging.getLogger(__name__)

OPEN_S = 1.0
"""For a sandbox's socket to be there. A process that has just been started again takes a third of that."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_STEADY_S = 5.0
"""After which a connection that breaks is none that never worked."""
_MAX_UNREAD = 16 * 2**20
"""Bytes that a process has not taken, after which it is taken for dead."""
_CLOSE_S = 5.0


class Control:
    """The one conversation of a service. own: what no sandbox may reach.

    on_denied: told of a refusal before its client is. on_counted: told what a sandbox has done since it was told before.
    """

    def __init__(
        self,
        peer: Peer,
        own: Own,
        *,
        on_denied: Callable[[Denied], None],
        on_counted: Callable[[Counted], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peer = peer
        self._own = own
        self._on_denied = on_denied
        self._on_counted = on_counted
        self._clock = clock
        self._tasks = Tasks()
        self._wanted: dict[str, Open] = {}
        self._answers: dict[str, asyncio.Event] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._failing = False

    @property
    def up(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._writer is not None

    def start(self) -> None:
        """Begin to connect."""
        self._tasks.start(self._run(), name="egress control")

    async def aclose(self) -> None:
        """End the conversation. May be called twice."""
        await self._tasks.aclose(within_s=_CLOSE_S)
        await self._peer.aclose()

    async def open(self, message: Open, *, within_s: float = OPEN_S) -> None:
        """Have a sandbox's socket there, or its policy replaced; return once that is so, or after ``within_s``."""
        self.put(message)
        answered = self._answers[message.sandbox]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await answered.wait()

    def put(self, message: Open) -> None:
        """The same without waiting."""
        self._wanted[message.sandbox] = message
        self._answered(message.sandbox)  # who waited for the one before need not any more
        self._answers[message.sandbox] = asyncio.Event()
        self._send(message)

    def close(self, sandbox: str) -> None:
        """Have its connections cut and its socket removed, if there is one."""
        if self._wanted.pop(sandbox, None) is not None:
            self._answers.pop(sandbox).set()
            self._send(Close(sandbox))

    async def _run(self) -> None:
        pause_s = 0.0
        while True:
            await asyncio.sleep(pause_s)
            began = self._clock()
            try:
                reader, writer = await self._peer.connect()
            except OSError as error:
                self._trouble(error)
            else:
                try:
                    await self._converse(reader, writer)
                except (OSError, ProtocolError, ValueError) as error:  # ValueError: a line without an end
                    self._trouble(error)
                else:
                    self._trouble(None)
                finally:
                    self._writer = None
                    writer.transport.abort()
            steady = self._clock() - began > _STEADY_S
            pause_s = 0.0 if steady else min(max(_FIRST_PAUSE_S, 2 * pause_s), _LONGEST_PAUSE_S)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say all there is to say, then listen until the other end is gone."""
        self._writer = writer
        for message in (self._own, *self._wanted.values(), Synced()):
            self._send(message)
        while line := await reader.readline():
            self._hear(from_egress(line))
            if self._failing:
                self._failing = False
                log.warning("egress: the proxy is there again")

    def _hear(self, message: Message) -> None:
        match message:
            case Opened():
                self._answered(message.sandbox)
            case Failed():
                log.error(
                    "egress: a sandbox has no way out", extra={"sandbox": message.sandbox, "error": message.error}
                )
                self._answered(message.sandbox)
            case Denied():
                self._on_denied(message)
                self._send(Noted(message.number))
            case Counted():
                self._on_counted(message)

    def _answered(self, sandbox: str) -> None:
        if (waiting := self._answers.get(sandbox)) is not None:
            waiting.set()

    def _send(self, message: Message) -> None:
        if self._writer is None:
            return
        try:
            line = encode(message)
        except ProtocolError as error:  # a policy of megabytes: the others are none the worse for it
            log.error("egress: what cannot be said is left out", extra={"error": str(error)})
            return
        self._writer.write(line)
        if self._writer.transport.get_write_buffer_size() > _MAX_UNREAD:
            self._writer.transport.abort()

    def _trouble(self, error: Exception | None) -> None:
        """Say once that sandboxes have no way out for now."""
        if not self._failing:
            self._failing = True
            why = "it ended" if error is None else f"{type(error).__name__}: {error}"[:200]
            log.error("egress: the proxy is gone, and sandboxes are refused until it is back", extra={"error": why})
