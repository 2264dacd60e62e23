"""The log of an execution's events: what is joined, what is kept where, and what is left out."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from sandboxd.protocol import Asked, Cleared, Displayed, Outcome, Output, Result

from interpreter.errors import QueueTimeout
from interpreter.executions import model
from interpreter.executions.events import ASKING_BYTES, BATCH_BYTES, EventLog
from interpreter.executions.execution import Execution
from interpreter.executions.jsontext import checked
from interpreter.executions.model import HEAVY_JSON, ExecRequest, Life, Timing, answer
from interpreter.executions.spool import MEMORY_BYTES, Spool


def told(log: EventLog, seq: int = -1) -> list[dict[str, Any]]:
    return [json.loads(event.body) for event in log.after(seq)]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_text_is_joined_until_somebody_has_read_it() -> None:
    log = EventLog("id")
    log.add_text("stdout", "a")
    log.add_text("stdout", "b")
    assert [event["text"] for event in told(log)] == ["ab"]
    log.add_text("stdout", "c")
    log.add_text("stderr", "d")
    log.add_text("stdout", "e")
    assert [(event["seq"], event["type"], event["text"]) for event in told(log)] == [
        (0, "stdout", "ab"),
        (1, "stdout", "c"),
        (2, "stderr", "d"),
        (3, "stdout", "e"),
    ]


def test_what_is_long_lies_in_a_file_and_reads_the_same(tmp_path: Path) -> None:
    before = descriptors()
    log = EventLog("id", folder=tmp_path)
    piece = "é" * 1000
    for number in range(200):
        log.add_text("stdout" if number % 3 else "stderr", piece)
        log.add("clear_output", wait=True)
        assert descriptors() == before
    log.finish(lambda: log.add("finished", status="ok"))
    assert log.stored > MEMORY_BYTES
    seq, found = -1, []
    while batch := log.after(seq):
        found += batch
        seq = batch[-1].seq
        assert sum(len(event.body) for event in batch) < BATCH_BYTES + 10_000
    assert [event.seq for event in found] == list(range(401))
    assert {json.loads(event.body)["text"] for event in found if event.type == "stderr"} == {piece}
    assert b"".join(log.text("stderr", 0, 10**9)).decode() == piece * 67
    assert descriptors() == before
    assert len(list(tmp_path.iterdir())) == 1
    log.discard()
    assert list(tmp_path.iterdir()) == []
    assert log.after() == []


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 3), (2, 5), (3, 6), (5, 5), (0, 99)])
def test_any_part_of_a_stream_can_be_read(start: int, stop: int) -> None:
    log = EventLog("id")
    log.add_text("stdout", "abc")
    log.add_text("stderr", "???")
    log.add_text("stdout", "def")
    assert log.text_size("stdout") == 6
    assert b"".join(log.text("stdout", start, stop)) == b"abcdef"[start:stop]


def test_past_the_limit_of_a_stream_nothing_of_it_is_added() -> None:
    log = EventLog("id", limit=10)
    assert log.add_text("stdout", "x" * 8)
    assert not log.add_text("stdout", "yyy")
    assert not log.add_text("stdout", "z")
    assert log.add_text("stderr", "x" * 10)
    assert not log.add("display", data={"text/plain": "long enough"})
    assert log.add("finished", status="ok", message="longer than the limit")
    assert [(event["type"], event.get("text")) for event in told(log)] == [
        ("stdout", "x" * 8),
        ("stderr", "x" * 10),
        ("finished", None),
    ]


def test_what_says_how_it_goes_has_a_place_when_displays_have_filled_the_log() -> None:
    log = EventLog("id", limit=0)
    log.add("started", language="python")
    assert not log.add("display", data={})
    assert log.add("input_request", prompt="name? ", password=False)
    assert log.add("kernel", state="died")
    assert log.add("error", name="E", value="x" * 100_000, traceback=[])
    assert log.add("finished")
    assert [(event.seq, event.type) for event in log.after()] == list(
        enumerate(["started", "input_request", "kernel", "error", "finished"])
    )


def test_questions_of_an_execution_are_bounded_where_there_is_no_room() -> None:
    log = EventLog("id", limit=0)
    asked = 0
    while log.add("input_request", prompt="x" * 1000, password=False):
        asked += 1
    assert 0 < asked * 1000 < ASKING_BYTES
    assert log.cut
    assert log.add("finished")


def left_out_of(execution: Execution) -> tuple[bool, int]:
    """What ``finished`` says of it, and how much less of stdout there is than was written."""
    plain = Outcome("ok", 0, 1, "out", "err", 3, 3)
    execution.end(answer("id", execution.request, plain, Life("kept", 1), Timing()), 1.0)
    last = told(execution.events, len(execution.events) - 2)[-1]
    return last["truncated"], last["output_bytes"]["stdout"] - execution.events.text_size("stdout")


@pytest.mark.parametrize("limit", [3, 2])
async def test_finished_says_that_there_was_no_room_for_text(limit: int) -> None:
    for streamed in (True, False):
        execution = ended(stream=streamed)
        execution.events.keep_in(None, limit=limit)
        if streamed:  # as much as a sandbox tells
            assert await execution.hear(Output("x", "stdout", "out"[:limit]))
        assert left_out_of(execution)[0] is (limit < 3)


async def test_finished_says_that_the_disk_did_not_take_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    for size in (1, 2 * MEMORY_BYTES):
        execution = ended(stream=True)
        execution.events.keep_in(tmp_path, limit=2**20)
        assert await execution.hear(Output("x", "stdout", "o" * size))
        assert left_out_of(execution)[0] is (size > 1)
    assert [record.message for record in caplog.records] == ["output could not be kept"]
    caplog.clear()


async def test_finished_says_that_there_were_too_many_events_for_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interpreter.executions.events.MAX_EVENTS", 3)
    execution = ended(stream=True)
    assert await execution.hear(Output("x", "stdout", "o"))
    assert await execution.hear(Output("x", "stderr", "err"))
    assert await execution.hear(Output("x", "stdout", "ut"))
    assert left_out_of(execution) == (True, 2)


@pytest.mark.parametrize("limit", [10, 2**20])
async def test_finished_says_that_there_was_no_room_for_a_display(limit: int) -> None:
    execution = ended(stream=True)
    execution.events.keep_in(None, limit=limit)
    await execution.hear(Displayed("x", "display", [Result("display", data={"text/plain": "longer than that"})]))
    assert left_out_of(execution)[0] is (limit == 10)


def test_a_log_that_is_given_up_ends_without_finished() -> None:
    log = EventLog("id")
    log.add("started")
    log.abandon()
    assert [event.type for event in log.after()] == ["started"]
    assert log.closed


def ended(stream: bool) -> Execution:
    execution = Execution("id", ExecRequest("u", "python", "1", 1, stateful=True, stream=stream), named=False)
    execution.running()
    return execution


def outcome() -> Outcome:
    shown = [Result("display", data={"text/plain": "d"}), Result("omitted", mime="image/png", size=7)]
    return Outcome(
        "ok",
        0,
        1,
        "out",
        "err",
        3,
        3,
        results=[*shown, Result("result", json={"application/json": "[1]"})],
        execution_count=4,
    )


def finish(execution: Execution) -> None:
    execution.end(answer("id", execution.request, outcome(), Life("kept", 1), Timing()), 1.0)


def test_an_execution_that_nobody_followed_has_its_answer_as_events() -> None:
    execution = ended(stream=False)
    finish(execution)
    events = told(execution.events)
    assert [event["type"] for event in events] == [
        "started",
        "stdout",
        "stderr",
        "display",
        "display",
        "result",
        "finished",
    ]
    assert events[3]["data"] == {"text/plain": "d"}
    assert events[4]["omitted"] == [{"mime": "image/png", "bytes": 7}]
    assert (events[5]["data"], events[5]["execution_count"]) == ({"application/json": [1]}, 4)
    assert events[6]["status"] == "ok"


async def test_what_was_told_while_it_ran_is_not_told_again_at_the_end() -> None:
    execution = ended(stream=True)
    assert await execution.hear(Output("x", "stdout", "out"))
    assert await execution.hear(
        Displayed("x", "update_display", [Result("update", data={"text/plain": "d"}, display_id="i")])
    )
    assert await execution.hear(Cleared("x", wait=True))
    assert await execution.hear(Asked("x", "name? ", password=True))
    assert execution.asks
    finish(execution)
    events = told(execution.events)
    types = ["started", "stdout", "update_display", "clear_output", "input_request", "stderr", "finished"]
    assert [event["type"] for event in events] == types
    assert (events[2]["data"], events[2]["display_id"]) == ({"text/plain": "d"}, "i")
    assert (events[4]["prompt"], events[4]["password"]) == ("name? ", True)
    assert await execution.hear(Output("x", "stdout", "late"))
    assert told(execution.events) == events


async def test_json_that_is_none_is_named_as_left_out() -> None:
    execution = ended(stream=True)
    await execution.hear(Displayed("x", "display", [Result("display", json={"application/json": "{"})]))
    assert told(execution.events)[1]["omitted"] == [{"mime": "application/json", "bytes": 1}]


@pytest.mark.parametrize(("size", "in_loop"), [(1000, True), (2 * HEAVY_JSON, False)])
async def test_long_json_is_checked_in_a_thread(monkeypatch: pytest.MonkeyPatch, size: int, in_loop: bool) -> None:
    threads = []

    def noted(text: str) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return checked(text)

    monkeypatch.setattr(model, "checked", noted)
    execution, text = ended(stream=True), f'"{"x" * size}"'
    assert await execution.hear(Displayed("x", "display", [Result("display", json={"application/json": text})]))
    assert set(threads) == {in_loop}
    assert told(execution.events)[1]["data"] == {"application/json": "x" * size}


async def test_what_is_still_checked_at_the_end_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service has given it up: then ``finished`` is the last event."""
    goes_on = threading.Event()

    def slow(text: str) -> Any:
        assert goes_on.wait(20)
        return checked(text)

    monkeypatch.setattr(model, "checked", slow)
    execution = ended(stream=True)
    shown = Result("display", json={"application/json": f'"{"x" * 2 * HEAVY_JSON}"'})
    hearing = asyncio.get_running_loop().create_task(execution.hear(Displayed("x", "display", [shown])), name="hear")
    await asyncio.sleep(0)
    execution.end(QueueTimeout("no"), 1.0)
    goes_on.set()
    assert await hearing
    assert [event["type"] for event in told(execution.events)] == ["started", "finished"]


@pytest.mark.parametrize("taken", [None, 1])
def test_on_a_full_disk_events_are_json_and_the_last_is_finished_with_all_its_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, taken: int | None
) -> None:
    """Whether it takes nothing of a piece or a part."""

    def full(*_: Any) -> int:
        if taken is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return taken

    monkeypatch.setattr(os, "pwrite", full)
    log = EventLog("id", folder=tmp_path)
    log.add("started", language="python")
    for _ in range(3):
        log.add_text("stdout", "x" * MEMORY_BYTES)
        log.after()
    log.finish(lambda: log.add("finished", status="ok"))
    seq, found = -1, []
    while batch := told(log, seq):
        found += batch
        seq = batch[-1]["seq"]
    assert [event["type"] for event in found] == ["started", "stdout", "stdout", "stdout", "finished"]
    assert (found[0]["language"], found[-1]["status"]) == ("python", "ok")
    assert len(found[2]["text"]) == MEMORY_BYTES
    assert log.held < 2 * MEMORY_BYTES
    assert [record.message for record in caplog.records] == ["output could not be kept"]
    caplog.clear()


def test_a_letter_that_a_full_disk_has_cut_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog("id", folder=tmp_path)
    log.add_text("stdout", "x" * (MEMORY_BYTES + 1))
    log.after()
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: write(handle, data[:1], at))
    log.add_text("stdout", "é")
    log.after()
    log.add("clear_output", wait=True)
    assert told(log, 0) == [
        {"seq": 1, "type": "stdout", "execution_id": "id", "text": "\ufffd\0"},
        {"seq": 2, "type": "clear_output", "execution_id": "id", "wait": True},
    ]
    assert [record.message for record in caplog.records] == ["output could not be kept"]
    caplog.clear()
    log.discard()


def test_a_stream_of_many_short_pieces_is_read_in_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog("e", folder=tmp_path)
    for number in range(50_000):
        log.add_text("stdout", f"{number:03}"[-3:])
        log.add_text("stderr", "b")
    assert log.stored
    reads = 0
    read = Spool.read

    def counted(spool: Spool, start: int, length: int) -> bytes:
        nonlocal reads
        reads += 1
        return read(spool, start, length)

    monkeypatch.setattr(Spool, "read", counted)
    whole = "".join(f"{number:03}"[-3:] for number in range(50_000)).encode()
    assert b"".join(log.text("stdout", 1, 149_999)) == whole[1:149_999]
    assert reads <= 3
    log.discard()


def test_events_of_a_batch_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog("e", folder=tmp_path)
    for number in range(20_000):
        log.add_text("stdout" if number % 2 else "stderr", f"{number:05}")
    assert log.stored
    opened = 0
    pread = os.pread

    def counted(handle: int, length: int, at: int) -> bytes:
        nonlocal opened
        opened += 1
        return pread(handle, length, at)

    monkeypatch.setattr(os, "pread", counted)
    seq, found, batches = -1, [], 0
    while batch := log.after(seq):
        found += batch
        seq = batch[-1].seq
        batches += 1
    assert [json.loads(event.body)["text"] for event in found] == [f"{number:05}" for number in range(20_000)]
    assert opened <= 2 * batches
    log.discard()


def test_who_reads_a_stream_that_is_forgotten_meanwhile_gets_an_end(tmp_path: Path) -> None:
    log = EventLog("e", folder=tmp_path)
    for _ in range(10):
        log.add_text("stdout", "x" * 200_000)
    reading = log.text("stdout", 0, 2_000_000)
    assert next(reading)
    log.discard()
    assert b"".join(reading) == b""


def test_what_memory_has_and_what_a_full_disk_has_not_taken_are_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    spool = Spool(tmp_path / "file")  # which takes no files
    pieces = [b"a" * MEMORY_BYTES, b"b" * 10, b"c" * 5]
    for piece in pieces:
        spool.append(piece)
    whole = pieces[0] + b"\0" * 10 + pieces[2]
    assert spool.read(0, len(whole)) == whole
    assert spool.read(7, len(whole) - 9) == whole[7:-2]
    spool.close()
