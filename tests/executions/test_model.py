"""From an outcome to the answer that callers get."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sandboxd.protocol import Change, Outcome, Result, UserError

from interpreter.executions.model import (
    Answer,
    ExecRequest,
    Life,
    Timing,
    answer,
    ended,
    with_cause,
)

REQUEST = ExecRequest("u", "python", "x", 1.0, stateful=True)
FIELDS = [
    "stdout",
    "stderr",
    "exit_code",
    "timed_out",
    "truncated",
    "duration_ms",
    "execution_id",
    "status",
    "results",
    "error",
    "execution_count",
    "context",
    "state",
    "generation",
    "reason",
    "output_bytes",
    "files",
    "files_incomplete",
    "egress_denied",
    "timing",
]


def answered(life: Life = Life("kept", 1), request: ExecRequest = REQUEST, **outcome: Any) -> Answer:  # noqa: B008
    made = Outcome(**{"status": "ok", "exit_code": 0, "run_ms": 3, **outcome})
    return answer("id", request, made, life, Timing(1, 2, 3))


def test_the_fields_and_their_order_are_those_of_the_contract() -> None:
    body = json.loads(answered().to_json())
    assert list(body) == FIELDS
    assert body["timing"] == {"queued_ms": 1, "started_ms": 2, "run_ms": 3}
    assert body["duration_ms"] == 3


def test_a_deaths_own_reason_goes_first_and_the_kernels_otherwise() -> None:
    assert answered(Life("lost", 2, "idle")).reason == "idle"
    assert answered(Life("lost", 2, "idle"), status="died", reason="oom").reason == "oom"


def test_changed_files_are_told_with_the_bytes_of_paths_that_are_not_utf8() -> None:
    files = [Change("ü/a".encode(), "created", 3), Change(b"\xff", "changed", 4), Change(b"gone", "deleted")]
    told = answered(files=files, files_incomplete="unreadable")
    assert told.files == [
        {"path": "ü/a", "change": "created", "size": 3},
        {"path": "\ufffd", "change": "changed", "size": 4, "raw": "%FF"},
        {"path": "gone", "change": "deleted", "size": None},
    ]
    assert told.files_incomplete == "unreadable"
    assert told.size() > answered().size() + 900
    assert Answer.from_json(told.to_json()).to_json() == told.to_json()


def test_an_error_of_the_code_itself_is_kept_where_memory_ran_out() -> None:
    error = UserError("ExitStatus", "exit status 137", [])
    told = with_cause(Outcome(status="error", exit_code=137, run_ms=3, stderr="Killed\n", error=error, reason="oom"))
    assert told.error == error
    assert told.stderr.startswith("Killed\nout of memory: ")
    for reason in (None, "crash", "killed"):
        crashed = Outcome(status="died", exit_code=137, run_ms=3, reason=reason)
        assert with_cause(crashed) is crashed


def test_json_kinds_are_embedded_and_text_kinds_are_strings() -> None:
    result = Result(
        "result", {"text/plain": "42"}, {"application/json": '{"a": [1, 2.5, null]}'}, '{"m": 1}', display_id="d"
    )
    body = json.loads(answered(results=[result]).to_json())
    assert body["results"] == [
        {
            "type": "result",
            "data": {"text/plain": "42", "application/json": {"a": [1, 2.5, None]}},
            "metadata": {"m": 1},
            "display_id": "d",
        }
    ]
    assert not body["truncated"]


@pytest.mark.parametrize("text", ["{", "[" * 200 + "]" * 200, '{"a": 1}, "injected": {'])
def test_what_is_no_json_or_too_deep_is_named_as_omitted(text: str) -> None:
    made = answered(results=[Result("display", {"text/plain": "x"}, {"application/json": text}, text)])
    body = json.loads(made.to_json())
    omitted, entry = body["results"]
    assert omitted == {"type": "omitted", "mime": "application/json", "bytes": len(text.encode())}
    assert entry == {"type": "display", "data": {"text/plain": "x"}, "metadata": {}}
    assert body["truncated"]


def test_metadata_that_is_no_object_is_empty() -> None:
    body = json.loads(answered(results=[Result("display", metadata="[1]")]).to_json())
    assert body["results"][0]["metadata"] == {}


def test_omitted_results_are_named() -> None:
    body = json.loads(answered(results=[Result("omitted", mime="image/png", size=9)]).to_json())
    assert body["results"] == [{"type": "omitted", "mime": "image/png", "bytes": 9}]
    assert body["truncated"]


def test_stateless_answers_have_nulls() -> None:
    made = answered(Life(), ExecRequest("u", "python", "x", 1.0), execution_count=3)
    assert (made.execution_count, made.context, made.state, made.generation) == (None, None, None, None)


@pytest.mark.parametrize(
    ("status", "stateful", "code"),
    [("timeout", True, 124), ("timeout", False, 137), ("died", True, 137), ("interrupted", False, 130)],
)
def test_exit_codes_of_ends_that_the_sandbox_did_not_tell(status: Any, stateful: bool, code: int) -> None:
    made = ended(ExecRequest("u", "python", "x", 1.0, stateful=stateful), status, stdout="é")
    assert (made.exit_code, made.stdout_bytes) == (code, 2)


def test_the_summary_leaves_out_what_was_streamed() -> None:
    made = answered(stdout="x", error=UserError("E", "v", ["t"]))
    assert set(FIELDS) - set(made.summary()) == {"stdout", "stderr", "results", "execution_id"}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"code": "y"}, False),
        ({"session": "s"}, False),
        ({"language": "node"}, False),
        ({"stateful": False}, False),
        ({"context": "c"}, False),
        ({"timeout_s": 9.0}, True),
        ({"env": {"A": "b"}}, True),
    ],
)
def test_which_requests_are_the_same(change: dict[str, Any], same: bool) -> None:
    fields: dict[str, Any] = {"scope": "u", "language": "python", "code": "x", "timeout_s": 1.0, "stateful": True}
    assert (ExecRequest(**{**fields, **change}).digest() == REQUEST.digest()) is same
