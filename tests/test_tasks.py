"""Tasks have an owner, and cleanups run to their end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from interpreter.tasks import Tasks, finish


async def test_a_cleanup_runs_to_its_end_while_being_cancelled() -> None:
    steps: list[str] = []
    go = asyncio.Event()

    async def cleanup() -> None:
        steps.append("began")
        await go.wait()
        steps.append("ended")

    task = asyncio.get_running_loop().create_task(finish(cleanup(), within_s=10))
    await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    await asyncio.wait([task])
    assert (task.cancelled(), steps) == (True, ["began", "ended"])


async def test_a_cleanup_has_a_limit_and_a_result() -> None:
    with pytest.raises(TimeoutError):
        await finish(asyncio.sleep(60), within_s=0.01)
    assert await finish(asyncio.sleep(0, "result"), within_s=10) == "result"


async def test_failures_are_logged_once_unless_they_are_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(error: Exception) -> None:
        raise error

    tasks = Tasks()
    with caplog.at_level(logging.ERROR):
        started = [
            tasks.start(fail(KeyError("fault")), name="fault"),
            tasks.start(fail(ValueError("answer")), name="answer", expected=ValueError),
        ]
        await asyncio.wait(started)
        await asyncio.sleep(0)
    assert [record.message for record in caplog.records] == ["a task failed"]
    assert len(tasks) == 0


async def test_close_leaves_none_and_says_what_did_not_end(caplog: pytest.LogCaptureFixture) -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    tasks = Tasks()
    tasks.start(asyncio.Event().wait(), name="easy")
    hard = tasks.start(stubborn(), name="hard")
    await asyncio.sleep(0)
    with caplog.at_level(logging.ERROR):
        await tasks.aclose(within_s=0.01)
    assert [record.message for record in caplog.records] == ["a task did not end"]
    assert len(tasks) == 1
    release.set()
    await hard
    await tasks.aclose(within_s=1)


async def test_idle_is_of_those_that_run_now() -> None:
    tasks, go = Tasks(), asyncio.Event()
    now = tasks.start(go.wait(), name="now")
    idle = asyncio.get_running_loop().create_task(tasks.idle(within_s=10), name="idle")
    await asyncio.sleep(0)
    later = tasks.start(asyncio.Event().wait(), name="later")
    go.set()
    await idle
    assert (now.done(), later.done()) == (True, False)
    late = asyncio.get_running_loop().create_task(tasks.idle(within_s=0.01), name="idle")
    await late
    assert later.cancelled()
