"""Looking at executions and ending them, where their answers are long."""

import asyncio
import itertools

import pytest

from interpreter.executions.model import HEAVY_JSON, Answer
from interpreter.http.routes import ROUTES
from tests.http.scripted import Served, until
from tests.http.test_connections import HEAD
from tests.http.test_routes import target

OF_ONE = [
    pytest.param(method, target(route), id=f"{method} {route.path}")
    for route in ROUTES
    for method in route.operations
    if "execution_id" in route.names
]


@pytest.mark.parametrize(("method", "path"), OF_ONE)
async def test_an_answer_that_lies_in_a_file_is_read_in_a_thread_before_anything_is_done(
    served: Served, monkeypatch, method, path
):
    async def recall(execution_id, scope):
        served.service.calls.append(("recall", execution_id, scope))

    monkeypatch.setattr(served.service, "recall", recall)
    reply = await served.call(method, f"{path}?scope=u1", {"text": "x"} if method == "POST" else None)
    assert reply.status == 404
    assert served.service.calls == [("recall", "execution_id", "u1"), ("execution", "execution_id", "u1")]


@pytest.mark.parametrize("by_id", [True, False])
async def test_a_long_answer_is_made_ready_for_one_caller_at_a_time(served: Served, monkeypatch, by_id):
    """Many who ask at once cost nobody else a turn, and no memory but what waits in their connections."""
    served.service.output = "x" * 2 * HEAVY_JSON
    await served.exec(execution_id="run")
    made, seen, to_json = 0, [0], Answer.to_json

    def counted(answer):
        nonlocal made
        made += 1
        return to_json(answer)

    monkeypatch.setattr(Answer, "to_json", counted)
    await served.api.reading.acquire()  # until all have come
    async with asyncio.TaskGroup() as group:
        asking = [
            group.create_task(
                served.call("GET", "/v1/executions/run?scope=u1") if by_id else served.exec(execution_id="run")
            )
            for _ in range(20)
        ]
        await until(lambda: len(served.api.reading._waiters or ()) == 20)
        assert made == 0
        served.api.reading.release()
        while made < 20:
            await asyncio.sleep(0)
            seen.append(made)
        await asyncio.wait(asking)
    assert max(after - before for before, after in itertools.pairwise(seen)) == 1
    for reply in (asked.result() for asked in asking):
        assert len(reply.json["stdout"]) == 2 * HEAVY_JSON
        assert reply.json.get("phase") == ("finished" if by_id else None)


async def test_a_long_answer_is_not_made_for_who_has_left(served: Served, monkeypatch):
    served.service.output = "x" * 2 * HEAVY_JSON
    await served.exec(execution_id="run")
    made = []
    monkeypatch.setattr(Answer, "to_json", lambda _: made.append(1) or b"{}")
    async with served.api.reading:
        _, writer = await served.connect()
        writer.write(HEAD.replace(b"POST /v1/exec", b"GET /v1/executions/run?scope=u1") + b"\r\n")
        await until(lambda: served.api.reading._waiters)
        writer.close()
        await until(lambda: served.server.connections == 0)
    async with served.api.reading:
        assert not made
    await until(lambda: not served.api.reading.locked())
    assert not made
