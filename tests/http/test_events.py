"""Events over server-sent events and WebSockets: whoever is cut off anywhere and comes back has each of them once, in order."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interpreter.executions.events import Event
from interpreter.executions.execution import Execution
from interpreter.http.events import follow
from tests.http.scripted import KEY, Served, finished, serving, until
from tests.http.test_websocket import hear, say, socket

PIECES = ["a", "é\n", "\U0001f600", "x" * 300_000, "end"]


class Client(httpx.AsyncClient):
    def __init__(self, served: Served) -> None:
        super().__init__(base_url=f"http://127.0.0.1:{served.port}", headers={"X-API-Key": KEY}, timeout=10)

    async def events(self, after: int, most: int, *, by_header: bool = False) -> list[dict[str, Any]]:
        """At most so many events, then the connection is cut."""
        params = {} if by_header else {"after": after}
        headers = {"Last-Event-ID": str(after)} if by_header and after >= 0 else {}
        found: list[dict[str, Any]] = []
        async with self.stream("GET", "/v1/executions/run/events", params=params, headers=headers) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    found.append(json.loads(line[6:]))
                    if len(found) == most:
                        break
        return found


def say_all(execution: Execution) -> None:
    for number, piece in enumerate(PIECES):
        execution.events.add_text("stderr" if number % 2 else "stdout", piece)
    execution.events.add("clear_output", wait=True)
    execution.end(finished(execution, output=""), 0.0)


async def begin(served: Served) -> Execution:
    served.service.hold = True
    asking = asyncio.get_running_loop().create_task(served.exec(execution_id="run", detach=True))
    assert (await asking).status == 202
    return served.service.execution("run", "u1")


def check(found: list[dict[str, Any]]) -> None:
    assert [event["seq"] for event in found] == list(range(len(found)))
    texts = {"stdout": "", "stderr": ""}
    for event in found:
        if event["type"] in texts:
            texts[event["type"]] += event["text"]
    assert texts == {"stdout": "".join(PIECES[::2]), "stderr": "".join(PIECES[1::2])}
    assert [event["type"] for event in found].count("finished") == 1
    assert (found[0]["type"], found[-1]["type"]) == ("started", "finished")


@given(cuts=st.lists(st.integers(1, 3), max_size=8), by_header=st.booleans(), early=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_cut_off_anywhere_server_sent_events_go_on(cuts: list[int], by_header: bool, early: bool) -> None:
    async def follow() -> None:
        async with serving() as served, Client(served) as client:
            execution = await begin(served)
            found = [] if early else await client.events(-1, 1)
            say_all(execution)
            for most in [*cuts, 100]:
                if not found or found[-1]["type"] != "finished":
                    found += await client.events(found[-1]["seq"] if found else -1, most, by_header=by_header)
            check(found)

    asyncio.run(follow())


@given(cuts=st.lists(st.integers(1, 3), max_size=8), early=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_cut_off_anywhere_websockets_go_on(cuts: list[int], early: bool) -> None:
    async def follow() -> None:
        async with serving() as served:
            execution = await begin(served)
            if early:
                say_all(execution)
            found: list[dict[str, Any]] = []
            for most in [*cuts, 100]:
                async with socket(served) as client:
                    await say(client, type="attach", execution_id="run", after=found[-1]["seq"] if found else -1)
                    for _ in range(most):
                        if found and found[-1]["type"] == "finished":
                            break
                        found.append(await hear(client))
                        if found[-1]["seq"] == 0 and not early:
                            say_all(execution)
            check(found)

    asyncio.run(follow())


async def test_who_comes_with_the_last_number_gets_nothing_more_and_beyond_it_the_end(served: Served) -> None:
    await served.exec(execution_id="run")
    async with Client(served) as client:
        found = await client.events(-1, 100)
        assert await client.events(found[-1]["seq"], 100) == []
        assert await client.events(found[-1]["seq"] + 5, 100) == found[-1:]


@pytest.mark.parametrize("query", ["after=x", "after=-2", "after=1.5", "after=1&after=2", "since=1"])
async def test_a_malformed_place_is_refused(served: Served, query: str) -> None:
    await served.exec(execution_id="run")
    assert (await served.call("GET", f"/v1/executions/run/events?{query}")).status == 400


@pytest.mark.parametrize("given_id", ["x", "-1", "1.5", "1" * 16, "²"])
async def test_a_malformed_last_event_id_is_refused(served: Served, given_id: str) -> None:
    await served.exec(execution_id="run")
    reply = await served.call("GET", "/v1/executions/run/events", Last_Event_ID=given_id)
    assert (reply.status, reply.code) == (400, "invalid_request")


async def test_pings_keep_a_silent_stream_alive(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interpreter.http.events.PING_S", 0.02)
    execution = await begin(served)
    async with Client(served) as client, client.stream("GET", "/v1/executions/run/events") as response:
        lines = response.aiter_lines()
        while await anext(lines) != ": ping":
            pass
        execution.end(finished(execution), 0.0)
        assert [line async for line in lines][-2].startswith("data: ")


async def test_two_hundred_sockets_at_once_hear_all(served: Served) -> None:
    execution = await begin(served)

    async def one() -> int:
        async with socket(served) as client:
            await say(client, type="attach", execution_id="run")
            heard = [await hear(client)]
            while heard[-1]["type"] != "finished":
                heard.append(await hear(client))
            return len(heard)

    async with asyncio.TaskGroup() as tasks:
        sockets = [tasks.create_task(one()) for _ in range(200)]
        await until(lambda: len(served.api.sockets) == 200)
        execution.events.add_text("stdout", "hello")
        execution.end(finished(execution, output=""), 0.0)
    assert {socket.result() for socket in sockets} == {3}
    await until(lambda: served.server.connections == 0)


async def test_others_have_their_turn_between_any_two_batches(served: Served) -> None:
    execution = await begin(served)
    sent, seen = 0, [0]

    async def send(_batch: list[Event]) -> None:
        pass

    def counted(batch: list[Event]) -> Awaitable[None]:
        nonlocal sent
        sent += 1
        return send(batch)

    log, reading = execution.events, served.api.reading
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(follow(log, counted, ping_s=60, reading=reading))
        while sent < 50:
            await asyncio.sleep(0)
            seen.append(sent)
        execution.end(finished(execution), 0.0)
    assert max(after - before for before, after in itertools.pairwise(seen)) == 1
