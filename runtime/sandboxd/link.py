"""Our end of the link, over all the connections that it has in the life of a sandbox.

Owns dialling, the sending side, and what the service must hear however often a connection ends: answers until they are
settled, and the last end of each kernel.

Promises: nothing that is sent here waits. Without a connection what must be heard is kept and the rest is dropped; what is
kept is bounded, in number and in bytes, whatever the service does.
Leaves to the daemon: what messages mean.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from . import protocol
from .protocol import Finished, FromSandbox, Hello, KernelGone, OutputLimits, Refused, Result, ToSandbox, UserError

_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25
"""Between two dials. A service that has just begun is found soon, and one that is long in coming costs little."""

_MOST_BYTES = 64 * 2**20
"""Of the answers that are kept whole: those of some executions with all that they may answer, or of many with little."""

_AT_ONCE = 2**20
"""Bytes that the socket takes at once, where the host allows as many: the longest frame of text fits, and is copied once less."""

_MOST_UNSENT = 4 * 2**20
"""Bytes that wait for the service, past which the pipes of programs are not read."""

_SHORT = 500
"""Characters of an error's text in an answer that is not."""

_log = logging.getLogger(__name__)


class Link:
    """The link at ``path``. unsettled: answers that the service may not have recorded."""

    def __init__(self, path: str) -> None:
        self.unsettled = Unsettled()
        self._path = path
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._pause_s = 0.0
        self._gone: OrderedDict[tuple[str, str], KernelGone] = OrderedDict()

    async def dial(self) -> None:
        """Return once there is a connection. The pauses grow until a service has said something."""
        self.close()
        while True:
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(max(_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
            try:
                self._reader, self._writer = await asyncio.open_unix_connection(self._path)
            except OSError:
                continue  # nobody listens yet, or it is not ours yet, or there is no descriptor just now
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _AT_ONCE)
            return

    async def receive(self) -> ToSandbox | None:
        """Return the next message, or None once this connection has ended, whatever ended it."""
        if self._reader is None:
            return None
        try:
            body = await protocol.read_frame(self._reader, limit=protocol.MAX_FRAME_TO_SANDBOX)
            message = None if body is None else protocol.decode_to_sandbox(body)
        except (protocol.ProtocolError, OSError) as error:
            _log.error("the link broke: %s", error)
            message = None
        if message is None:
            self.close()
        else:
            self._pause_s = 0.0
        return message

    def greet(self, hello: Hello) -> None:
        """Say hello, and then again what may not have been heard, in its order: a kernel ends after what it answered."""
        self.send(hello)
        for frame in self.unsettled.frames():
            self._write(frame)
        alive = {(kernel.language, kernel.context) for kernel in hello.alive}
        for key, gone in self._gone.items():
            if gone.sandbox_unsafe or key not in alive:
                self._write(protocol.encode(gone))

    def send(self, message: FromSandbox) -> None:
        """Send ``message``; without a connection only the ends of kernels will be heard."""
        if isinstance(message, KernelGone):
            self._keep(message)
        self._write(protocol.encode(message))

    def answer(self, answer: Finished | Refused, limits: OutputLimits) -> None:
        """Send the answer to an execution, on each connection until it is settled."""
        frame = within_limits(answer, limits)
        self._write(frame)
        self.unsettled.add(answer.id, frame)

    def again(self, execution: str) -> None:
        """Send an answer that is not settled once more."""
        self._write(self.unsettled.frame(execution))

    @property
    def is_full(self) -> bool:
        """Whether so much waits for the service that whoever has more had better wait."""
        return self._writer is not None and self._writer.transport.get_write_buffer_size() > _MOST_UNSENT

    def close(self) -> None:
        """End the connection, if there is one. May be called twice."""
        if self._writer is not None:
            self._writer.transport.abort()  # what was not read yet never will be
        self._reader = self._writer = None

    def _keep(self, gone: KernelGone) -> None:
        key = (gone.language, gone.context)
        before = self._gone.pop(key, gone)
        self._gone[key] = before if before.sandbox_unsafe else gone
        if len(self._gone) > protocol.MAX_ALIVE:
            self._gone.popitem(last=False)

    def _write(self, frame: bytes) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame)


class Unsettled:
    """Answers that are kept until the service has them, oldest first.

    They are never forgotten: what ran could run again. Past ``most`` bytes in all the oldest lose their text and their rich
    outputs, and are of a few hundred bytes then. Whoever adds them bounds their number.
    """

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self._most = most
        self._size = 0
        self._lean: OrderedDict[str, bytes] = OrderedDict()
        self._whole: OrderedDict[str, bytes] = OrderedDict()  # all of them younger than those that are lean

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._lean) + len(self._whole)

    def __contains__(self, execution: str) -> bool:
        """Return whether its answer is kept."""
        return execution in self._whole or execution in self._lean

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of the executions, oldest first."""
        yield from self._lean
        yield from self._whole

    def frames(self) -> Iterator[bytes]:
        """Yield the answers, oldest first."""
        yield from self._lean.values()
        yield from self._whole.values()

    def frame(self, execution: str) -> bytes:
        """Return one answer. Raises KeyError."""
        return self._whole[execution] if execution in self._whole else self._lean[execution]

    def add(self, execution: str, frame: bytes) -> None:
        """Keep an answer as the youngest."""
        self.settle(execution)
        self._whole[execution] = frame
        self._size += len(frame)
        while self._size > self._most and self._whole:
            oldest, frame = self._whole.popitem(last=False)
            self._lean[oldest] = lean = _lean(frame)
            self._size += len(lean) - len(frame)

    def settle(self, execution: str) -> None:
        """Forget an answer, if it is here."""
        for kept in (self._lean, self._whole):
            self._size -= len(kept.pop(execution, b""))


def within_limits(answer: Finished | Refused, limits: OutputLimits) -> bytes:
    """Return the frame of ``answer``; where it is longer than the service takes, all its rich outputs are left out.

    Their collector sees to it that this does not happen; if it did, the service would end the sandbox.
    """
    frame = protocol.encode(answer)
    longest = protocol.longest_frame(text=limits.text, results=limits.results)
    if isinstance(answer, Refused) or len(frame) <= longest:
        return frame
    _log.error("an answer of %d bytes; the limit is %d", len(frame), longest)
    left_out = [Result(type="omitted", mime="*/*", size=len(frame))]
    outcome = msgspec.structs.replace(answer.outcome, results=left_out, truncated=True)
    return protocol.encode(msgspec.structs.replace(answer, outcome=outcome))


def _lean(frame: bytes) -> bytes:
    """Return the answer in ``frame`` without its text and its rich outputs. How much text there was is still said."""
    answer = protocol.decode_from_sandbox(frame[protocol.LENGTH_BYTES :])
    if not isinstance(answer, Finished):
        return frame
    left_out = [Result(type="omitted", mime="*/*", size=len(frame))] if answer.outcome.results else []
    error = answer.outcome.error
    if error is not None:
        error = UserError(error.name[:_SHORT], error.value[:_SHORT], [])
    outcome = msgspec.structs.replace(
        answer.outcome, stdout="", stderr="", results=left_out, error=error, truncated=True
    )
    if outcome.files:
        outcome = msgspec.structs.replace(outcome, files=[], files_incomplete="not_known")
    return protocol.encode(msgspec.structs.replace(answer, outcome=outcome))
