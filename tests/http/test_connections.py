"""Raw bytes: what is not HTTP, too large, too slow, too many. Hostile rows first."""

import asyncio
import json
import logging
import socket
import sys

import pytest

from interpreter import logs, wire
from interpreter.http.server import ConnectionLimits
from tests.http.scripted import KEY, OTHER_KEY, Served, read_reply, serving, until

HEAD = f"POST /v1/exec HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\n".encode()
EXEC = b'{"scope": "u1", "language": "python", "code": "1"}'


@pytest.mark.parametrize(
    "request_",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX Y: 1\r\n\r\n",
        b"GET /healthz HTTP/3.0\r\nHost: localhost\r\n\r\n",
        b"GET  /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 0x10\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_not_http_is_refused_in_json(served: Served, request_):
    reply = await served.raw(request_)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    assert served.service.calls == []


async def test_an_absolute_target_is_no_route(served: Served):
    reply = await served.raw(
        b"GET http://localhost/v1/scopes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: %s\r\n\r\n" % KEY.encode()
    )
    assert (reply.status, reply.code) == (404, "route_not_found")


async def test_http_1_0_without_a_host_is_served(served: Served):
    assert (await served.raw(b"GET /healthz HTTP/1.0\r\n\r\n")).status == 200


async def test_a_chunked_body_is_taken(served: Served):
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in EXEC)
    reply = await served.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert reply.status == 200


async def test_requests_follow_each_other_on_a_connection_also_after_errors(served: Served):
    reader, writer = await served.connect()
    good = HEAD + b"Content-Length: %d\r\n\r\n" % len(EXEC) + EXEC
    bad = HEAD.replace(KEY.encode(), b"wrong") + b"Content-Length: %d\r\n\r\n" % len(EXEC) + EXEC
    unknown = HEAD.replace(b"/v1/exec", b"/nothing") + b"\r\n"
    writer.write(bad + unknown + good + bad + good)
    assert [(await read_reply(reader)).status for _ in range(5)] == [401, 404, 200, 401, 200]
    writer.close()


@pytest.mark.parametrize("length", [wire.MAX_BODY_BYTES + 1, 10**15, 10**30])
async def test_a_body_that_says_it_is_too_large_is_refused_at_once(served: Served, length):
    reply = await served.raw(HEAD + b"Content-Length: %d\r\n\r\n" % length)
    assert (reply.status, reply.code) == (413, "body_too_large")


async def test_a_client_that_sends_too_large_a_body_can_read_why(served: Served):
    reader, writer = await served.connect()
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % (wire.MAX_BODY_BYTES + 2**20))
    block = b" " * 2**20
    for _ in range(wire.MAX_BODY_BYTES // 2**20 + 1):
        writer.write(block)
        await writer.drain()
    reply = await read_reply(reader)
    assert (reply.status, reply.code) == (413, "body_too_large")
    writer.close()


async def test_a_chunked_body_that_grows_too_large_is_refused(served: Served):
    reader, writer = await served.connect()
    writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    for _ in range(wire.MAX_BODY_BYTES // 2**20 + 1):
        writer.write(chunk)
        await writer.drain()
    reply = await read_reply(reader)
    assert (reply.status, reply.code) == (413, "body_too_large")
    writer.close()


async def test_a_body_at_the_limit_is_taken(served: Served):
    body = EXEC + b" " * (wire.MAX_BODY_BYTES - len(EXEC))
    assert (await served.raw(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)).status == 200


async def test_what_a_named_execution_was_given_counts_until_it_ends_though_its_caller_has_left(served: Served):
    """Else callers who name, send and leave would have the service hold a large body for each execution it takes."""
    served.service.hold = True
    served.api.bodies.limit = 3 * 2**20
    for number in range(2):
        body = json.dumps(json.loads(EXEC) | {"execution_id": f"e{number}", "stdin": "x" * 2**20}).encode()
        _, writer = await served.connect()
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await until(lambda number=number: len(served.service.requests) > number)
        writer.close()
        await until(lambda: not served.server.connections)
    assert served.api.bodies.used > 2 * 2**20
    reply = await served.exec(stdin="x" * 2**20)
    assert (reply.status, reply.code) == (429, "too_many_bodies")
    for number in range(2):
        served.service.cancel(served.service.execution(f"e{number}", "u1"))
    await until(lambda: served.api.bodies.used == 0)


async def test_large_bodies_share_a_budget_that_small_ones_do_not_need(served: Served):
    served.api.bodies.limit = 3 * 2**20
    served.service.hold = True
    large = EXEC + b" " * 2 * 2**20
    first = asyncio.get_running_loop().create_task(served.call("POST", "/v1/exec", large))
    await served.service.submitted.wait()
    reply = await served.call("POST", "/v1/exec", large)
    assert (reply.status, reply.code, reply.headers["retry-after"]) == (429, "too_many_bodies", "1")
    served.service.hold = False
    assert (await served.exec(stdin="x" * 50_000)).status == 200
    served.service.cancel(served.service.execution("made-1", "u1"))
    assert (await first).status == 200
    assert served.api.bodies.used == 0
    assert (await served.call("POST", "/v1/exec", large)).status == 200


async def test_a_client_that_leaves_gives_the_room_of_its_body_back(served: Served):
    _, writer = await served.connect()
    writer.write(HEAD + b"Content-Length: 9000000\r\n\r\n" + b" " * 2**20)
    await until(lambda: served.api.bodies.used == 2**20)
    writer.close()
    await until(lambda: served.api.bodies.used == 0)


async def test_a_caller_without_a_key_fills_no_memory(served: Served):
    reader, writer = await served.connect()
    writer.write(HEAD.replace(KEY.encode(), b"wrong") + b"Content-Length: %d\r\n\r\n" % (8 * 2**20))
    kept = 0
    for _ in range(8):
        writer.write(b"x" * 2**20)
        await writer.drain()
        kept = max(kept, served.api.bodies.used)
    assert (await read_reply(reader)).status == 401
    assert kept == 0
    writer.close()


@pytest.mark.parametrize(("key", "status"), [(b"wrong", 401), (KEY.encode(), 413)])
async def test_a_client_that_asks_before_it_sends_is_refused_before_it_sends(served: Served, key, status):
    head = HEAD.replace(KEY.encode(), key) + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n"
    reply = await served.raw(head)
    assert (reply.status, reply.headers["connection"]) == (status, "close")


async def test_a_client_that_asks_before_it_sends_may_send(served: Served):
    reader, writer = await served.connect()
    writer.write(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(EXEC))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
    writer.write(EXEC)
    assert (await read_reply(reader)).status == 200
    writer.close()


async def test_an_encoded_body_is_refused(served: Served):
    reply = await served.raw(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")
    assert (reply.status, reply.code) == (415, "unsupported_encoding")


async def test_a_large_head_is_refused(served: Served):
    reply = await served.raw(HEAD + b"X: " + b"x" * 40_000 + b"\r\n\r\n")
    assert (reply.status, reply.code) == (431, "head_too_large")


async def test_many_headers_are_refused(served: Served):
    reply = await served.raw(HEAD + b"".join(b"X-%d: 1\r\n" % n for n in range(200)) + b"\r\n")
    assert (reply.status, reply.code) == (431, "head_too_large")


async def test_a_slow_head_is_ended():
    async with serving(connections=ConnectionLimits(head_timeout_s=0.2)) as served:
        reader, writer = await served.connect()
        writer.write(b"GET /healthz HTT")
        reply = await read_reply(reader)
        assert (reply.status, reply.code) == (408, "request_timeout")
        assert await reader.read() == b""
        writer.close()


async def test_a_head_that_trickles_is_ended_too():
    async with serving(connections=ConnectionLimits(head_timeout_s=0.3)) as served:
        reader, writer = await served.connect()
        reply = asyncio.get_running_loop().create_task(read_reply(reader))
        for byte in HEAD * 100:
            if reply.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
        assert (await reply).status == 408
        writer.close()


async def test_a_slow_body_is_ended():
    async with serving(connections=ConnectionLimits(body_timeout_s=0.2)) as served:
        reader, writer = await served.connect()
        writer.write(HEAD + b"Content-Length: 100\r\n\r\n{")
        reply = await read_reply(reader)
        assert (reply.status, reply.code) == (408, "request_timeout")
        assert await reader.read() == b""
        writer.close()


async def test_an_idle_connection_is_closed_without_a_word():
    async with serving(connections=ConnectionLimits(idle_timeout_s=0.2)) as served:
        reader, writer = await served.connect()
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()


async def test_a_client_that_does_not_read_its_answer_is_dropped():
    async with serving(connections=ConnectionLimits(stall_timeout_s=0.2)) as served:
        served.service.output = "x" * 30 * 2**20
        _, writer = await served.connect()
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(EXEC) + EXEC)
        await served.service.submitted.wait()
        await until(lambda: not served.server.connections)
        writer.close()


async def test_a_client_that_reads_slowly_gets_all_of_its_answer():
    async with serving(connections=ConnectionLimits(stall_timeout_s=1.0)) as served:
        served.service.output = "x" * 6 * 2**20
        reader, writer = await served.connect()
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(EXEC) + EXEC)
        count = 0
        while count < len(served.service.output):
            count += len(await reader.read(2**20))
            await asyncio.sleep(0.08)
        writer.close()


async def test_a_running_call_is_not_idle():
    async with serving(
        connections=ConnectionLimits(idle_timeout_s=0.1, head_timeout_s=0.1, body_timeout_s=0.1)
    ) as served:
        served.service.hold = True
        waiting = asyncio.get_running_loop().create_task(served.exec(execution_id="mine"))
        await served.service.submitted.wait()
        await asyncio.sleep(0.4)
        served.service.cancel(served.service.execution("mine", "u1"))
        assert (await waiting).status == 200


async def test_an_address_has_so_many_connections():
    async with serving(connections=ConnectionLimits(max_per_address=2)) as served:
        held = [await served.connect() for _ in range(2)]
        await until(lambda: served.server.connections == 2)
        reader, writer = await served.connect()
        reply = await read_reply(reader)
        assert (reply.status, reply.code) == (429, "too_many_connections")
        writer.close()
        for _, one in held:
            one.close()
        await until(lambda: not served.server.connections)
        assert (await served.exec()).status == 200


async def test_small_packets_leave_at_once(served: Served):
    reader, writer = await served.connect()
    for _ in range(2):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await read_reply(reader)
        (connection,) = served.server._connections
        sock = connection.stream.socket
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    writer.close()


async def test_clients_that_leave_at_any_point_leave_nothing(served: Served):
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(EXEC) + EXEC
    for cut in range(0, len(whole), 7):
        _, writer = await served.connect()
        writer.write(whole[:cut])
        writer.close()
    assert (await served.exec()).status == 200
    await until(lambda: not served.server.connections)


async def test_nothing_secret_is_logged(served: Served, caplog):
    caplog.set_level(logging.DEBUG)
    marks = ["secret-query", "secret-body", "secret-path", "secret-header"]
    await served.call("GET", f"/v1/scopes?secret-query={OTHER_KEY}")
    await served.call("POST", "/v1/exec", b'{"secret-body')
    await served.call("POST", "/v1/exec", {"scope": "u1", "language": "python", "code": "secret-body"})
    await served.call("GET", "/secret-path", X="secret-header")
    await served.call("GET", "/v1/scopes", Host="secret-header.example")
    served.service.fail = RuntimeError("ours")
    await served.exec(code="secret-body")
    formatter = logs.Formatter()
    lines = "\n".join(formatter.format(r) for r in caplog.records if r.name != "asyncio" and r.levelno >= logging.INFO)
    assert "route=" in lines
    for secret in [*marks, KEY, OTHER_KEY]:
        assert secret not in lines


def test_no_line_of_a_traceback_can_be_taken_for_a_line_of_the_log():
    try:
        raise ValueError("quoted\n2026-01-01T00:00:00.000Z INFO cellbox.http request status=200\x1b[2J")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    first, *below = logs.Formatter().format(record).split("\n")
    assert "failed" in first
    assert any("status=200" in line for line in below)
    assert all(line.startswith("  ") and line.isprintable() for line in below)


def test_a_log_line_cannot_be_broken_by_what_it_holds():
    record = logging.makeLogRecord(
        {"name": "x", "msg": "a\nb", "levelname": "INFO", "who": 'u1" status=200\nnext', "long": "x" * 9999}
    )
    line = logs.Formatter().format(record)
    assert "\n" not in line
    assert json.loads(line.split("who=")[1]) == 'u1" status=200\nnext'
    assert len(line) < 1000
