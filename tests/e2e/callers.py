"""Many callers in one loop: the cheapest HTTP client there is, so that what is measured is the service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.conftest import KEY, Cellbox


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. headers: names in lower case."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]


class Caller:
    """One kept connection, one call at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Reply:
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        await self._writer.drain()
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        answer = await self._reader.readexactly(int(headers["content-length"]))
        return Reply(int(first.split()[1]), headers, json.loads(answer))

    async def exec(self, code: str, *, language: str = "python", **fields: Any) -> dict[str, Any]:
        """The answer of an exec that must be a 200 and ``ok``."""
        reply = await self.call("POST", "/v1/exec", {"language": language, "code": code, **fields})
        assert reply.status == 200, (reply.status, reply.body)
        assert reply.body["status"] == "ok", reply.body
        return reply.body

    async def cell(self, code: str, **fields: Any) -> dict[str, Any]:
        return await self.exec(code, stateful=True, **fields)


@asynccontextmanager
async def calling(service: Cellbox) -> AsyncIterator[Caller]:
    address = urlsplit(service.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**24)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()
