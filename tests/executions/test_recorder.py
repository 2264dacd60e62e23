"""What is noted of executions where the disk takes less than everything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from interpreter.backends.base import SandboxId
from interpreter.errors import StorageFailed
from interpreter.executions import recorder as recording
from interpreter.executions.execution import Execution
from interpreter.executions.kept import WHOLE_BYTES
from interpreter.executions.model import Answer, ExecRequest, Life, Timing, answer, ended
from interpreter.executions.recorder import INLINE_BYTES, Recorder
from interpreter.records import SOME, Records
from interpreter.sandboxes.kernels import Kernels

LONG = "x" * (2 * INLINE_BYTES)


class Desk:
    """A recorder, and whether its disk takes anything. settled: ids of executions whose sandbox may forget them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records = Records(root)
        self.records.open(boot="b", now=0.0)
        self.recorder = Recorder(
            self.records, Kernels(max_queue=1, max_kernels=1), root, keep_s=60.0, clock=lambda: 1.0
        )
        self.recorder.sweep()
        self.settled: list[str] = []
        self._change = asyncio.Event()
        self._patch = monkeypatch
        self._batch = Records.batch

    def full(self, is_full: bool) -> None:
        def refuse(_self: Records) -> None:
            raise StorageFailed("full")

        self._patch.setattr(Records, "batch", refuse if is_full else self._batch)

    def execution(self, name: str, *, sent: bool = False) -> Execution:
        execution = Execution(name, ExecRequest("u1", "python", "x", 1.0, execution_id=name), named=True)
        if sent:
            self.recorder.sent(execution, SandboxId("s"), "l" + name)
        return execution

    def end(self, execution: Execution, text: str = "") -> None:
        outcome = ended(execution.request, "cancelled", stdout=text)
        end = answer(execution.id, execution.request, outcome, Life(), Timing())
        self.recorder.ended(execution, end, settle=lambda: self._settle(execution))

    def _settle(self, execution: Execution) -> None:
        self.settled.append(execution.id)
        self._change.set()

    async def until_settled(self, *names: str) -> None:
        async with asyncio.timeout(10):
            while self.settled != [*names]:
                self._change.clear()
                await self._change.wait()

    def kept(self, name: str) -> Answer:
        found = self.recorder.find(name, "u1")
        assert found is not None
        assert found.answer is not None
        return found.answer


@pytest.fixture
async def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    made = Desk(tmp_path, monkeypatch)
    yield made
    await made.recorder.aclose()
    made.records.close()


async def test_a_long_answer_whose_file_cannot_be_written_is_kept_without_its_output(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sandbox would keep it else, and too many of them leave no room in it for anything new."""

    def refuse(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording, "_write", refuse)
    desk.end(desk.execution("e", sent=True), LONG)
    await desk.recorder.aclose()
    assert desk.settled == ["e"]
    kept = desk.kept("e")
    assert (kept.stdout, kept.truncated, kept.status) == ("", True, "cancelled")
    assert kept.output_bytes["stdout"] == len(LONG)
    assert desk.records.unfinished() == []


async def test_answers_that_no_record_names_are_given_up_first_while_the_disk_is_full(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_WAITING", 2)
    before = desk.execution("before", sent=True)
    desk.full(True)
    for execution in (before, *(desk.execution(f"e{number}") for number in range(4))):
        desk.end(execution)
    assert desk.settled == ["e0", "e1", "e2"]
    desk.full(False)
    await desk.recorder.aclose()
    assert desk.settled == ["e0", "e1", "e2", "before", "e3"]
    assert desk.kept("before").status == "cancelled"
    assert desk.recorder.find("e0", "u1") is None


async def test_one_timer_tries_again_however_often_something_is_purged(desk: Desk) -> None:
    desk.full(True)
    for number in range(5):
        desk.end(desk.execution(f"e{number}"))
        with pytest.raises(StorageFailed):
            await desk.recorder.forget("u2")
    handles = [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]  # no other way to see them
    assert len([handle for handle in handles if "_flush" in repr(handle)]) == 1
    desk.full(False)


async def test_a_purge_waits_for_no_answer_that_comes_later(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    gates, real = [asyncio.Event(), asyncio.Event()], asyncio.to_thread
    waiting = iter(gates)

    async def gated(work: Any, *arguments: Any) -> Any:
        if work is recording._write:
            await next(waiting).wait()
        return await real(work, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", gated)
    desk.end(desk.execution("first"), LONG)
    purge = asyncio.get_running_loop().create_task(desk.recorder.forget("u1"), name="purge")
    await asyncio.sleep(0)
    desk.end(desk.execution("later"), LONG)
    gates[0].set()
    await purge
    gates[1].set()
    await desk.recorder.aclose()
    assert sorted(desk.settled) == ["first", "later"]
    assert desk.kept("later").stdout == LONG


async def test_an_answer_that_is_purged_while_it_is_read_is_not_there(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.end(desk.execution("a"), LONG)
    await desk.recorder.aclose()
    read, purged = Recorder._read, threading.Event()

    def slow(*args: Any) -> Any:
        found = read(*args)
        assert purged.wait(20)
        return found

    monkeypatch.setattr(Recorder, "_read", slow)
    recalled = asyncio.get_running_loop().create_task(desk.recorder.recall("a", "u1"))
    await asyncio.sleep(0)
    await desk.recorder.forget("u1")
    purged.set()
    assert await recalled is None


async def test_a_purge_neither_waits_for_nor_ends_the_answers_of_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, real = asyncio.Event(), asyncio.to_thread

    async def gated(work: Any, *arguments: Any) -> Any:
        if work is recording._write:
            await gate.wait()
        return await real(work, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", gated)
    desk.end(desk.execution("slow"), LONG)
    await desk.recorder.forget("u2")
    assert desk.settled == []
    gate.set()
    await desk.recorder.aclose()
    assert desk.kept("slow").stdout == LONG


async def test_a_purge_says_so_where_an_answer_of_its_own_is_not_written_in_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, real = asyncio.Event(), asyncio.to_thread

    async def gated(work: Any, *arguments: Any) -> Any:
        if work is recording._write:
            await gate.wait()
        return await real(work, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", gated)
    monkeypatch.setattr(recording, "CLOSE_S", 0.01)
    desk.end(desk.execution("slow"), LONG)
    with pytest.raises(StorageFailed):
        await desk.recorder.forget("u1")
    gate.set()
    await desk.recorder.forget("u1")
    assert desk.settled == ["slow"]
    assert desk.recorder.find("slow", "u1") is None


async def test_the_id_of_what_may_have_run_is_free_after_its_time(desk: Desk) -> None:
    first = desk.execution("a", sent=True)
    desk.recorder.uncertain(first, settle=lambda: desk.settled.append("a"))
    assert [record.link for _, record in desk.recorder.unfinished()] == ["la"]
    second = desk.execution("a")
    desk.recorder.taken(second)
    assert desk.settled == ["a"]
    assert [record.link for _, record in desk.recorder.unfinished()] == [None]


async def test_others_have_their_turns_while_many_answers_are_purged(desk: Desk) -> None:
    for number in range(3 * SOME):
        desk.end(desk.execution(f"e{number}"))
    await desk.recorder.aclose()
    left: set[int] = set()

    async def look() -> None:
        while not purge.done():
            left.add(sum(desk.recorder.find(f"e{number}", "u1") is not None for number in range(3 * SOME)))
            await asyncio.sleep(0)

    purge = asyncio.get_running_loop().create_task(desk.recorder.forget("u1"), name="purge")
    await look()
    assert left >= {2 * SOME, SOME, 0}


async def test_files_of_what_waits_are_kept_for_the_next_service_up_to_a_size_and_until_it_has_ended(
    desk: Desk,
) -> None:
    for name, size in (("small", 10), ("large", WHOLE_BYTES)):
        request = ExecRequest("u1", "python", "x", 1.0, execution_id=name, files={"é": b"\xff" * size})
        execution = Execution(name, request, named=True)
        desk.recorder.taken(execution)
    kept = {one.id: (one.request.files, record.whole) for one, record in desk.recorder.unfinished()}
    assert kept == {"small": ({"é": b"\xff" * 10}, True), "large": ({}, False)}
    desk.end(execution)
    await desk.recorder.aclose()
    found = desk.recorder.find("large", "u1")
    assert found is not None
    assert found.request.files == {}
    execution.shed()
    assert execution.request.files == {}


def unnamed(desk: Desk, name: str, *, stream: bool = False) -> Execution:
    execution = Execution(name, ExecRequest("u1", "python", "x", 1.0, stream=stream), named=False)
    desk.recorder.sent(execution, SandboxId("s"), "l" + name)
    return execution


async def test_what_nobody_can_ask_for_is_noted_a_moment_later_if_it_still_runs(desk: Desk) -> None:
    short, long = unnamed(desk, "short"), unnamed(desk, "long")
    assert desk.records.unfinished() == []
    desk.end(short)
    await desk.until_settled("short")
    assert [record.id for record in desk.records.unfinished()] == ["long"]
    assert (short.noted, long.noted) == (False, True)
    assert desk.recorder.find("short", None) is not None
    desk.end(long)
    await desk.until_settled("short", "long")
    assert desk.records.unfinished() == []


@pytest.mark.parametrize("known", ["by its name", "by its events"])
async def test_what_somebody_can_ask_for_is_noted_before_it_is_sent(desk: Desk, known: str) -> None:
    desk.execution("e", sent=True) if known == "by its name" else unnamed(desk, "e", stream=True)
    assert [record.id for record in desk.records.unfinished()] == ["e"]


async def test_answers_that_come_together_are_noted_together(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = Recorder._write
    monkeypatch.setattr(Recorder, "_write", lambda self, *what: (written.append(what), write(self, *what)))
    for number in range(5):
        desk.end(unnamed(desk, f"e{number}"))
        await asyncio.sleep(0)
    await desk.until_settled("e0", "e1", "e2", "e3", "e4")
    assert len(written) == 1


async def test_what_runs_is_noted_when_the_service_goes(desk: Desk) -> None:
    unnamed(desk, "runs")
    await desk.recorder.aclose()
    assert [record.id for record in desk.records.unfinished()] == ["runs"]
