"""Requests of plain HTTP through the real proxy to a real origin, which records what arrives."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
from pathlib import Path

import pytest

from egress.limits import Limits
from tests.egress.conftest import LIMIT_S, LOOPBACK, OK, Egress, Origin


class Kept:
    """A client that keeps its connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, raw: bytes, until: bytes = b"ok") -> bytes:
        self.writer.write(raw)
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.readuntil(until)

    async def end(self) -> None:
        """Read until the proxy closes."""
        with contextlib.suppress(OSError):
            async with asyncio.timeout(LIMIT_S):
                while await self.reader.read(100_000):
                    pass

    async def aclose(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def get(origin: Origin, path: str = "/", *fields: str, method: str = "GET", version: str = "1.1") -> bytes:
    lines = [
        f"{method} http://origin.example:{origin.port}{path} HTTP/{version}",
        f"Host: origin.example:{origin.port}",
    ]
    return "\r\n".join([*lines, *fields, "", ""]).encode()


async def test_a_request_reaches_the_origin(egress: Egress, origin: Origin) -> None:
    answer = await egress.ask(get(origin, "/a?b=c", "Connection: close"))
    assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    assert origin.heads == [b"GET /a?b=c HTTP/1.1\r\nHost: origin.example:%d\r\n\r\n" % origin.port]


async def test_a_host_that_is_not_in_the_allowlist_is_refused_and_not_looked_up(egress: Egress, origin: Origin) -> None:
    for raw in (b"CONNECT other.example:443 HTTP/1.1\r\n\r\n", b"GET http://other.example/ HTTP/1.1\r\n\r\n"):
        answer = await egress.ask(raw)
        assert answer.startswith(b"HTTP/1.1 403 sandbox egress denied: host other.example is not in allowlist\r\n")
        assert answer.endswith(b"\r\n\r\nsandbox egress denied: host other.example is not in allowlist\n")
    assert egress.names.asked == []
    assert egress.reasons == ["not_allowed"] * 2


async def test_a_name_that_leads_inside_is_refused(egress: Egress, origin: Origin) -> None:
    egress.open("two", allow=("*", f"*:{origin.port}"))
    egress.names.set("inside.example", [LOOPBACK])
    answer = await egress.ask(b"GET http://inside.example:%d/ HTTP/1.1\r\n\r\n" % origin.port, "two")
    assert b"403 sandbox egress denied: host inside.example has a private address" in answer
    assert origin.connections == 0


async def test_a_connection_goes_to_a_judged_address_and_the_name_is_asked_once(egress: Egress, origin: Origin) -> None:
    """A resolver that says the one thing to the judge and another to who asks again (rebinding)."""
    egress.open("two", allow=(f"name.example:{origin.port}",), private_cidrs=("127.0.0.1/32",))
    egress.names.set("name.example", [LOOPBACK], [bytes((10, 0, 0, 1))], [bytes((169, 254, 169, 254))])
    raw = b"GET http://name.example:%d/ HTTP/1.1\r\nConnection: close\r\n\r\n" % origin.port
    assert (await egress.ask(raw, "two")).startswith(b"HTTP/1.1 200")
    assert egress.names.asked == ["name.example"]
    assert b"has a private address" in await egress.ask(raw, "two")
    assert b"has a metadata address" in await egress.ask(raw, "two")
    assert origin.connections == 1


async def test_each_answer_of_a_resolver_is_judged(egress: Egress, origin: Origin) -> None:
    egress.open("two", allow=(f"name.example:{origin.port}",), private_cidrs=("127.0.0.1/32",))
    egress.names.set("name.example", [bytes((127, 0, 0, 2)), bytes((169, 254, 169, 254)), LOOPBACK])
    raw = b"GET http://name.example:%d/ HTTP/1.1\r\nConnection: close\r\n\r\n" % origin.port
    assert (await egress.ask(raw, "two")).startswith(b"HTTP/1.1 200")


def addresses_of_this_host() -> list[str]:
    found = set()
    for line in Path("/proc/net/fib_trie").read_text().split("\n"):
        if "|--" in line:
            address = line.split()[-1]
        elif "host LOCAL" in line:
            found.add(address)
    if Path("/proc/net/if_inet6").exists():
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])))
    return sorted(found)


@pytest.mark.parametrize("address", addresses_of_this_host())
async def test_no_address_of_this_host_is_reached(egress: Egress, address: str) -> None:
    """Whatever the policy, except for loopback where a range lifts it; there the service's ports are kept from it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    loopback = address.startswith("127.") or address == "::1"
    with socket.socket(family) as listening:
        listening.bind((address, 0) if not address.startswith("fe80") else ("::", 0))
        listening.listen()
        port = listening.getsockname()[1]
        cidrs = () if loopback else ("0.0.0.0/0", "::/0")
        egress.open("two", allow=(f"*:{port}",), private_cidrs=cidrs)
        egress.names.set("name.example", [socket.inet_pton(family, address)])
        literal = f"[{address}]" if ":" in address else address
        for host in ("name.example", literal):
            answer = await egress.ask(f"GET http://{host}:{port}/ HTTP/1.1\r\n\r\n".encode(), "two")
            assert answer.startswith(b"HTTP/1.1 403 sandbox egress denied: host ")
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


NO_HOSTS = [
    "0x7f.1",
    "127.1",
    "2130706433",
    "①②⑦.⓪.⓪.①",
    "127.0.0.1%00",
    "127.0.0.1.",
    "017700000001",
    "user@127.0.0.1",
    "a\\b",
]


@pytest.mark.parametrize("host", NO_HOSTS)
async def test_odd_forms_of_this_host_reach_nothing(egress: Egress, origin: Origin, host: str) -> None:
    egress.open("two", allow=(f"*:{origin.port}",), private_cidrs=("0.0.0.0/0",))
    for raw in (f"GET http://{host}:{origin.port}/ HTTP/1.1\r\n\r\n", f"CONNECT {host}:{origin.port} HTTP/1.1\r\n\r\n"):
        assert (await egress.ask(raw.encode(), "two")).startswith(b"HTTP/1.1 400 sandbox egress: ")
    assert (origin.connections, egress.names.asked) == (0, [])


SMUGGLED = b"GET http://origin.example:PORT/smuggled HTTP/1.1\r\nHost: origin.example:PORT\r\n\r\n"
CORPUS = [
    b"POST http://origin.example:PORT/ HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    b"POST http://origin.example:PORT/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    b"POST http://origin.example:PORT/ HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n" + SMUGGLED,
    b"POST http://origin.example:PORT/ HTTP/1.1\r\nContent-Length: +0\r\n\r\n" + SMUGGLED,
    b"POST http://origin.example:PORT/ HTTP/1.1\r\nContent-Length: 0,0\r\n\r\n" + SMUGGLED,
    b"POST http://origin.example:PORT/ HTTP/1.1\r\nContent-Length : 0\r\n\r\n" + SMUGGLED,
    b"POST http://origin.example:PORT/ HTTP/1.1\r\nContent-Length:\r\n 0\r\n\r\n" + SMUGGLED,
    b"POST http://origin.example:PORT/ HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    b"POST http://origin.example:PORT/ HTTP/1.1\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    b"POST http://origin.example:PORT/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    b"POST http://origin.example:PORT/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    b"GET http://origin.example:PORT/ HTTP/1.1\nHost: origin.example:PORT\n\n" + SMUGGLED,
    b"GET http://origin.example:PORT/ HTTP/1.1\r\nHost: other.example\r\n\r\n" + SMUGGLED,
    b"GET http://origin.example:PORT/ HTTP/1.1\r\nHost: origin.example:PORT\r\nHost: origin.example:PORT\r\n\r\n",
    b"GET http://origin.example:PORT/ HTTP/1.1\r\nA: b\0\r\n\r\n" + SMUGGLED,
    b"GET http://origin.example:PORT/ HTTP/1.1\r\nA: b\r\n c\r\n\r\n" + SMUGGLED,
    b"GET http://origin.example:PORT/\x20HTTP/1.1\r\nA: HTTP/1.1\r\n\r\n"[:-4] + b"\rA: b\r\n\r\n",
    b"GET http://x@origin.example:PORT/ HTTP/1.1\r\n\r\n",
    b"GET http://origin.example:PORT@other.example/ HTTP/1.1\r\n\r\n",
    b"GET /smuggled HTTP/1.1\r\nHost: origin.example:PORT\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    b"A" * 20_000,
]


@pytest.mark.parametrize("raw", CORPUS, ids=range(len(CORPUS)))
async def test_what_can_be_read_in_two_ways_reaches_no_origin(egress: Egress, origin: Origin, raw: bytes) -> None:
    answer = await egress.ask(raw.replace(b"PORT", b"%d" % origin.port))
    assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431")
    assert answer.count(b"Connection: close") == 1
    assert origin.heads == []


BAD_BODIES = [
    b"5\nhello\n0\n\n",
    b"5\r\nhelloX\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"-1\r\n\r\n",
    b"5;\0\r\nhello\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("body", BAD_BODIES)
async def test_a_body_that_is_none_is_refused_and_ends_the_connection(
    egress: Egress, origin: Origin, body: bytes
) -> None:
    answer = await egress.ask(
        get(origin, "/", "Transfer-Encoding: chunked", method="POST") + body + get(origin, "/smuggled")
    )
    assert answer.startswith(b"HTTP/1.1 400")
    assert not any(b"smuggled" in head for head in origin.heads)
    assert origin.bodies == []


async def test_what_is_pipelined_is_not_answered(egress: Egress, origin: Origin) -> None:
    answer = await egress.ask(get(origin, "/first") + get(origin, "/second"))
    assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    assert [head.split()[1] for head in origin.heads] == [b"/first"]


async def test_what_follows_a_body_is_not_read_as_a_request(egress: Egress, origin: Origin) -> None:
    raw = get(origin, "/first", "Content-Length: 5", method="POST") + b"hello" + get(origin, "/second")
    assert (await egress.ask(raw)).count(b"HTTP/1.1 200") == 1
    assert (origin.bodies, len(origin.heads)) == ([b"hello"], 1)


async def test_requests_in_turn_keep_both_connections_and_are_judged_anew(egress: Egress, origin: Origin) -> None:
    client = Kept(*await egress.connect())
    for number in range(3):
        assert (await client.ask(get(origin, f"/{number}"))).startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
    assert origin.connections == 1
    client.writer.write(b"GET http://other.example/ HTTP/1.1\r\n\r\n")
    assert (await client.reader.read()).startswith(b"HTTP/1.1 403")
    await client.aclose()


async def test_another_host_on_the_same_connection_has_its_own_way(egress: Egress, origin: Origin) -> None:
    egress.allow(f"origin.example:{origin.port}", f"second.example:{origin.port}")
    egress.names.set("second.example", [LOOPBACK])
    client = Kept(*await egress.connect())
    await client.ask(get(origin))
    await client.ask(get(origin).replace(b"origin.example", b"second.example"))
    assert [head.split(b"\r\n")[1].split(b":")[1] for head in origin.heads] == [b" origin.example", b" second.example"]
    assert origin.connections == 2
    await client.aclose()


async def test_a_kept_origin_that_has_closed_is_connected_to_again(egress: Egress, origin: Origin) -> None:
    origin.answers = [OK, OK + b"extra", OK]
    closed = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        origin.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        await writer.drain()
        writer.close()
        closed.set()

    origin.serve = once
    client = Kept(*await egress.connect())
    for _ in range(3):
        assert (await client.ask(get(origin))).startswith(b"HTTP/1.1 200")
        await closed.wait()
        closed.clear()
    assert origin.connections == 3
    await client.aclose()


async def test_an_origin_that_closes_without_an_answer_is_a_502(egress: Egress, origin: Origin) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    origin.serve = silent
    answer = await egress.ask(get(origin))
    assert answer.startswith(b"HTTP/1.1 502 sandbox egress failed: host origin.example closed the connection without")
    assert origin.connections == 1


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_an_answer_in_chunks(egress: Egress, origin: Origin, version: str) -> None:
    origin.answers = [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n02\r\nde\r\n0\r\nT: u\r\n\r\n"
    ]
    answer = await egress.ask(get(origin, "/", "Connection: close", version=version))
    if version == "1.1":
        assert answer.endswith(
            b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
    else:
        assert answer == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcde"


async def test_a_body_in_chunks_reaches_the_origin_written_anew(egress: Egress, origin: Origin) -> None:
    raw = get(origin, "/", "Transfer-Encoding: chunked", "Connection: close", method="POST")
    assert (await egress.ask(raw + b"003;a=b\r\nabc\r\n0\r\nT: u\r\n\r\n")).endswith(b"ok")
    assert origin.bodies == [b"3\r\nabc\r\n0\r\n\r\n"]


async def test_100_continue_is_passed_on_and_the_body_after_it(egress: Egress, origin: Origin) -> None:
    async def careful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        origin.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        origin.bodies.append(await reader.readexactly(5))
        writer.write(OK)
        await writer.drain()

    origin.serve = careful
    client = Kept(*await egress.connect())
    raw = get(origin, "/", "Expect: 100-continue", "Content-Length: 5", method="PUT")
    assert await client.ask(raw, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert origin.bodies == []
    assert (await client.ask(b"hello")).startswith(b"HTTP/1.1 200")
    assert origin.bodies == [b"hello"]
    assert b"Expect: 100-continue" in origin.heads[0]
    await client.aclose()


async def test_an_origin_that_answers_before_the_body_is_heard(egress: Egress, origin: Origin) -> None:
    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()

    origin.serve = refusing
    raw = get(origin, "/", "Expect: 100-continue", "Content-Length: 500000", method="PUT")
    assert (await egress.ask(raw)).startswith(b"HTTP/1.1 413 Too Large\r\n")


async def test_hints_come_before_the_answer(egress: Egress, origin: Origin) -> None:
    origin.answers = [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK]
    answer = await egress.ask(get(origin, "/", "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n")
    answer = await egress.ask(get(origin, "/", version="1.0"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_head_and_answers_without_a_body(egress: Egress, origin: Origin) -> None:
    origin.answers = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n",
        OK,
    ]
    client = Kept(*await egress.connect())
    assert b"Content-Length: 500" in await client.ask(get(origin, method="HEAD"), b"\r\n\r\n")
    assert b"204" in await client.ask(get(origin), b"\r\n\r\n")
    assert b"304" in await client.ask(get(origin), b"\r\n\r\n")
    assert (await client.ask(get(origin))).startswith(b"HTTP/1.1 200")
    assert origin.connections == 1
    await client.aclose()


async def test_an_answer_without_a_length_ends_with_its_connection(egress: Egress, origin: Origin) -> None:
    origin.answers = [b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nto the end"]
    assert await egress.ask(get(origin)) == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end"


async def test_an_answer_that_is_cut_is_cut_for_the_client(egress: Egress, origin: Origin) -> None:
    origin.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\nConnection: close\r\n\r\nhalf"]
    assert await egress.ask(get(origin)) == b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhalf"


BAD_ANSWERS = [
    b"garbage\r\n\r\n",
    b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nA: " + b"b" * 17_000 + b"\r\n\r\n",
]


@pytest.mark.parametrize("answer", BAD_ANSWERS, ids=range(len(BAD_ANSWERS)))
async def test_an_answer_that_is_none_is_a_502(egress: Egress, origin: Origin, answer: bytes) -> None:
    origin.answers = [answer]
    raw = get(origin, "/", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    assert (await egress.ask(raw)).startswith(b"HTTP/1.1 502 sandbox egress failed: the answer of host origin.example")
    assert not any(b"upgrade" in head.lower() for head in origin.heads)


async def test_a_redirect_is_the_clients_to_follow(egress: Egress, origin: Origin) -> None:
    origin.answers = [b"HTTP/1.1 302 Found\r\nLocation: http://other.example/\r\nContent-Length: 0\r\n\r\n"]
    answer = await egress.ask(get(origin, "/", "Connection: close"))
    assert b"302 Found\r\nLocation: http://other.example/\r\n" in answer
    assert egress.names.asked == ["origin.example"]


async def test_an_ipv6_literal_in_a_url(egress: Egress, origin: Origin) -> None:
    server = await asyncio.start_server(origin.connected, "::1", 0)
    port = server.sockets[0].getsockname()[1]
    egress.open("two", allow=(f"[::1]:{port}",), private_cidrs=("::1/128",))
    answer = await egress.ask(b"GET http://[0::1]:%d/x HTTP/1.1\r\nConnection: close\r\n\r\n" % port, "two")
    assert answer.endswith(b"ok")
    assert origin.heads == [b"GET /x HTTP/1.1\r\nHost: [::1]:%d\r\n\r\n" % port]
    server.close()
    await origin.ended()
    await server.wait_closed()


async def test_a_name_without_an_address_is_a_502(egress: Egress) -> None:
    egress.allow("nowhere.example")
    answer = await egress.ask(b"CONNECT nowhere.example:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502 sandbox egress failed: host nowhere.example cannot be resolved")


async def test_a_port_where_nobody_listens_is_a_502(egress: Egress) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        egress.allow(f"127.0.0.1:{port}")
        answer = await egress.ask(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
    assert answer.startswith(
        b"HTTP/1.1 502 sandbox egress failed: host 127.0.0.1 port %d cannot be connected to" % port
    )


async def test_the_second_address_is_tried_where_the_first_does_not_answer(egress: Egress, origin: Origin) -> None:
    egress.names.set("origin.example", [bytes((127, 0, 0, 9)), LOOPBACK])
    assert (await egress.ask(get(origin, "/", "Connection: close"))).endswith(b"ok")


class TestShortLimits:
    """What takes too long."""

    @pytest.fixture
    def limits(self) -> Limits:
        return Limits(head_s=0.2, connect_s=0.2, idle_s=0.2, hello_s=0.2)

    async def test_a_head_that_does_not_end_is_a_408(self, egress: Egress, origin: Origin) -> None:
        assert (await egress.ask(b"GET http://origin.example/ HT")).startswith(b"HTTP/1.1 408 ")
        assert await egress.ask(b"") == b""

    async def test_a_resolver_that_does_not_answer_is_a_504(self, egress: Egress, origin: Origin) -> None:
        egress.names.wait = asyncio.Event()
        assert (await egress.ask(get(origin))).startswith(b"HTTP/1.1 504 ")
        egress.names.wait.set()

    async def test_an_origin_that_does_not_answer_is_a_504(self, egress: Egress, origin: Origin) -> None:
        ended = asyncio.Event()

        async def waiting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.read() == b""
            ended.set()

        origin.serve = waiting
        asking = asyncio.gather(egress.ask(get(origin)), return_exceptions=True)
        while not asking.done():
            egress.sandboxes.expire()
            await asyncio.sleep(0.05)
        (answer,) = asking.result()
        assert answer.startswith(b"HTTP/1.1 504 sandbox egress failed: the host took too long")
        await asyncio.wait_for(ended.wait(), LIMIT_S)

    async def test_an_answer_whose_head_does_not_end_is_a_502(self, egress: Egress, origin: Origin) -> None:
        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200")
            assert await reader.read() == b""

        origin.serve = slow
        assert (await egress.ask(get(origin))).startswith(b"HTTP/1.1 502 ")


async def test_the_standard_librarys_client_keeps_its_connection(egress: Egress, origin: Origin) -> None:
    class Unix(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(str(egress.folder / "one"))

    def session() -> list[bytes]:
        client, bodies = Unix("proxy"), []
        for _ in range(3):
            client.request(
                "GET", f"http://origin.example:{origin.port}/", headers={"Host": f"origin.example:{origin.port}"}
            )
            bodies.append(client.getresponse().read())
        client.request("POST", f"http://origin.example:{origin.port}/", iter([b"a", b"b"]), encode_chunked=True)
        bodies.append(client.getresponse().read())
        client.close()
        return bodies

    assert await asyncio.to_thread(session) == [b"ok"] * 4
    assert origin.bodies == [b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"]
