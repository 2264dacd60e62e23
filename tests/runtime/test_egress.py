"""The way out from inside: what is carried, what waits, what is said where nobody is outside."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from sandboxd import egress
from sandboxd.protocol import BootConfig

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def carrying(path: Path) -> AsyncIterator[int]:
    """Yield the port inside."""
    way = egress.WayOut(str(path), port=0)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(way.serve())
        try:
            yield way.port
        finally:
            serving.cancel()


@contextlib.asynccontextmanager
async def outside(path: Path, serve: Serve) -> AsyncIterator[None]:
    serving = set()

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        with contextlib.suppress(OSError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_unix_server(closing, path)
    try:
        yield
    finally:
        server.close()
        if serving:
            await asyncio.wait(serving, timeout=5)


async def echo_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read())
    await writer.drain()


async def dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(egress.HOST, port)


async def test_all_bytes_are_carried_and_a_half_that_is_closed_leaves_the_other_open(tmp_path):
    sent = bytes(range(256)) * 40_000
    async with outside(tmp_path / "egress", echo_at_the_end), carrying(tmp_path / "egress") as port:
        reader, writer = await dial(port)
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == sent
        writer.close()


async def test_where_nobody_is_outside_a_client_is_told_so(tmp_path):
    async with carrying(tmp_path / "egress") as port:
        reader, writer = await dial(port)
        writer.write(b"CONNECT data.example:443 HTTP/1.1\r\nHost: data.example:443\r\n\r\n")
        answer = (await reader.read()).decode()
        assert answer.startswith("HTTP/1.1 502 sandbox egress is not available")
        assert answer.endswith("try again in a moment\n")
        writer.close()


async def test_a_client_that_says_nothing_is_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(egress, "_HEAD_S", 0.1)
    async with carrying(tmp_path / "egress") as port:
        reader, writer = await dial(port)
        assert await reader.read() == b""
        writer.close()


async def test_a_proxy_that_comes_back_is_found_at_its_place(tmp_path):
    path = tmp_path / "egress"
    async with carrying(path) as port:
        for text in (b"first", b"second"):
            async with outside(path, echo_at_the_end):
                reader, writer = await dial(port)
                writer.write(text)
                writer.write_eof()
                assert await reader.read() == text
                writer.close()
            path.unlink(missing_ok=True)


async def test_who_does_not_read_stops_who_writes(tmp_path):
    enough = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await enough.wait()

    async with outside(tmp_path / "egress", deaf), carrying(tmp_path / "egress") as port:
        with socket.create_connection((egress.HOST, port)) as client:
            client.setblocking(False)
            loop, sent = asyncio.get_running_loop(), 0
            with contextlib.suppress(TimeoutError):
                while sent < 64 * 2**20:
                    async with asyncio.timeout(0.5):
                        await loop.sock_sendall(client, bytes(2**16))
                    sent += 2**16
            assert sent < 64 * 2**20
        enough.set()


async def test_a_connection_that_breaks_outside_ends_inside(tmp_path):
    async def gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    async with outside(tmp_path / "egress", gone), carrying(tmp_path / "egress") as port:
        reader, writer = await dial(port)
        writer.write(b"x")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_further_connections_wait_for_room(tmp_path, monkeypatch):
    monkeypatch.setattr(egress, "MOST", 2)
    async with outside(tmp_path / "egress", echo_at_the_end), carrying(tmp_path / "egress") as port:
        held = [await dial(port), await dial(port)]
        reader, writer = await dial(port)
        writer.write(b"third")
        writer.write_eof()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read()
        held[0][1].close()
        assert await reader.read() == b"third"
        for _, each in (held[1], (reader, writer)):
            each.close()


def config(**fields: object) -> BootConfig:
    values = {"link": "", "workspace": "", "user": "", "kernels": "", "runtime": "", "environment": {"A": "1"}}
    return BootConfig(**{**values, **fields})  # type: ignore[arg-type]  # a table of a test


def test_without_a_way_out_no_program_is_told_of_one(tmp_path):
    assert egress.completed(config(), root=tmp_path) == config()


def test_programs_are_told_of_the_way_out_in_both_cases(tmp_path):
    found = egress.completed(config(egress="/run/cellbox/egress"), root=tmp_path).environment
    assert found["A"] == "1"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        assert found[name] == found[name.lower()] == "http://127.0.0.1:3128"
    assert found["NO_PROXY"] == found["no_proxy"]
    assert "SSL_CERT_FILE" not in found


def test_the_bundle_of_the_system_is_named_to_all_that_bring_their_own(tmp_path):
    bundle = tmp_path / "etc/pki/tls/certs/ca-bundle.crt"
    bundle.parent.mkdir(parents=True)
    bundle.touch()
    found = egress.completed(config(egress="/run/cellbox/egress"), root=tmp_path).environment
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS"):
        assert found[name] == "/etc/pki/tls/certs/ca-bundle.crt"
