"""Fixtures: ``egress`` is the proxy in this loop, with its resolver and what it told; ``origin`` records what arrives."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from egress import protocol
from egress.limits import Limits
from egress.listeners import Sandboxes
from egress.names import Host
from egress.policy import Denial
from egress.protocol import Policy
from egress.resolve import Unresolved

LOOPBACK = bytes((127, 0, 0, 1))
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LIMIT_S = 20


class Names:
    """A resolver: what the test says. A list of lists gives one after the other, the last for ever."""

    def __init__(self) -> None:
        self.known: dict[str, list[list[bytes]]] = {}
        self.asked: list[str] = []
        self.was_asked = asyncio.Event()
        self.wait: asyncio.Event | None = None

    def set(self, name: str, *answers: list[bytes]) -> None:
        self.known[name] = list(answers)

    async def resolve(self, host: Host) -> list[bytes]:
        self.asked.append(host.text)
        self.was_asked.set()
        if self.wait is not None:
            await self.wait.wait()
        answers = self.known.get(host.text)
        if not answers:
            raise Unresolved
        return answers.pop(0) if len(answers) > 1 else answers[0]


@dataclass
class Origin:
    """A server that answers each head (and body of a known length) with ``answers`` in turn, the last for ever."""

    port: int = 0
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    answers: list[bytes] = field(default_factory=lambda: [OK])
    serving: set[asyncio.Task[None] | None] = field(default_factory=set)
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None = None

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.serving.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await (self.serve or self._answer)(reader, writer)
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()

    async def ended(self) -> None:
        """Wait until all connections have ended."""
        if self.serving:
            await asyncio.wait(self.serving, timeout=LIMIT_S)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            fields = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:-2])
            }
            if b"content-length" in fields:
                self.bodies.append(await reader.readexactly(int(fields[b"content-length"])))
            elif b"transfer-encoding" in fields:
                body = b""
                while not body.endswith(b"0\r\n\r\n"):
                    body += await reader.readuntil(b"\r\n")
                self.bodies.append(body)
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            writer.write(answer)
            await writer.drain()
            if b"connection: close" in answer.lower():
                return


class Egress:
    """The proxy, and how a sandbox sees it."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder = folder
        self.names = Names()
        self.told: list[tuple[str, Denial]] = []
        self.sandboxes = Sandboxes(self.names, self._report, limits)

    async def _report(self, sandbox: str, denial: Denial) -> None:
        self.told.append((sandbox, denial))

    def open(self, sandbox: str = "one", **policy: tuple[str | int, ...]) -> Path:
        path = self.folder / sandbox
        self.sandboxes.open(protocol.Open(sandbox, str(path), Policy(**policy)))
        return path

    def allow(self, *entries: str, sandbox: str = "one") -> Path:
        """Reach these names, also where they lead to this host."""
        return self.open(sandbox, allow=entries, private_cidrs=("127.0.0.0/8",))

    async def connect(self, sandbox: str = "one") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self.folder / sandbox, limit=2**20)

    async def ask(self, raw: bytes, sandbox: str = "one", *, end: bool = False) -> bytes:
        """Send bytes and return all that comes until the proxy closes. end: say that nothing follows."""
        reader, writer = await self.connect(sandbox)
        try:
            writer.write(raw)
            if end:
                writer.write_eof()
            async with asyncio.timeout(LIMIT_S):
                return await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    @property
    def reasons(self) -> list[str]:
        return [denial.reason for _, denial in self.told]


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
async def egress(tmp_path: Path, limits: Limits) -> AsyncIterator[Egress]:
    made = Egress(tmp_path, limits)
    yield made
    await made.sandboxes.aclose()


@pytest.fixture
async def origin(egress: Egress) -> AsyncIterator[Origin]:
    """Reached as ``origin.example`` at its port."""
    made = Origin()
    server = await asyncio.start_server(made.connected, "127.0.0.1", 0, limit=2**20)
    made.port = server.sockets[0].getsockname()[1]
    egress.names.set("origin.example", [LOOPBACK])
    egress.allow(f"origin.example:{made.port}")
    yield made
    server.close()
    await egress.sandboxes.aclose()
    await made.ended()
    await server.wait_closed()
