"""One execution: what it makes of a foreign kernel's messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sandboxd.execution import Running
from sandboxd.messages import Received
from sandboxd.processes import Exited
from sandboxd.protocol import Execute, Outcome, OutputLimits

LIMITS = OutputLimits(text=1000, results=1000, spill=0)


def said(kind: str, content: dict[str, Any]) -> Received:
    return Received(kind, "request", json.dumps(content).encode())


REPLY = said("execute_reply", {"status": "ok", "execution_count": 1})
IDLE = said("status", {"execution_state": "idle"})
TEXT = said("stream", {"name": "stdout", "text": "text"})


def outcome(
    messages: list[Received], *, marks: bool = False, limits: OutputLimits = LIMITS, stream: bool = False
) -> tuple[bool, Outcome]:
    """Return whether the messages are all that it takes, and how it ended."""
    message = Execute(
        "x", language="other", code="", timeout_s=1.0, grace_s=1.0, limits=limits, stateful=True, stream=stream
    )
    running = Running(message, 1, marks=marks, send=lambda _message: None)
    for received in messages:
        if received.type == "execute_reply":
            running.on_shell(received)
        else:
            running.on_iopub(received)
    complete = running.complete
    assert running.over.done() == (marks and running.reply is not None)
    running.end()
    return complete, running.outcome("kept", Exited(None), stopped=None)


@pytest.mark.parametrize("messages", [[TEXT, IDLE, REPLY], [REPLY, TEXT, IDLE], [TEXT, REPLY, IDLE]])
async def test_reply_and_idle_are_all_that_it_takes_in_any_order(messages: list[Received]) -> None:
    complete, ended = outcome(messages)
    assert complete
    assert (ended.status, ended.stdout, ended.truncated) == ("ok", "text", False)


async def test_an_idle_that_never_came_means_that_messages_were_dropped() -> None:
    complete, ended = outcome([TEXT, REPLY])
    assert not complete
    assert (ended.status, ended.stdout, ended.truncated) == ("ok", "text", True)


async def test_a_kernel_of_ours_is_done_with_its_reply() -> None:
    complete, ended = outcome([TEXT, REPLY], marks=True)
    assert complete
    assert not ended.truncated


async def test_without_a_reply_nothing_is_known_to_be_missing() -> None:
    assert not outcome([TEXT])[1].truncated


@pytest.mark.parametrize("spill", [30, 10])
async def test_the_answer_says_that_a_display_was_not_told_of_though_it_holds_it(spill: int) -> None:
    shown = said("display_data", {"data": {"text/plain": "1234567890"}, "metadata": {}})
    limits = OutputLimits(text=1000, results=1000, spill=spill)
    ended = outcome([shown, REPLY, IDLE], limits=limits, stream=True)[1]
    assert [entry.data for entry in ended.results] == [{"text/plain": "1234567890"}]
    assert ended.truncated is (spill == 10)
