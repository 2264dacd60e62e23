"""What is sent again, under which id, and what a stream is made of: the steps alone, without any I/O."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interpreter.client import CellboxError, NotReachable, TimedOut
from interpreter.client.calls import Plan, Where
from interpreter.client.errors import Refused
from interpreter.client.steps import READ, Call, Event, Following, Framer, Outcome, Pauses, Request, Wait

ANSWER = {
    "stdout": "", "stderr": "", "exit_code": 0, "timed_out": False, "truncated": False, "duration_ms": 1,
    "execution_id": "x", "status": "ok", "results": [], "error": None, "execution_count": None, "context": None,
    "state": None, "generation": None, "reason": None, "output_bytes": {"stdout": 0, "stderr": 0}, "files": [],
    "egress_denied": [], "timing": {"queued_ms": 0, "started_ms": 0, "run_ms": 1},
}  # fmt: skip


def refusal(status: int, code: str, *, retryable: bool = True, after: str | None = None) -> httpx.Response:
    body = {"code": code, "message": f"it is {code}", "retryable": retryable}
    return httpx.Response(status, json=body, headers={"Retry-After": after} if after else {})


def walked(call: Call[Any] | Following, *outcomes: Outcome) -> tuple[list[Any], Any]:
    """All steps of a call that meets these outcomes, and what it returns or raises."""
    left, steps, outcome = list(outcomes), [], None
    while True:
        try:
            step = call.send(outcome)
        except StopIteration as end:
            return steps, end.value
        except CellboxError as error:
            return steps, error
        steps.append(step)
        outcome = None if isinstance(step, Wait | Event) else left.pop(0)


def execute(patience_s: float = 10, **options: Any) -> Call[Any]:
    return Plan(patience_s).execute(Where("u1", "a"), "1", "python", options)  # type: ignore[arg-type]


def ids(steps: list[Any]) -> list[str]:
    return [step.body["execution_id"] for step in steps if isinstance(step, Request)]


@pytest.mark.parametrize("lost", [httpx.ConnectError("x"), httpx.ReadError("x"), httpx.RemoteProtocolError("x")])
def test_an_exec_that_was_lost_is_sent_again_under_the_same_id(lost: httpx.TransportError) -> None:
    steps, result = walked(execute(), lost, httpx.Response(200, json=ANSWER))
    assert result.ok
    assert [type(step) for step in steps] == [Request, Wait, Request]
    assert len(set(ids(steps))) == 1


def test_files_of_an_exec_are_sent_as_text_or_base64(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\0")
    files = {"a": "grüße", "b": b"\xff", "c": tmp_path / "f"}
    steps, _ = walked(execute(files=files), httpx.Response(200, json=ANSWER))
    assert steps[0].body["files"] == {"a": "grüße", "b": {"base64": "/w=="}, "c": {"base64": "AA=="}}
    for content in (tmp_path / "absent", 5):
        steps, error = walked(execute(files={"a": content}))
        assert (steps, error.code) == ([], "invalid_request")


def test_a_field_that_is_none_is_as_one_that_is_left_out() -> None:
    steps, _ = walked(execute(files=None, env=None), httpx.Response(200, json=ANSWER))
    assert steps[0].body.keys().isdisjoint({"files", "env"})


def test_an_answer_is_waited_for_as_long_as_requirements_may_take() -> None:
    ways = [execute(timeout=1), execute(timeout=1, files={"requirements.txt": "x"})]
    waits = [walked(way, httpx.Response(200, json=ANSWER))[0][0].answer_s for way in ways]
    assert waits[1] >= waits[0] + 300


def test_what_was_refused_is_sent_again_when_the_service_says_so_and_under_another_id() -> None:
    steps, result = walked(execute(), refusal(429, "queue_full", after="3"), httpx.Response(200, json=ANSWER))
    assert (result.ok, steps[1]) == (True, Wait(3.0))
    assert len(set(ids(steps))) == 2


def test_an_execution_that_goes_on_behind_a_refusal_keeps_its_id() -> None:
    steps, result = walked(execute(), refusal(503, "shutting_down", after="1"), httpx.Response(200, json=ANSWER))
    assert (result.ok, len(set(ids(steps)))) == (True, 1)


def test_the_id_of_the_caller_is_never_changed() -> None:
    steps, _ = walked(execute(execution_id="mine"), refusal(429, "queue_full"), httpx.Response(200, json=ANSWER))
    assert ids(steps) == ["mine", "mine"]


@pytest.mark.parametrize(
    "outcome",
    [
        refusal(429, "queue_timeout", after="1"),  # the caller said how long to wait
        refusal(409, "session_busy", after="1"),
        refusal(400, "invalid_request", retryable=False),
        refusal(503, "single_tenant", retryable=False),
        refusal(429, "too_many_sessions", after="60"),  # longer than the caller's patience
        httpx.ReadTimeout("x"),  # waited for in vain once
    ],
)
def test_what_waiting_does_not_help_is_told_at_once(outcome: Outcome) -> None:
    steps, error = walked(execute(), outcome)
    assert (len(steps), isinstance(error, CellboxError)) == (1, True)


def test_without_patience_nothing_is_sent_twice() -> None:
    steps, error = walked(execute(patience_s=0), httpx.ConnectError("x"))
    assert (len(steps), error.code) == (1, "not_reachable")


@pytest.mark.parametrize(
    ("outcome", "layer"),
    [(httpx.ConnectTimeout("x"), "connect"), (httpx.WriteTimeout("x"), "send"), (httpx.ReadTimeout("x"), "answer")],
)
def test_a_time_out_names_its_layer(outcome: httpx.TransportError, layer: str) -> None:
    _, error = walked(execute(patience_s=0), outcome)
    assert isinstance(error, TimedOut)
    assert (error.layer, error.code, error.__cause__) == (layer, "timed_out", outcome)


def test_an_answer_is_waited_for_as_long_as_the_code_may_take() -> None:
    (short, *_), _ = walked(execute(timeout=5, queue_timeout=0), httpx.Response(200, json=ANSWER))
    (long, *_), _ = walked(execute(), httpx.Response(200, json=ANSWER))
    assert 5 + 120 < short.answer_s < 600 < long.answer_s


@pytest.mark.parametrize("outcome", [httpx.ReadError("x"), httpx.Response(502, text="<html>bad gateway</html>")])
def test_a_restart_that_may_have_been_done_is_not_sent_again(outcome: Outcome) -> None:
    steps, error = walked(Plan().restart(Where("u1"), "python", "default"), outcome)
    assert (len(steps), error.retryable) == (1, True)


def test_a_gateway_that_has_lost_the_service_is_asked_again_where_it_is_safe() -> None:
    bad = httpx.Response(502, text="<html>bad gateway</html>")
    steps, result = walked(execute(), bad, httpx.Response(200, json=ANSWER))
    assert (result.ok, len(set(ids(steps)))) == (True, 1)


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"stdout": 1}', "<html>"])
def test_an_answer_that_is_none_is_an_error_of_the_tree(text: str) -> None:
    _, error = walked(execute(), httpx.Response(200, text=text))
    assert (type(error), error.code) == (Refused, "unreadable_answer")


def test_pauses_grow_and_end_with_the_budget() -> None:
    pauses = Pauses(3.0)
    taken = list(iter(pauses.next, None))
    assert taken == [0.1, 0.2, 0.4, 0.8]
    assert Pauses(3.0).next(4.0) is None


# --- streams --------------------------------------------------------------------------------------------------------


def event(seq: int, kind: str = "stdout", **fields: Any) -> bytes:
    body = {"seq": seq, "type": kind, "execution_id": "x", **fields}
    return f"id: {seq}\nevent: {kind}\ndata: {json.dumps(body)}\n\n".encode()


def stream(patience_s: float = 10) -> Following:
    return Plan(patience_s).stream(Where("u1"), "1", "python", {})


WHOLE = event(0, "started") + b": ping\n\n" + event(1, text="é\n") + event(2, text="b") + event(3, "finished")


@given(st.lists(st.integers(0, len(WHOLE)), max_size=8))
def test_events_are_the_same_however_their_bytes_are_cut(cuts: list[int]) -> None:
    framer, edges = Framer(), [0, *sorted(cuts), len(WHOLE)]
    pieces = [WHOLE[start:stop] for start, stop in itertools.pairwise(edges)]
    found = [made for piece in pieces for made in framer.feed(piece)]
    assert [(made.seq, made.type, made.text) for made in found] == [
        (0, "started", None), (1, "stdout", "é\n"), (2, "stdout", "b"), (3, "finished", None),
    ]  # fmt: skip


@given(st.lists(st.integers(0, len(WHOLE)), max_size=5))
def test_a_stream_that_breaks_anywhere_goes_on_from_its_last_event(cuts: list[int]) -> None:
    """A service that sends what is above Last-Event-ID, and connections that break after so many bytes."""
    call, left, step, seen = stream(), list(cuts), None, []
    outcome: Outcome = None
    body = b""
    while True:
        try:
            step = call.send(outcome)
        except StopIteration:
            break
        outcome = None
        if isinstance(step, Request):
            last = int(step.headers.get("Last-Event-ID", -1))
            body = b"".join(
                each + b"\n\n" for each in WHOLE.split(b"\n\n")[:-1] if b"ping" in each or _seq(each) > last
            )
            body = body[: left.pop(0)] if left else body
            outcome = httpx.Response(200)
        elif step is READ:
            outcome, body = body, b""
        elif isinstance(step, Event):
            seen.append(step.seq)
    assert seen == [0, 1, 2, 3]


def _seq(framed: bytes) -> int:
    return int(framed.split(b"\n")[0].removeprefix(b"id: "))


def test_a_silent_stream_is_taken_for_lost_and_asked_for_again() -> None:
    steps, value = walked(
        stream(), httpx.Response(200), event(0, "started"), httpx.ReadTimeout("x"),
        httpx.Response(200), event(1, "finished"), b"",
    )  # fmt: skip
    assert value is None
    assert [step.headers for step in steps if isinstance(step, Request)] == [{}, {"Last-Event-ID": "0"}]


def test_a_stream_that_never_comes_back_ends_with_what_was_lost() -> None:
    steps, error = walked(stream(patience_s=0.15), httpx.Response(200), b"", httpx.ConnectError("x"))
    assert isinstance(error, NotReachable)
    assert [type(step) for step in steps] == [Request, type(READ), Wait, Request]


def test_after_a_restart_the_last_event_counts_whatever_its_number() -> None:
    steps, _ = walked(
        stream(), httpx.Response(200), event(7), b"", httpx.Response(200), event(3, "finished"), b""
    )  # fmt: skip
    assert [step.seq for step in steps if isinstance(step, Event)] == [7, 3]


def test_an_execution_that_never_ran_is_an_error_with_its_code() -> None:
    last = event(1, "finished", code="cwd_not_found", message="no such directory")
    _, error = walked(stream(), httpx.Response(200), event(0, "started") + last)
    assert (type(error), error.code, str(error)) == (Refused, "cwd_not_found", "no such directory")


def test_what_is_no_event_is_an_error_of_the_tree() -> None:
    _, error = walked(stream(), httpx.Response(200), b"data: nonsense\n")
    assert (type(error), error.code) == (Refused, "unreadable_answer")
