"""What is kept, and for how long."""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from sandboxd.protocol import Output

from interpreter.errors import ExecutionIdTaken, ExecutionNotFound, QueueTimeout, ShuttingDown
from interpreter.executions.events import MAX_EVENTS, EventLog, Room
from interpreter.executions.execution import Execution
from interpreter.executions.model import ExecRequest, Life, Timing, answer, ended
from interpreter.executions.store import Store
from interpreter.keys import Key


def request(scope: str = "u", **fields: Any) -> ExecRequest:
    return ExecRequest(**{"scope": scope, "language": "python", "code": "x", "timeout_s": 1.0, **fields})


def finish(store: Store, execution: Execution, now: float, text: str = "") -> None:
    outcome = ended(execution.request, "cancelled", stdout=text)
    execution.end(answer(execution.id, execution.request, outcome, Life(), Timing()), now)
    store.finished(execution, now)


async def test_kept_for_its_time_and_no_longer() -> None:
    store = Store(keep_s=10)
    execution = store.add(request())
    assert store.get(execution.id, None, 1e9) is execution
    finish(store, execution, 5)
    assert store.get(execution.id, "u", 14.9) is execution
    with pytest.raises(ExecutionNotFound):
        store.get(execution.id, None, 15)
    assert len(store) == 0


async def test_bounded_in_number_and_bytes_oldest_first_but_never_what_runs() -> None:
    store = Store(keep_s=10, max_number=2, max_bytes=20_000)
    running = store.add(request())
    done = [store.add(request()) for _ in range(4)]
    for execution in done:
        finish(store, execution, 0)
    assert store.active() == [running]
    assert len(store) == 3
    big = store.add(request())
    finish(store, big, 0, "x" * 50_000)
    assert len(store) == 1
    assert store.get(running.id, None, 0) is running


async def test_what_an_execution_was_given_is_not_held_once_it_has_ended() -> None:
    store = Store(keep_s=10)
    asked = request(execution_id="a", code="c" * 2**20, stdin="s" * 2**20, env={"E": "e" * 2**20})
    execution = store.add(asked)
    finish(store, execution, 0)
    assert (execution.request.code, execution.request.stdin, execution.request.env) == ("", None, {})
    assert execution.size() < 10_000
    assert store.known(asked, 1) is execution, "its repetition is known all the same"
    with pytest.raises(ExecutionIdTaken):
        store.known(request(execution_id="a", code="other"), 1)


@pytest.mark.parametrize("letter", ["a", "é", "€", "𝒳"])
async def test_what_is_kept_takes_no_more_memory_than_its_limit(letter: str) -> None:
    """However wide its letters: one outside the BMP makes each of its text take four bytes."""
    limit = 4 * 2**20
    store = Store(keep_s=10, max_bytes=limit)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            finish(store, store.add(request()), 0, letter + "x" * 2**18)
        for _ in range(3000):
            finish(store, store.add(request()), 0)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(store) > 500
    assert held < 1.1 * limit


async def test_ids_of_ours_are_unguessable_and_of_callers_within_their_scope() -> None:
    store = Store(keep_s=10)
    ours = {store.add(request()).id for _ in range(100)}
    assert len(ours) == 100
    assert all(len(bytes.fromhex(made)) == 16 for made in ours)
    mine, other = store.add(request(execution_id="a")), store.add(request("v", execution_id="a"))
    assert store.known(request(execution_id="a"), 0) is mine
    assert store.get("a", "v", 0) is other
    with pytest.raises(ExecutionNotFound):
        store.get("a", None, 0)
    with pytest.raises(ExecutionIdTaken):
        store.known(request(execution_id="a", code="y"), 0)
    assert store.known(request(), 0) is None


async def test_a_purge_forgets_what_has_finished_there() -> None:
    store = Store(keep_s=10)
    gone, other = store.add(request(session="s")), store.add(request(session="t"))
    running = store.add(request(session="s"))
    for execution in (gone, other):
        finish(store, execution, 0)
    store.forget("u", "s")
    assert len(store) == 2
    assert store.active(Key("u", "s")) == [running]
    store.forget("u")
    assert len(store) == 1


async def test_an_execution_ends_once() -> None:
    execution = Execution("id", request(), named=False)
    execution.end(QueueTimeout("no"), 1)
    execution.end(answer("id", execution.request, ended(execution.request, "died"), Life(), Timing()), 2)
    assert execution.answer is None
    with pytest.raises(QueueTimeout):
        await execution.finished()
    assert [event.type for event in execution.events.after()] == ["finished"]


async def test_a_reader_that_waits_gets_what_comes_and_loses_nothing() -> None:
    log = EventLog("id")
    waiting = asyncio.get_running_loop().create_task(log.wait(wait_s=60))
    await asyncio.sleep(0)
    log.add("started")
    log.add_text("stdout", "x")
    assert [event.seq for event in await waiting] == [0, 1]
    assert await log.wait(1, wait_s=0) == []
    log.add("finished")
    log.add_text("stdout", "late")
    assert [event.type for event in await log.wait(1, wait_s=60)] == ["finished"]


async def test_events_are_bounded_and_the_last_is_finished() -> None:
    log = EventLog("id")
    for number in range(MAX_EVENTS + 10):
        log.add_text("stdout" if number % 2 else "stderr", "x")
    log.add("finished")
    assert len(log) == MAX_EVENTS + 1
    assert log.after(MAX_EVENTS - 1)[0].type == "finished"


async def test_one_that_was_restored_is_kept_for_its_time_and_no_longer() -> None:
    """However late it was restored, and whatever came before it."""
    store, other = Store(keep_s=10), Store(keep_s=10)
    finish(store, store.add(request()), 8)
    old = other.add(request(execution_id="old"))
    finish(other, old, 0)
    store.restore(old)
    assert store.has("old", "u", 9.9)
    assert not store.has("old", "u", 10)
    with pytest.raises(ExecutionNotFound):
        store.get("old", "u", 10)
    assert store.known(request(execution_id="old"), 10) is None
    assert len(store) == 1


async def test_long_output_lies_in_the_folder_while_its_execution_is_kept(tmp_path: Path) -> None:
    store = Store(keep_s=10, folder=tmp_path, spill=300_000)
    one, two = store.add(request("one")), store.add(request("two"))
    for execution in (one, two):
        assert await execution.hear(Output("x", "stdout", "x" * 200_000))
        assert execution.events.after()
        assert not await execution.hear(Output("x", "stdout", "x" * 200_000))
    assert len(os.listdir(tmp_path)) == 2
    store.drop(one)
    two.end(answer("two", two.request, ended(two.request, "died"), Life(), Timing()), 5)
    store.finished(two, 5)
    assert len(os.listdir(tmp_path)) == 1
    store.max_stored = 100_000
    store.expire(6)
    assert len(store) == 0
    assert os.listdir(tmp_path) == []


async def test_long_output_of_all_has_one_limit_and_short_output_needs_no_room(tmp_path: Path) -> None:
    store = Store(keep_s=10, folder=tmp_path, room=Room(300_000))
    logs = [store.add(request()).events for _ in range(3)]
    for log in logs:
        assert log.add_text("stdout", "x" * 1000)
        assert log.add_text("stdout", "y" * 200_000)
    assert [log.cut for log in logs] == [False, True, True]
    assert [log.text_size("stdout") for log in logs] == [201_000, 1000, 1000]
    assert not logs[1].add("display", data={"text/plain": "x" * 200_000})
    assert store.room.left == 300_000 - 201_000
    logs[0].discard()
    logs[0].discard()
    assert store.room.left == 300_000
    assert logs[1].add_text("stdout", "z")
    assert logs[1].text_size("stdout") == 1000, "text behind a gap"
    assert logs[1].add("display", data={"text/plain": "x" * 200_000})
    assert store.room.left < 100_000
    logs[1].discard()
    assert store.room.left == 300_000


@pytest.mark.parametrize("read", [False, True])
async def test_events_that_are_kept_are_counted_whether_they_were_read_or_will_be(tmp_path: Path, read: bool) -> None:
    store = Store(keep_s=10, folder=tmp_path)
    execution = store.add(request())
    execution.running()
    if read:
        for _ in range(1000):
            await execution.hear(Output("x", "stdout", "x" * 30))
            execution.events.after()
    finish(store, execution, 0, "x" * 30_000)
    counted = store._bytes
    assert execution.answer is not None
    assert counted > execution.answer.size() + 30_000 + (9_000 if read else 0)
    execution.events.after()
    assert execution.size() <= counted + 1000, "what is said of it once it is read is counted before"


async def test_output_of_one_that_an_earlier_service_took_lies_in_the_folder_too(tmp_path: Path) -> None:
    store = Store(keep_s=10, folder=tmp_path)
    taken = Execution("mine", request(execution_id="mine"), named=True)
    store.restore(taken)
    taken.events.add_text("stdout", "x" * 100_000)
    taken.events.after()
    assert taken.events.stored
    taken.discard()


async def test_the_id_of_one_that_never_ran_may_be_used_again() -> None:
    store = Store(keep_s=10)
    mine = request(execution_id="mine")
    first = store.add(mine)
    first.end(QueueTimeout("no"), 1)
    store.finished(first, 1)
    assert store.get("mine", "u", 1) is first, "until then its error is told"
    assert store.known(mine, 1) is None
    second = store.add(mine)
    second.end(ShuttingDown("it goes on"), 2, goes_on=True)
    store.finished(second, 2)
    assert store.known(mine, 2) is second
