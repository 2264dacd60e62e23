"""What the service says, done; what it has to know, said.

Promises: one service at a time, the newest; a message that is none ends its connection and changes nothing; without a service the
sandboxes go on as they are, and nobody waits for it.
Leaves to listeners.py: what opening and closing mean. Leaves to process.py: where the service is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging

from egress import protocol
from egress.listeners import Sandboxes
from egress.policy import Denial, PolicyError
from egress.protocol import Message, ProtocolError

log = logging.getLogger("egress")

_MAX_UNNOTED = 256
"""Refusals that wait to be noted; those beyond are told and do not wait."""

_MAX_UNSENT = 2**20
"""Bytes that the service has not read; refusals beyond are not told, only counted."""


class Control:
    """The conversation with the service."""

    def __init__(self) -> None:
        self._service: asyncio.StreamWriter | None = None
        self._numbers = itertools.count(1)
        self._unnoted: dict[int, asyncio.Future[None]] = {}

    async def report(self, sandbox: str, denial: Denial) -> None:
        """Tell the service of a refusal and wait until it is noted, for a moment at most."""
        service = self._service
        if service is None or service.transport.get_write_buffer_size() > _MAX_UNSENT:
            return
        number = next(self._numbers)
        told = protocol.Denied(number, sandbox, denial.host, denial.port, denial.reason, denial.sentence)
        self.send(told)
        if len(self._unnoted) >= _MAX_UNNOTED:
            return
        noted = self._unnoted[number] = asyncio.get_running_loop().create_future()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(protocol.NOTED_WITHIN_S):
                    await noted
        finally:
            del self._unnoted[number]

    def send(self, message: Message) -> None:
        """Say something, if there is a service that listens."""
        if self._service is not None and not self._service.is_closing():
            self._service.write(protocol.encode(message))

    def tell_counts(self, sandboxes: Sandboxes) -> None:
        """Tell what has happened since this was told before; without a service it is kept for the next."""
        if self._service is not None and self._service.transport.get_write_buffer_size() <= _MAX_UNSENT:
            for counted in sandboxes.counted():
                self.send(counted)

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sandboxes: Sandboxes) -> None:
        """Do what this service says until it closes, or another takes its place. reader: made with MAX_LINE as its limit."""
        if self._service is not None:
            self._service.close()
        self._service = writer
        opened: set[str] = set()
        log.info("egress service connected")
        try:
            while line := await reader.readline():
                if self._service is not writer:
                    break
                await self._do(protocol.from_service(line), sandboxes, opened)
        except (ProtocolError, ValueError) as error:  # ValueError: the line is longer than the limit
            log.error("egress service misunderstood", extra={"reason": str(error)})
        except OSError:
            pass  # it is gone
        finally:
            if self._service is writer:
                self._service = None
                log.info("egress service disconnected")
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _do(self, told: protocol.FromService, sandboxes: Sandboxes, opened: set[str]) -> None:
        match told:
            case protocol.Noted(number=number):
                if (noted := self._unnoted.get(number)) is not None and not noted.done():
                    noted.set_result(None)
            case protocol.Own():
                try:
                    sandboxes.own(told)
                except PolicyError as error:
                    raise ProtocolError(str(error)) from error
            case protocol.Open(sandbox=sandbox):
                try:
                    sandboxes.open(told)
                except (PolicyError, OSError) as error:
                    sentence = error.strerror or "it cannot listen" if isinstance(error, OSError) else str(error)
                    self.send(protocol.Failed(sandbox, sentence[:1000]))
                else:
                    self.send(protocol.Opened(sandbox))
                opened.add(sandbox)  # one that was open and failed goes on as it was
            case protocol.Close(sandbox=sandbox):
                opened.discard(sandbox)
                await sandboxes.close(sandbox)
            case protocol.Synced():
                await sandboxes.keep_only(opened)
