"""sandboxd: serves one service over the link, from the first message to its end.

Owns the link and the task of each execution. Promises: every ``Execute`` is answered once unless the link ends first; the
end of the link ends all kernels, runs and this process.
Leaves to kernels.py and runs.py: everything about executions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import msgspec

from . import places, protocol
from .kernels import Kernels
from .processes import Zygote
from .protocol import (
    BootConfig,
    Cancel,
    Execute,
    Finished,
    FromSandbox,
    Hello,
    OutputLimits,
    Refused,
    Result,
    Settled,
    Shutdown,
    StopKernel,
)
from .runs import Runs

_DIAL_WITHIN_S = 20.0
_DIAL_EVERY_S = 0.05
_CLOSE_WITHIN_S = 5.0

_log = logging.getLogger(__name__)


def run(config: BootConfig, requests: socket.socket) -> int:
    """Be sandboxd until the link ends; return the exit code. requests: our end of the socket to the zygote."""
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
    return asyncio.run(_serve(config, requests))


async def _serve(config: BootConfig, requests: socket.socket) -> int:
    zygote = Zygote(requests)
    try:
        reader, writer = await _dial(config.link)
    except OSError as error:
        _log.error("no link: %s", error)
        return 1
    link = _Link(writer)
    places.keep_usable(config.user, config.workspace)
    server = _Server(config, zygote, link)
    try:
        link.send(server.hello())
        async with asyncio.TaskGroup() as tasks:
            await _read(reader, server, tasks)
            server.end()
    finally:
        async with asyncio.timeout(_CLOSE_WITHIN_S):
            await server.aclose()
        zygote.close()
        writer.close()
    return 0


async def _dial(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the service. Raises OSError, TimeoutError among them."""
    async with asyncio.timeout(_DIAL_WITHIN_S):
        while True:
            try:
                return await asyncio.open_unix_connection(path)
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(_DIAL_EVERY_S)


async def _read(reader: asyncio.StreamReader, server: _Server, tasks: asyncio.TaskGroup) -> None:
    """Hand on messages until the service says that it is enough, or is gone."""
    try:
        while (body := await protocol.read_frame(reader, limit=protocol.MAX_FRAME_TO_SANDBOX)) is not None:
            message = protocol.decode_to_sandbox(body)
            if isinstance(message, Shutdown):
                return
            server.take(message, tasks)
    except (protocol.ProtocolError, ConnectionError) as error:
        _log.error("the link broke: %s", error)


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


class _Link:
    """The sending side."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def send(self, message: FromSandbox) -> None:
        """Send without waiting. After the end of the link nothing happens."""
        self._write(protocol.encode(message))

    async def send_and_wait(self, message: FromSandbox) -> None:
        """Send, and return once the service has read so much that little is buffered here."""
        await self.send_frame(protocol.encode(message))

    async def send_frame(self, frame: bytes) -> None:
        """As ``send_and_wait``, for a message that is encoded already."""
        self._write(frame)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def _write(self, frame: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame)


class _Server:
    """Turns messages into tasks, and their results into messages."""

    def __init__(self, config: BootConfig, zygote: Zygote, link: _Link) -> None:
        self._config = config
        self._link = link
        self._kernels = Kernels(config, zygote, link.send)
        self._runs = Runs(config, zygote, link.send)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def hello(self) -> Hello:
        return Hello(version=protocol.VERSION, kernels=self._kernels.languages(), stateless=self._runs.languages)

    def take(self, message: Execute | Cancel | Settled | StopKernel, tasks: asyncio.TaskGroup) -> None:
        """Act on a message; what takes time becomes a task."""
        if isinstance(message, Execute):
            if message.id not in self._tasks:
                task = tasks.create_task(self._execute(message), name=f"execute {message.id}")
                self._tasks[message.id] = task
                task.add_done_callback(lambda _: self._tasks.pop(message.id))
        elif isinstance(message, Cancel):
            # A task that was made just now begins first.
            asyncio.get_running_loop().call_soon(self._cancel, message.id)
        elif isinstance(message, StopKernel):
            tasks.create_task(self._stop_kernel(message), name=f"stop {message.language}")

    def _cancel(self, execution: str) -> None:
        if not self._runs.cancel(execution):
            self._kernels.cancel(execution)

    def end(self) -> None:
        """End all executions: nobody waits for their answers any more."""
        for task in self._tasks.values():
            task.cancel()

    async def aclose(self) -> None:
        await self._kernels.aclose()

    async def _execute(self, message: Execute) -> None:
        answer: Finished | Refused
        places.keep_usable(self._config.user, self._config.workspace)
        try:
            answer = await (self._kernels if message.stateful else self._runs).execute(message)
        except Exception:  # noqa: BLE001 - the edge of a task: told in the log, and the sandbox goes on
            _log.exception("an execution failed")
            answer = Refused(id=message.id, code="run_start_failed", message="The sandbox could not run it.")
        await self._link.send_frame(within_limits(answer, message.limits))

    async def _stop_kernel(self, message: StopKernel) -> None:
        await self._link.send_and_wait(await self._kernels.stop(message))
