"""``pair``: the service's connection and the raw socket of a peer that may send anything."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from sandboxd.protocol import Execute, FromSandbox, KernelGone, OutputLimits, encode

from interpreter.link.connection import Connection, LinkLimits, Pending


@dataclass
class Pair:
    connection: Connection
    peer: socket.socket
    running: asyncio.Task[None]
    gone: list[KernelGone] = field(default_factory=list)

    async def send(self, *messages: FromSandbox | bytes) -> None:
        data = b"".join(m if isinstance(m, bytes) else encode(m) for m in messages)
        await asyncio.get_running_loop().sock_sendall(self.peer, data)

    async def execute(self, name: str, text: int = 100) -> Pending:
        limits = OutputLimits(text=text, results=100, spill=0)
        return await self.connection.execute(
            Execute(id=name, language="python", code="x", timeout_s=1, grace_s=1, limits=limits)
        )

    async def closed(self) -> None:
        async with asyncio.timeout(20):
            await self.running


@pytest.fixture
async def make_pair() -> AsyncIterator[Callable[..., object]]:
    made: list[Pair] = []

    async def make(**limits: float) -> Pair:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        theirs.setblocking(False)
        gone: list[KernelGone] = []
        connection = await Connection.open(
            ours,
            limits=LinkLimits(**{"frame": 100_000, **limits}),
            on_kernel_gone=gone.append,  # type: ignore[arg-type]
        )
        running = asyncio.get_running_loop().create_task(connection.run())
        made.append(Pair(connection, theirs, running, gone))
        return made[-1]

    yield make
    for pair in made:
        await pair.connection.wait_closed()
        await pair.closed()
        pair.peer.close()


@pytest.fixture
async def pair(make_pair: Callable[..., object]) -> Pair:
    return await make_pair()  # type: ignore[misc,no-any-return]
