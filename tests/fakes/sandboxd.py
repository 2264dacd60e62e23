"""A scripted sandboxd: dials as the real one does, and then does what a test wants, hostile things first of all.

``Sandboxd()`` is a boot for ``FakeBackend``. It answers each execution by ``script[code]``, or by printing its code. Kernels
are names in a set: ``new`` the first time, ``kept`` after. What a script may do is in ``Peer``. With ``redials`` set it
outlives its service as the real one does: what runs goes on, and the next link hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from sandboxd.protocol import (
    LINK_SOCKET,
    MAX_FRAME_TO_SANDBOX,
    VERSION,
    Alive,
    Cancel,
    Execute,
    Finished,
    FromSandbox,
    Hello,
    Input,
    KernelStopped,
    Known,
    Outcome,
    Preparing,
    Refused,
    Settled,
    Started,
    StopKernel,
    decode_to_sandbox,
    encode,
    read_frame,
)

from interpreter.backends.base import SandboxSpec


class Peer:
    """The sandbox's end of its link. unsettled: the answers so far, by id. running: what has none, True while it prepares."""

    def __init__(self, spec: SandboxSpec, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.spec = spec
        self.reader = reader
        self.writer = writer
        self.kernels: set[tuple[str, str]] = set()
        self.told: dict[str, str] = {}
        self.cancelled: dict[str, asyncio.Event] = {}
        self.ids: list[str] = []
        self.inputs: asyncio.Queue[str] = asyncio.Queue()
        self.running: dict[str, bool] = {}
        self.unsettled: dict[str, Finished | Refused] = {}
        self.unwanted: set[str] = set()

    def send(self, message: FromSandbox) -> None:
        match message:
            case Finished() | Refused():
                self.running.pop(message.id, None)
                if message.id in self.unwanted:
                    return
                self.unsettled[message.id] = message
            case Preparing() | Started():
                self.running[message.id] = isinstance(message, Preparing)
        self._write(message)

    def greet(self) -> None:
        """Say hello, and again what is not settled."""
        known = [Known(name, "running", preparing) for name, preparing in self.running.items()]
        known += [Known(name, "finished") for name in self.unsettled]
        languages = ["python"], ["python", "bash", "node"]
        self._write(Hello(VERSION, *languages, known=known, alive=[Alive(*name) for name in sorted(self.kernels)]))
        for answer in self.unsettled.values():
            self._write(answer)

    def settle(self, ids: list[str]) -> None:
        for name in ids:
            self.unsettled.pop(name, None)
            if name in self.running:
                self.unwanted.add(name)

    async def dial(self) -> None:
        """Be linked to the next service, however long it takes."""
        while True:
            with contextlib.suppress(OSError):
                self.reader, self.writer = await asyncio.open_unix_connection(str(self.spec.link_dir / LINK_SOCKET))
                return
            await asyncio.sleep(0.005)

    async def hang_up(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def _write(self, message: FromSandbox) -> None:
        if not self.writer.is_closing():
            self.writer.write(encode(message))

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    def outcome(self, message: Execute, **fields: object) -> Outcome:
        kernel = self.told.get(message.id)
        return Outcome(**{"status": "ok", "exit_code": 0, "run_ms": 1, "kernel": kernel, **fields})  # type: ignore[arg-type]

    def begin(self, message: Execute) -> None:
        self.cancelled[message.id] = asyncio.Event()
        self.running[message.id] = False
        self.ids.append(message.id)
        if message.stateful:
            name = (message.language, message.context)
            self.told[message.id] = "kept" if name in self.kernels else "new"
            self.kernels.add(name)

    def finish(self, message: Execute, **fields: object) -> None:
        self.send(Finished(id=message.id, outcome=self.outcome(message, **fields)))


Script = Callable[[Peer, Execute], Awaitable[None]]


async def never(peer: Peer, message: Execute) -> None:
    await asyncio.Event().wait()


async def until_cancelled(peer: Peer, message: Execute) -> None:
    await peer.cancelled[message.id].wait()
    peer.finish(message, status="interrupted" if message.stateful else "cancelled", exit_code=130)


class Sandboxd:
    """See the module. began: executions that arrived, by their code, in order. frozen: it
    says hello and never reads. stops_in_part: something of each kernel is left when it is stopped.
    redials: the end of a link ends nothing; the next service is dialled."""

    def __init__(self) -> None:
        self.script: dict[str, Script] = {}
        self.began: list[str] = []
        self.peers: list[Peer] = []
        self.hello: Callable[[Peer], Awaitable[None]] = self._hello
        self.frozen = False
        self.stops_in_part = False
        self.redials = False
        self.arrived = asyncio.Event()

    async def wait_for(self, code: str, times: int = 1) -> None:
        while self.began.count(code) < times:
            self.arrived.clear()
            await self.arrived.wait()

    async def __call__(self, spec: SandboxSpec) -> int:
        reader, writer = await asyncio.open_unix_connection(str(spec.link_dir / LINK_SOCKET))
        peer = Peer(spec, reader, writer)
        self.peers.append(peer)
        try:
            async with asyncio.TaskGroup() as group:
                await self._serve(group, peer)
                while self.redials:
                    await peer.hang_up()
                    await peer.dial()
                    await self._serve(group, peer)
                raise _Ended
        except* (_Ended, OSError):
            pass
        finally:
            await peer.hang_up()
        return 0

    async def _serve(self, group: asyncio.TaskGroup, peer: Peer) -> None:
        """Do what the service says, until the link has ended."""
        await self.hello(peer)
        if self.frozen:
            await asyncio.Event().wait()
        with contextlib.suppress(OSError):
            while (body := await read_frame(peer.reader, limit=MAX_FRAME_TO_SANDBOX)) is not None:
                self._take(group, peer, decode_to_sandbox(body))

    def _take(self, group: asyncio.TaskGroup, peer: Peer, message: object) -> None:
        match message:
            case Execute() if message.id in peer.unsettled:
                peer.send(peer.unsettled[message.id])
            case Execute() if message.id in peer.running:
                pass
            case Execute():
                peer.begin(message)
                self.began.append(message.code)
                self.arrived.set()
                group.create_task(self.script.get(message.code, _echo)(peer, message))
            case Cancel():
                if message.id in peer.cancelled:
                    peer.cancelled[message.id].set()
            case Input():
                peer.inputs.put_nowait(message.text)
            case Settled():
                peer.settle(message.ids)
            case StopKernel():
                name = (message.language, message.context)
                existed = name in peer.kernels
                peer.kernels.discard(name)  # after a restart too: what first runs in a kernel is told "new"
                for event in peer.cancelled.values():
                    event.set()
                unsafe = self.stops_in_part
                peer.send(KernelStopped(request=message.request, existed=existed, sandbox_unsafe=unsafe))

    async def _hello(self, peer: Peer) -> None:
        peer.greet()


class _Ended(Exception):
    pass


async def _echo(peer: Peer, message: Execute) -> None:
    peer.finish(message, stdout=message.code, stdout_bytes=len(message.code))
