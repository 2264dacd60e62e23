"""CONNECT: what begins with TLS to its host goes through, nothing else does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import trustme
import websockets.asyncio.client
import websockets.asyncio.server

from egress import visit
from egress.limits import Limits
from tests.egress.conftest import LIMIT_S, LOOPBACK, OK, Egress, Origin
from tests.egress.test_hello import client_hello, split

DENIED_ALERT = b"\x15\x03\x03\x00\x02\x02\x31"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@dataclass
class TlsOrigin(Origin):
    client: ssl.SSLContext | None = None


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def tls(egress: Egress, ca: trustme.CA) -> AsyncIterator[TlsOrigin]:
    """An origin behind TLS, as ``tls.example``."""
    server_side, client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    ca.issue_cert("tls.example", "127.0.0.1").configure_cert(server_side)
    ca.configure_trust(client_side)
    made = TlsOrigin(client=client_side)
    server = await asyncio.start_server(made.connected, "127.0.0.1", 0, ssl=server_side)
    made.port = server.sockets[0].getsockname()[1]
    egress.names.set("tls.example", [LOOPBACK])
    egress.allow(f"tls.example:{made.port}", f"127.0.0.1:{made.port}")
    yield made
    server.close()
    await egress.sandboxes.aclose()
    await made.ended()
    await server.wait_closed()


async def tunnel(egress: Egress, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await egress.connect()
    writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    async with asyncio.timeout(LIMIT_S):
        assert await reader.readuntil(b"\r\n\r\n") == ESTABLISHED
    return reader, writer


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()


async def after_hello(egress: Egress, origin: Origin, data: bytes, host: str = "origin.example") -> bytes:
    """What comes back to these first bytes of a tunnel, until it is closed."""
    reader, writer = await tunnel(egress, host, origin.port)
    writer.write(data)
    async with asyncio.timeout(LIMIT_S):
        answer = await reader.read()
    await closed(writer)
    return answer


@pytest.mark.parametrize("host", ["tls.example", "127.0.0.1"])
async def test_tls_to_the_host_goes_through(egress: Egress, tls: TlsOrigin, host: str) -> None:
    reader, writer = await tunnel(egress, host, tls.port)
    await writer.start_tls(tls.client, server_hostname=host)
    writer.write(b"GET /secret HTTP/1.1\r\n\r\n")
    assert await reader.readuntil(b"ok") == OK
    assert tls.heads == [b"GET /secret HTTP/1.1\r\n\r\n"]
    assert egress.told == []
    await closed(writer)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: origin.example\r\n\r\n", "not_tls"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not_tls"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "not_tls"),
        (b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + bytes(16_384), "not_tls"),
        (client_hello("other.example"), "other_server_name"),
        (client_hello("sub.origin.example"), "other_server_name"),
        (split(client_hello("other.example"), 11), "other_server_name"),
        (client_hello(None), "no_server_name"),
    ],
    ids=["http", "ssh", "h2", "long", "other", "sub", "other-split", "none"],
)
async def test_what_does_not_begin_with_tls_to_the_host_is_cut(
    egress: Egress, origin: Origin, data: bytes, reason: str
) -> None:
    received = bytearray()

    async def recording(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            received.extend(data)

    origin.serve = recording
    assert await after_hello(egress, origin, data) == DENIED_ALERT
    assert egress.reasons == [reason]
    assert received == b""


async def test_a_tunnel_to_an_address_may_name_that_address_only(egress: Egress, tls: TlsOrigin) -> None:
    assert await after_hello(egress, tls, client_hello("tls.example"), host="127.0.0.1") == DENIED_ALERT
    assert egress.reasons == ["other_server_name"]


async def test_a_hello_split_over_records_and_reads_goes_through_whole(egress: Egress, origin: Origin) -> None:
    hello, received = split(client_hello("origin.example"), 50), asyncio.get_running_loop().create_future()

    async def recording(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.readexactly(len(hello) + 4))

    origin.serve = recording
    _reader, writer = await tunnel(egress, "origin.example", origin.port)
    for at in range(0, len(hello), 97):
        writer.write(hello[at : at + 97])
        await asyncio.sleep(0)
    writer.write(b"more")
    assert await asyncio.wait_for(received, LIMIT_S) == hello + b"more"
    await closed(writer)


async def test_a_hello_that_comes_with_its_connect_goes_through(egress: Egress, tls: TlsOrigin) -> None:
    hello = client_hello("tls.example")
    reader, writer = await egress.connect()
    writer.write(b"CONNECT tls.example:%d HTTP/1.1\r\n\r\n" % tls.port + hello)
    assert await reader.readuntil(b"\r\n\r\n") == ESTABLISHED
    assert (await reader.readexactly(3))[:2] == b"\x16\x03"
    await closed(writer)


async def test_nothing_of_the_server_comes_before_the_hello(egress: Egress, origin: Origin) -> None:
    async def eager(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example\r\n")
        await writer.drain()
        await reader.read()

    origin.serve = eager
    assert await after_hello(egress, origin, b"EHLO x\r\n") == DENIED_ALERT


class TestShortLimits:
    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(hello_s=0.2, idle_s=0.3)

    async def test_a_hello_that_does_not_end_is_cut(self, egress: Egress, origin: Origin) -> None:
        assert await after_hello(egress, origin, client_hello("origin.example")[:50]) == DENIED_ALERT
        assert egress.reasons == ["not_tls"]

    async def test_an_idle_tunnel_ends(self, egress: Egress, tls: TlsOrigin) -> None:
        reader, writer = await tunnel(egress, "tls.example", tls.port)
        await writer.start_tls(tls.client, server_hostname="tls.example")
        reading = asyncio.gather(reader.read(), return_exceptions=True)
        async with asyncio.timeout(LIMIT_S):
            while not reading.done():
                egress.sandboxes.expire()
                await asyncio.sleep(0.05)
        await closed(writer)


async def test_a_half_closed_tunnel_goes_on_in_the_other_direction(egress: Egress, origin: Origin) -> None:
    hello = client_hello("origin.example")

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read()
        writer.write(b"%d bytes, then the end" % len(asked))
        await writer.drain()

    origin.serve = answering
    reader, writer = await tunnel(egress, "origin.example", origin.port)
    writer.write(hello)
    await writer.drain()
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), LIMIT_S) == b"%d bytes, then the end" % len(hello)
    await closed(writer)


async def test_a_server_that_half_closes_still_hears_the_client(egress: Egress, origin: Origin) -> None:
    hello, heard = client_hello("origin.example"), asyncio.get_running_loop().create_future()

    async def ending(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(hello))
        writer.write_eof()
        heard.set_result(await reader.read())

    origin.serve = ending
    reader, writer = await tunnel(egress, "origin.example", origin.port)
    writer.write(hello)
    assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""
    writer.write(b"still here")
    writer.write_eof()
    assert await asyncio.wait_for(heard, LIMIT_S) == b"still here"
    await closed(writer)


async def test_wss_through_connect(egress: Egress, ca: trustme.CA) -> None:
    server_side, client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    ca.issue_cert("ws.example").configure_cert(server_side)
    ca.configure_trust(client_side)

    async def echo(connection: websockets.asyncio.server.ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async with websockets.asyncio.server.serve(echo, "127.0.0.1", 0, ssl=server_side) as server:
        port = server.sockets[0].getsockname()[1]
        egress.names.set("ws.example", [LOOPBACK])
        path = egress.allow(f"ws.example:{port}")
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(path))
        client.sendall(b"CONNECT ws.example:%d HTTP/1.1\r\n\r\n" % port)
        answer = await asyncio.to_thread(client.recv, len(ESTABLISHED), socket.MSG_WAITALL)
        assert answer == ESTABLISHED
        uri = f"wss://ws.example:{port}/"
        async with websockets.asyncio.client.connect(uri, sock=client, ssl=client_side, proxy=None) as connection:
            await connection.send("hello")
            assert await connection.recv() == "hello"
            await connection.send(b"x" * 500_000)
            assert await connection.recv() == b"x" * 500_000


class TestPlainPort:
    """CONNECT to the port of plain HTTP is read as plain HTTP."""

    @pytest.fixture(autouse=True)
    def plain(self, origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(visit, "_PLAIN_PORT", origin.port)

    async def test_requests_go_through_and_are_written_anew(self, egress: Egress, origin: Origin) -> None:
        reader, writer = await tunnel(egress, "origin.example", origin.port)
        for path in (b"/one", b"/two"):
            writer.write(b"GET %s HTTP/1.1\r\nHost: origin.example:%d\r\nProxy-X: y\r\n\r\n" % (path, origin.port))
            assert await asyncio.wait_for(reader.readuntil(b"ok"), LIMIT_S) == OK
        assert origin.heads[1] == b"GET /two HTTP/1.1\r\nHost: origin.example:%d\r\n\r\n" % origin.port
        assert origin.connections == 1
        await closed(writer)

    @pytest.mark.parametrize(
        "raw",
        [
            b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET http://other.example/ HTTP/1.1\r\n\r\n",
            b"CONNECT other.example:443 HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: origin.example\r\nHost: other.example\r\n\r\n",
            client_hello("origin.example"),
            b"SSH-2.0-x\n",
        ],
    )
    async def test_no_other_host_and_no_other_protocol(self, egress: Egress, origin: Origin, raw: bytes) -> None:
        assert (await after_hello(egress, origin, raw)).startswith(b"HTTP/1.1 400 ")
        assert origin.heads == []

    async def test_no_upgrade(self, egress: Egress, origin: Origin) -> None:
        origin.answers = [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"]
        raw = b"GET / HTTP/1.1\r\nHost: origin.example:%d\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n" % origin.port
        assert (await after_hello(egress, origin, raw)).startswith(b"HTTP/1.1 502 ")
        assert b"pgrade" not in origin.heads[0]
