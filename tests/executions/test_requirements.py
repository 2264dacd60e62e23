"""What pip is told, and what becomes of an execution by how it ends."""

from __future__ import annotations

from typing import Any

import pytest
from sandboxd.protocol import Change, Outcome, OutputLimits

from interpreter.executions import requirements
from interpreter.executions.model import ExecRequest

REQUEST = ExecRequest(
    "u", "python", "x", 1.0, session="s", stateful=True, env={"A": "1"}, files={"requirements.txt": b"numpy"}, cwd="d"
)


def pip(**fields: Any) -> Outcome:
    return Outcome(**{"status": "ok", "exit_code": 0, "run_ms": 3, **fields})


def test_only_a_file_of_this_name_at_the_top_is_installed() -> None:
    assert requirements.wanted(REQUEST)
    assert not requirements.wanted(ExecRequest("u", "python", "x", 1.0, files={"d/requirements.txt": b""}))


@pytest.mark.parametrize("network", [False, True])
def test_pip_runs_in_the_same_sandbox_as_a_program_of_its_own(network: bool) -> None:
    asked = requirements.installing(REQUEST, network=network)
    assert (asked.key, asked.env, asked.kernel, asked.cwd) == (REQUEST.key, REQUEST.env, None, None)
    assert ("--no-index" in asked.code) is not network
    assert asked.timeout_s > REQUEST.timeout_s


def test_what_it_says_is_streamed_where_the_execution_is() -> None:
    output = OutputLimits(text=1000, results=5, spill=7)
    assert requirements.limits(REQUEST, output) == OutputLimits(text=1000, results=0, spill=0)
    streamed = ExecRequest("u", "python", "x", 1.0, stream=True)
    assert requirements.limits(streamed, output) == OutputLimits(text=1000, results=0, spill=7)


def test_success_is_no_end() -> None:
    assert requirements.failed(pip(stderr="a warning\n"), network=False) is None


@pytest.mark.parametrize(
    ("fields", "network", "said"),
    [
        ({"status": "error", "exit_code": 1}, True, "see stderr"),
        ({"status": "error", "exit_code": 1}, False, "SANDBOX_NETWORK=none"),
        ({"status": "timeout", "exit_code": 137}, True, "ended with timeout"),
        ({"status": "timeout", "exit_code": 137}, False, "ended with timeout"),
        ({"status": "died", "exit_code": 137, "reason": "oom"}, False, "ended with died"),
    ],
)
def test_a_failure_is_the_end_of_the_execution_and_says_that_nothing_has_run(
    fields: dict[str, Any], network: bool, said: str
) -> None:
    end = requirements.failed(
        pip(stderr="of pip\n", stderr_bytes=7, files=[Change(b"f", "created")], **fields), network=network
    )
    assert end is not None
    assert (end.status, end.exit_code, end.reason) == (fields["status"], fields["exit_code"], fields.get("reason"))
    assert end.error is not None
    assert end.error.name == "RequirementsNotInstalled"
    assert said in end.error.value
    assert "the code has not run" in end.error.value
    assert end.stderr == f"of pip\n{end.error.value}\n"
    assert end.stderr_bytes == len(end.stderr)
    assert end.files == []


def test_what_pip_said_comes_before_what_the_code_said_within_the_limit() -> None:
    told = requirements.said(pip(stderr="wärning\n", stderr_bytes=9), pip(stderr="mine", stderr_bytes=4), 100)
    assert (told.stderr, told.stderr_bytes, told.truncated) == ("wärning\nmine", 13, False)
    told = requirements.said(pip(stderr="wärning\n", stderr_bytes=9), pip(stderr="mine", stderr_bytes=4), 6)
    assert (told.stderr, told.stderr_bytes, told.truncated) == ("wmine", 13, True)
    whole = pip(stderr="mine")
    assert requirements.said(pip(), whole, 6) is whole
