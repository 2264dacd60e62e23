"""What one service leaves, and what the next one makes of it. The host goes on; sandboxes dial again."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest
from sandboxd.protocol import Asked, Execute, KernelGone, Output

from interpreter.backends.base import BackendUnavailable, Sandbox, Stats
from interpreter.backends.fake import FakeBackend, FakeSandbox
from interpreter.errors import ExecutionIdTaken, InternalError, ShuttingDown, StorageFailed
from interpreter.executions import runner as running
from interpreter.executions.recorder import INLINE_BYTES
from interpreter.records import Records
from interpreter.scopes.root import DataRootError
from interpreter.service import Interpreter
from interpreter.service_config import ServiceConfig
from interpreter.statefile import FILE
from tests.fakes.sandboxd import Peer, never, until_cancelled
from tests.service.conftest import House

MakeHouse = Callable[..., Awaitable[House]]


class Gate:
    """A script that ends when it is told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def __call__(self, peer: Peer, message: Execute) -> None:
        await self.open.wait()
        peer.finish(message, stdout="through")


async def _silent(peer: Peer) -> None:
    """Say no hello, as one does that is slow."""


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what the other end holds has no event
        await asyncio.sleep(0.001)


async def peer_is_adopted(house: House) -> None:
    while (await house.service.sessions("u1"))[0]["state"] == "starting":  # noqa: ASYNC110 - a listing has no event
        await asyncio.sleep(0.001)


@pytest.fixture
async def first(make_house: MakeHouse) -> House:
    house = await make_house()
    house.sandboxd.redials = True
    return house


async def records_of(house: House) -> Records:
    records = Records(house.root)
    records.open(boot="another look", now=0.0)
    return records


async def test_variables_generations_and_listings_go_on(first: House, make_house: MakeHouse) -> None:
    await first.exec("a")
    (before,) = await first.service.sessions("u1")
    await first.service.release()
    second = await make_house(first)
    answer = await second.exec("b")
    assert (answer.state, answer.generation, answer.stdout) == ("kept", 1, "b")
    (after,) = await second.service.sessions("u1")
    assert (after["started_at"], after["kernels"][0]["execution_count"]) == (before["started_at"], 2)
    assert len(second.backend.started) == 0


async def test_whoever_waits_is_told_that_it_goes_on(first: House, make_house: MakeHouse) -> None:
    gate = first.sandboxd.script["gate"] = Gate()
    running, waiting = first.submit("gate", execution_id="r"), first.submit("b", execution_id="w")
    unnamed = first.submit("c")
    await first.sandboxd.wait_for("gate")
    await first.service.release()
    for execution, said in ((running, "r goes on"), (waiting, "nothing has run"), (unnamed, "nothing has run")):
        with pytest.raises(ShuttingDown, match=said):
            await first.service.settle(execution)
    second = await make_house(first)
    gate.open.set()
    found = await second.service.settle(second.service.execution("r", "u1"))
    assert (found.stdout, found.state, found.generation) == ("through", "new", 1)
    assert (await second.service.settle(second.service.execution("w", "u1"))).stdout == "b"
    assert first.sandboxd.began == ["gate", "b"]


async def test_a_stream_ends_without_finished_and_the_next_service_says_it_once(
    first: House, make_house: MakeHouse
) -> None:
    gate = first.sandboxd.script["gate"] = Gate()
    running, waiting = (first.submit(code, execution_id=code, stream=True) for code in ("gate", "b"))
    unnamed = first.submit("c", stream=True)
    await first.sandboxd.wait_for("gate")
    await first.service.release()
    told = [[event.type for event in one.events.after()] for one in (running, waiting, unnamed)]
    assert told == [["started"], [], ["finished"]]
    assert all(one.events.closed for one in (running, waiting, unnamed))
    second = await make_house(first)
    gate.open.set()
    for name in ("gate", "b"):
        again = second.service.execution(name, "u1")
        await second.service.settle(again)
        types = [event.type for event in again.events.after()]
        assert (types[0], types[-1], types.count("finished")) == ("started", "finished", 1)
        assert "stdout" in types


async def test_a_finished_answer_is_delivered_once_and_settled(first: House, make_house: MakeHouse) -> None:
    gate = first.sandboxd.script["gate"] = Gate()
    first.submit("gate", execution_id="r", stateful=False)
    await first.sandboxd.wait_for("gate")
    await first.service.release()
    gate.open.set()
    second = await make_house(first)
    assert (await second.service.settle(second.service.execution("r", "u1"))).stdout == "through"
    (peer,) = first.sandboxd.peers
    await asyncio.wait_for(until(lambda: not peer.unsettled), 20)
    await second.service.release()
    third = await make_house(second)
    again = third.submit("gate", execution_id="r", stateful=False)
    assert (await third.service.settle(again)).stdout == "through"
    assert first.sandboxd.began == ["gate"]


async def test_what_waits_for_input_is_answered_by_way_of_the_next_service(first: House, make_house: MakeHouse) -> None:
    """Whether it has asked the one before or asks this one."""

    async def ask_twice(peer: Peer, message: Execute) -> None:
        peer.send(Asked(message.id, "first? "))
        one = await peer.inputs.get()
        peer.send(Output(message.id, "stdout", "between"))
        peer.send(Asked(message.id, "second? "))
        peer.finish(message, stdout=f"between {one} {await peer.inputs.get()}")

    first.sandboxd.script["ask"] = ask_twice
    asking = first.submit("ask", execution_id="a", stream=True, allow_input=True)
    await asyncio.wait_for(until(lambda: asking.asks), 20)
    await first.service.release()
    second = await make_house(first)
    again = second.service.execution("a", "u1")
    await asyncio.wait_for(until(lambda: again.asks), 20)
    await second.service.input(again, "x")
    await asyncio.wait_for(until(lambda: again.asks), 20)
    await second.service.input(again, "y")
    assert (await second.service.settle(again)).stdout == "between x y"
    told = [json.loads(event.body) for event in again.events.after()]
    assert [event["type"] for event in told] == ["started", "input_request", "kernel", "stdout", "finished"]
    assert (told[1]["prompt"], told[3]["text"]) == ("second? ", "between x y")


async def test_what_a_sandbox_never_read_is_sent_again(first: House, make_house: MakeHouse) -> None:
    """The service died after it had noted the execution, and before a byte of it had left."""
    first.sandboxd.script["gate"] = Gate()
    first.submit("gate", execution_id="r")
    await first.sandboxd.wait_for("gate")
    await first.service.release()
    (peer,) = first.sandboxd.peers
    peer.running.clear()
    del first.sandboxd.script["gate"]
    second = await make_house(first)
    assert (await second.service.settle(second.service.execution("r", "u1"))).stdout == "gate"
    assert first.sandboxd.began == ["gate", "gate"]


async def test_what_a_sandbox_never_read_and_nobody_can_ask_for_is_not(first: House, make_house: MakeHouse) -> None:
    first.sandboxd.script["gate"] = Gate()
    unnamed = first.submit("gate")
    await first.sandboxd.wait_for("gate")
    await first.service.release()
    (peer,) = first.sandboxd.peers
    peer.running.clear()
    second = await make_house(first)
    with pytest.raises(ShuttingDown, match="nothing has run"):
        await second.service.settle(second.service.execution(unnamed.id, None))
    assert first.sandboxd.began == ["gate"]


async def test_what_nobody_can_ask_for_is_ended(first: House, make_house: MakeHouse) -> None:
    """Its record is gone: the state was damaged, or the disk took nothing."""
    first.sandboxd.script["lost"] = until_cancelled
    first.submit("lost")
    await first.sandboxd.wait_for("lost")
    await first.service.release()
    records = await records_of(first)
    (left,) = records.unfinished()
    records.forget("u1", left.id)
    records.close()
    second = await make_house(first)
    (peer,) = first.sandboxd.peers
    await asyncio.wait_for(peer.cancelled[left.link or ""].wait(), 20)
    assert (await second.exec("b")).stdout == "b"


async def test_a_sandbox_without_a_record_is_removed(first: House, make_house: MakeHouse) -> None:
    await first.exec("a")
    await first.service.release()
    records = await records_of(first)
    (sandbox,) = records.sandboxes()
    records.sandbox_leaves(sandbox.id)
    records.close()
    second = await make_house(first)
    assert not second.backend.running
    answer = await second.exec("b")
    assert (answer.state, answer.generation, answer.reason) == ("lost", 2, "killed")


async def test_a_sandbox_whose_supervisor_is_gone_is_removed(
    first: House, make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is there and it may run, but nobody outside holds it any more."""
    await first.exec("a")
    await first.service.release()
    (lost,) = first.backend.running

    async def none(_self: FakeBackend) -> list[Sandbox]:
        return []

    monkeypatch.setattr(FakeBackend, "adoptable", none)
    second = await make_house(first)
    assert lost not in second.backend.running
    assert (await second.exec("b")).state == "lost"


async def test_what_the_memory_limit_killed_before_is_no_reason_after(
    first: House, make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    await first.exec("a")
    await first.service.release()
    killed = Stats(memory_bytes=1, oom_kills=3, processes=1)
    monkeypatch.setattr(FakeSandbox, "stats", lambda _self: killed)
    second = await make_house(first)
    peer = first.sandboxd.peers[0]
    await asyncio.wait_for(peer_is_adopted(second), 20)
    peer.send(KernelGone("python", "default", "killed"))
    await asyncio.wait_for(until(lambda: not second.service.kernels("u1", "chat")), 20)
    assert (await second.exec("c")).reason == "killed"


async def test_the_events_of_a_kept_answer_begin_as_all_do(first: House, make_house: MakeHouse) -> None:
    await first.exec("a", execution_id="x")
    await first.service.release()
    second = await make_house(first)
    kept = second.service.execution("x", "u1")
    assert [(event.seq, event.type) for event in kept.events.after()] == [
        (0, "started"),
        (1, "stdout"),
        (2, "finished"),
    ]


async def test_a_sandbox_that_is_gone_ends_what_ran_in_it(first: House, make_house: MakeHouse) -> None:
    first.sandboxd.script["never"] = never
    first.submit("never", execution_id="stateful")
    first.submit("never", execution_id="stateless", stateful=False)
    await first.sandboxd.wait_for("never", 2)
    first.submit("b", execution_id="waiting")
    await first.service.release()
    await first.backend.host.power_off()
    second = await make_house(first)
    for name, state, generation in (("stateful", "lost", 1), ("stateless", None, None)):
        answer = await second.service.settle(second.service.execution(name, "u1"))
        assert (answer.status, answer.exit_code, answer.reason) == ("died", 137, "killed")
        assert (answer.state, answer.generation) == (state, generation)
    answer = await second.service.settle(second.service.execution("waiting", "u1"))
    assert (answer.stdout, answer.state, answer.generation) == ("b", "new", 2)


async def test_a_start_that_fails_loses_nothing(first: House, make_house: MakeHouse) -> None:
    await first.exec("a")
    await first.service.release()
    backend = FakeBackend(first.sandboxd, host=first.backend.host)
    backend.refuse_adoption = BackendUnavailable("the host does not answer")
    failing = Interpreter(ServiceConfig(data_root=first.root), backend)
    with pytest.raises(BackendUnavailable):
        await failing.start()
    await failing.release()
    second = await make_house(first)
    assert (await second.exec("b")).state == "kept"


async def test_a_service_that_ends_before_it_has_adopted_loses_nothing(first: House, make_house: MakeHouse) -> None:
    gate = first.sandboxd.script["gate"] = Gate()
    await first.exec("a")
    first.submit("gate", execution_id="r")
    await first.sandboxd.wait_for("gate")
    await first.service.release()
    greets, first.sandboxd.hello = first.sandboxd.hello, _silent
    second = await make_house(first)
    await second.service.release()
    assert second.service.released == 1
    first.sandboxd.hello = greets
    third = await make_house(second)
    gate.open.set()
    answer = await third.service.settle(third.service.execution("r", "u1"))
    assert (answer.stdout, answer.state, answer.generation) == ("through", "kept", 1)


async def test_ids_are_taken_over_restarts(first: House, make_house: MakeHouse) -> None:
    await first.exec("a", execution_id="x")
    await first.service.release()
    second = await make_house(first)
    with pytest.raises(ExecutionIdTaken):
        second.submit("other", execution_id="x")
    assert (await second.exec("a", execution_id="x")).stdout == "a"
    assert first.sandboxd.began == ["a"]


async def test_a_session_that_is_purged_before_a_restart_begins_anew(first: House, make_house: MakeHouse) -> None:
    await first.exec("a", execution_id="x")
    await first.service.remove_session("u1", "chat", purge=True)
    await first.service.release()
    second = await make_house(first)
    answer = await second.exec("other", execution_id="x")
    assert (answer.state, answer.generation) == ("new", 1)


async def test_a_full_queue_that_got_smaller_refuses_what_is_too_much(first: House, make_house: MakeHouse) -> None:
    gate = first.sandboxd.script["gate"] = Gate()
    first.submit("gate", execution_id="r")
    await first.sandboxd.wait_for("gate")
    for number in range(3):
        first.submit(f"w{number}", execution_id=f"w{number}")
    await first.service.release()
    second = await make_house(first, max_queue=1)
    gate.open.set()
    assert (await second.service.settle(second.service.execution("w0", "u1"))).stdout == "w0"
    assert "w2" not in first.sandboxd.began
    assert (await second.exec("w2", execution_id="again")).stdout == "w2"


async def test_what_ran_has_died_where_the_next_service_has_no_room_for_it(first: House, make_house: MakeHouse) -> None:
    """Its id is not free: nothing runs twice."""
    first.sandboxd.script["never"] = never
    for session in ("a", "b"):
        first.submit("never", execution_id=session, session=session)
    await first.sandboxd.wait_for("never", 2)
    await first.service.release()
    await first.backend.host.power_off()
    second = await make_house(first, max_sessions=1)
    for session in ("a", "b"):
        answer = await second.exec("never", execution_id=session, session=session)
        assert (answer.status, answer.reason, answer.state) == ("died", "killed", "lost")
    assert first.sandboxd.began == ["never"] * 2


async def test_what_may_have_run_before_a_fault_of_ours_is_asked_for_and_not_run_again(
    first: House, make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(running, "answer", fail)
        for _ in range(2):
            with pytest.raises(InternalError):
                await first.exec("a", execution_id="x")
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "an execution failed for a fault of ours"
    ]
    caplog.clear()
    await first.service.release()
    second = await make_house(first)
    assert (await second.exec("a", execution_id="x")).stdout == "a"
    assert first.sandboxd.began == ["a"]


async def test_what_may_have_run_is_gone_with_the_purge_of_its_session(
    first: House, make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(running, "answer", fail)
        with pytest.raises(InternalError):
            await first.exec("a", execution_id="x")
    caplog.clear()
    await first.service.remove_session("u1", "chat", purge=True)
    assert first.service._data.records.unfinished() == []


# --- a disk that takes nothing --------------------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Make every write of records fail, or work again."""
    real = Records.batch

    def switch(is_full: bool) -> None:
        def refuse(_self: Records) -> None:
            raise StorageFailed("The data root of the service cannot be written (disk full).")

        monkeypatch.setattr(Records, "batch", refuse if is_full else real)

    return switch


async def test_a_full_disk_refuses_named_ones_and_runs_the_others(
    first: House, full: Callable[[bool], None], make_house: MakeHouse
) -> None:
    await first.exec("a")
    full(True)
    with pytest.raises(StorageFailed):
        first.submit("b", execution_id="named")
    answer = await first.exec("c")
    assert (answer.stdout, answer.state) == ("c", "kept")
    assert first.sandboxd.began == ["a", "c"]
    full(False)
    assert (await first.exec("b", execution_id="named")).stdout == "b"
    await first.service.release()
    second = await make_house(first)
    assert (await second.service.settle(second.service.execution(answer.execution_id, None))).stdout == "c"
    assert second.service.kernels("u1", "chat")[0]["execution_count"] == 3


async def test_a_sandbox_is_not_started_where_it_could_not_be_noted(first: House, full: Callable[[bool], None]) -> None:
    full(True)
    with pytest.raises(StorageFailed):
        await first.exec("a")
    assert not first.backend.started
    full(False)
    assert (await first.exec("a")).state == "new"


async def test_the_state_file_of_a_newer_service_stops_the_start(make_house: MakeHouse, tmp_path: Path) -> None:
    (tmp_path / "data0").mkdir()
    with closing(sqlite3.connect(tmp_path / "data0" / FILE)) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(DataRootError, match="newer"):
        await make_house()


async def test_a_long_answer_is_read_in_a_thread_once_it_is_recalled(
    first: House, make_house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x" * (2 * INLINE_BYTES)
    assert (await first.exec(text, execution_id="long")).stdout == text
    await first.service.release()
    second = await make_house(first)
    read, readers = Path.read_bytes, []

    def noted(path: Path) -> bytes:
        readers.append(threading.current_thread())
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    await asyncio.gather(*(second.service.recall("long", "u1") for _ in range(2)))
    assert (await second.exec(text, execution_id="long")).stdout == text
    assert second.service.execution("long", "u1").id == "long"
    assert readers
    assert threading.main_thread() not in readers
