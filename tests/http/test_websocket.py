"""The WebSocket, with a real client against a server whose executions a test writes."""

from __future__ import annotations

import asyncio
import base64
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from interpreter.errors import QueueFull
from interpreter.executions.execution import Execution
from interpreter.http import websocket
from interpreter.http.websocket import MAX_FOLLOWED, close_all
from tests.http.scripted import KEY, Served, finished, serving, until


@asynccontextmanager
async def socket(
    served: Served, query: str = "scope=u1&session=chatA", **options: Any
) -> AsyncIterator[ClientConnection]:
    key = options.pop("key", KEY)
    headers = ({} if key is None else {"X-API-Key": key}) | options.pop("headers", {})
    url = f"ws://127.0.0.1:{served.port}/v1/ws?{query}"
    async with connect(url, additional_headers=headers, compression=None, **options) as client:
        yield client


async def say(client: ClientConnection, **message: Any) -> None:
    await client.send(json.dumps(message))


async def hear(client: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(20):
        heard: dict[str, Any] = json.loads(await client.recv())
    return heard


async def execute(client: ClientConnection, name: str = "1", **fields: Any) -> None:
    await say(client, **{"type": "execute", "id": name, "language": "python", "code": "1", "stateful": True} | fields)


def execution(served: Served, number: int = 0) -> Execution:
    return list(served.service._executions.values())[number]


async def test_an_execution_is_run_and_told_with_the_id_of_the_client(served: Served) -> None:
    async with socket(served) as client:
        await execute(client, "mine", env={"A": "b"})
        heard = [await hear(client) for _ in range(3)]
    assert [(one["id"], one["seq"], one["type"]) for one in heard] == [
        ("mine", 0, "started"),
        ("mine", 1, "stdout"),
        ("mine", 2, "finished"),
    ]
    request = served.service.requests[0]
    assert (request.scope, request.session, request.env, request.stream) == ("u1", "chatA", {"A": "b"}, True)
    assert ("warm", "u1", "chatA") in served.service.calls


async def test_several_run_side_by_side_and_one_is_interrupted_by_its_id(served: Served) -> None:
    served.service.hold = True
    async with socket(served) as client:
        await execute(client, "a")
        await execute(client, "b")
        assert {(await hear(client))["id"] for _ in range(2)} == {"a", "b"}
        execution(served, 1).events.add_text("stdout", "second")
        assert (await hear(client))["text"] == "second"
        await say(client, type="interrupt", id="a")
        heard = [await hear(client), await hear(client)]
        assert [(one["id"], one.get("status")) for one in heard][-1] == ("a", "interrupted")
    assert served.service.cancelled == [execution(served, 0).id]


async def test_input_goes_to_the_execution_that_asked(served: Served) -> None:
    served.service.hold = True
    async with socket(served) as client:
        await execute(client, "a", allow_input=True)
        assert (await hear(client))["type"] == "started"
        execution(served).events.add("input_request", prompt="name? ", password=False)
        assert (await hear(client))["prompt"] == "name? "
        await say(client, type="input", id="a", text="Ada")
        await until(lambda: ("input", execution(served).id, "Ada") in served.service.calls)


async def test_the_end_of_a_socket_ends_no_execution_and_attach_goes_on_where_it_broke_off(served: Served) -> None:
    served.service.hold = True
    async with socket(served) as client:
        await execute(client, "a", execution_id="run-1")
        assert (await hear(client))["seq"] == 0
    execution(served).events.add_text("stdout", "meanwhile")
    async with socket(served) as client:
        await say(client, type="attach", execution_id="run-1", after=0)
        assert [(await hear(client))[key] for key in ("text",)] == ["meanwhile"]
        execution(served).end(finished(execution(served)), 0.0)
        last = await hear(client)
        assert (last["id"], last["type"], last["seq"]) == ("run-1", "finished", 2)
    assert served.service.cancelled == []


@pytest.mark.parametrize(
    ("message", "name", "code", "said"),
    [
        ("{", None, "invalid_request", ""),
        ("[]", None, "invalid_request", ""),
        ('{"type": "exec", "id": "1"}', "1", "invalid_request", "type must be one of"),
        ('{"type": [], "id": "1"}', "1", "invalid_request", "type must be one of"),
        ('{"type": "execute", "language": "python", "code": ""}', None, "invalid_request", "id must be"),
        ('{"type": "execute", "id": 1, "language": "python", "code": ""}', None, "invalid_request", "id must be"),
        ('{"type": "execute", "id": "1", "language": "cobol", "code": ""}', "1", "unknown_language", "python"),
        (
            '{"type": "execute", "id": "1", "scope": "u2", "language": "python", "code": ""}',
            "1",
            "unknown_field",
            "scope",
        ),
        (
            '{"type": "execute", "id": "1", "statefull": true, "language": "python", "code": ""}',
            "1",
            "unknown_field",
            "",
        ),
        ('{"type": "interrupt", "id": "2"}', "2", "invalid_request", "Nothing of the id"),
        ('{"type": "input", "id": "2", "text": ""}', "2", "invalid_request", "Nothing of the id"),
        ('{"type": "attach", "execution_id": "none"}', None, "execution_not_found", ""),
        ('{"type": "attach", "execution_id": "none", "after": "1"}', None, "invalid_request", "after"),
        ('{"type": "ping", "id": ""}', "", "invalid_request", "id must be"),
    ],
)
async def test_what_cannot_be_done_is_refused_and_the_socket_stays(
    served: Served, message: str, name: str | None, code: str, said: str
) -> None:
    async with socket(served) as client:
        await client.send(message)
        heard = await hear(client)
        assert (heard["type"], heard["id"], heard["code"]) == ("refused", name, code)
        assert said in heard["message"]
        await say(client, type="ping", id="p")
        assert await hear(client) == {"type": "pong", "id": "p"}


async def test_an_execution_that_is_not_taken_is_refused_with_its_code(served: Served) -> None:
    async with socket(served) as client:
        await say(client, type="ping")
        assert await hear(client) == {"type": "pong"}
        served.service.fail = QueueFull("Full.")
        await execute(client, "a")
        assert await hear(client) == {"type": "refused", "id": "a", "code": "queue_full", "message": "Full."}


async def test_an_id_is_used_once_at_a_time_and_their_number_is_bounded(served: Served) -> None:
    served.service.hold = True
    async with socket(served) as client:
        await execute(client, "0")
        assert (await hear(client))["type"] == "started"
        await execute(client, "0")
        assert (await hear(client))["code"] == "invalid_request"
        for number in range(1, MAX_FOLLOWED + 1):
            await execute(client, str(number))
        heard = [await hear(client) for _ in range(MAX_FOLLOWED)]
        assert [one["code"] for one in heard if one["type"] == "refused"] == ["too_many_executions"]
        execution(served).end(finished(execution(served)), 0.0)
        assert [(await hear(client))["type"] for _ in range(2)] == ["stdout", "finished"]
        await execute(client, "0")
        assert (await hear(client))["type"] == "started"


async def test_a_message_in_fragments_is_one_message(served: Served) -> None:
    async with socket(served) as client:
        await client.send(iter(['{"type"', ': "pi', 'ng"}']))
        assert await hear(client) == {"type": "pong"}


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"headers": {"X-API-Key": "wrong"}}, 401),
        ({"headers": {"Origin": "https://evil.example"}}, 403),
        ({"query": "session=chatA"}, 400),
        ({"query": "scope=a/b"}, 400),
        ({"query": "scope=u1&key=x"}, 400),
    ],
)
async def test_who_may_not_open_one_is_refused_before_it_opens(
    served: Served, options: dict[str, Any], status: int
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(served, **options):
            pass
    assert refused.value.response.status_code == status


def offering(*protocols: str) -> dict[str, Any]:
    return {"headers": {"Sec-WebSocket-Protocol": ", ".join(protocols)}, "key": None}


def as_subprotocol(key: str) -> str:
    return "cellbox.key." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


async def test_a_page_that_can_give_no_header_offers_its_key_as_a_subprotocol(served: Served) -> None:
    async with socket(served, key=None, subprotocols=["cellbox", as_subprotocol(KEY)]) as client:
        assert client.subprotocol == "cellbox"
        assert client.response is not None
        assert client.response.headers.get_all("Sec-WebSocket-Protocol") == ["cellbox"]
        await say(client, type="ping")
        assert await hear(client) == {"type": "pong"}


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (offering("cellbox", as_subprotocol("wrong")), 401),
        (offering("cellbox", f"cellbox.key.{KEY}"), 401),
        (offering("cellbox", KEY), 401),
        (offering("cellbox"), 401),
        ({"headers": {"Origin": "https://evil.example"}, "key": None, "subprotocols": [as_subprotocol(KEY)]}, 403),
    ],
)
async def test_an_offered_key_that_is_wrong_or_of_a_foreign_page_opens_none(
    served: Served, options: dict[str, Any], status: int
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with socket(served, **options):
            pass
    assert refused.value.response.status_code == status


async def test_an_offered_key_is_of_the_socket_alone(served: Served) -> None:
    reply = await served.call("GET", "/v1/scopes", key=None, Sec_WebSocket_Protocol=as_subprotocol(KEY))
    assert (reply.status, reply.code) == (401, "unauthorized")


async def test_a_listed_origin_opens_one() -> None:
    page = "https://app.example"
    async with serving(origins=(page,)) as served, socket(served, headers={"Origin": page}) as client:
        await say(client, type="ping")
        assert await hear(client) == {"type": "pong"}


async def test_a_message_over_a_mebibyte_closes_with_1009(served: Served) -> None:
    async with socket(served) as client:
        await execute(client, "a", code="x" * 2**20)
        with pytest.raises(ConnectionClosed) as closed:
            await hear(client)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


PING = b"\x89\x00"


async def test_pings_keep_a_silent_socket_and_end_one_whose_peer_is_gone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "PING_S", 0.05)
    handshake = (
        "GET /v1/ws?scope=u1 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-API-Key: {KEY}\r\n\r\n"
    )
    async with socket(served, ping_interval=None) as alive, asyncio.timeout(20):
        reader, writer = await served.connect()
        writer.write(handshake.encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        assert (await reader.read()).startswith(PING)  # to the end: it has answered none
        writer.close()
        await until(lambda: len(served.api.sockets) == 1)
        await say(alive, type="ping")
        assert await hear(alive) == {"type": "pong"}


async def test_a_service_that_goes_away_closes_with_1001(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with socket(served) as client:
        await say(client, type="ping")
        await hear(client)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(close_all(served.api.sockets))
            with pytest.raises(ConnectionClosed) as closed:
                await hear(client)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001
    await until(lambda: served.server.connections == 0 and not served.api.sockets)
    await until(lambda: any(getattr(record, "status", 0) == 101 for record in caplog.records))
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_slow_reader_loses_nothing_and_little_waits_for_it(served: Served) -> None:
    served.service.hold = True
    async with socket(served, max_queue=1) as client:
        await execute(client, "a")
        assert (await hear(client))["type"] == "started"
        log = execution(served).events
        for number in range(200):
            log.add_text("stdout", f"{number:064}" * 1024)
            await asyncio.sleep(0)
        (stream,) = served.server._streams
        assert stream.unread_bytes < 2**20
        execution(served).end(finished(execution(served)), 0.0)
        heard = [await hear(client)]
        while heard[-1]["type"] != "finished":
            heard.append(await hear(client))
    assert "".join(one["text"] for one in heard[:-1]) == "".join(f"{number:064}" * 1024 for number in range(200))


async def test_a_hundred_that_nobody_reads_cost_the_memory_of_one(served: Served) -> None:
    served.service.hold = True
    async with socket(served, max_queue=1) as client:
        await execute(client, "a")
        assert (await hear(client))["type"] == "started"
        log = execution(served).events
        log.add("display", data={"text/plain": "x" * 4 * 2**20}, metadata={})
        tracemalloc.start()
        try:
            for number in range(MAX_FOLLOWED - 1):
                await say(client, type="attach", id=str(number), execution_id=execution(served).id)
            (one,) = served.api.sockets
            await until(lambda: len(one._followed) == MAX_FOLLOWED and one._stream.writing())
            assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
        finally:
            tracemalloc.stop()
