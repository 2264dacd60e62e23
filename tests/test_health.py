"""Whether sandboxes can be served, where what is asked does not answer."""

from __future__ import annotations

import asyncio
import threading

import pytest

from interpreter import health as asking
from interpreter.backends.fake import FakeBackend
from interpreter.health import KEPT_S, Health
from tests.fakes.sandboxd import Sandboxd


async def test_a_disk_that_hangs_takes_one_thread_and_is_fine_once_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, now = asyncio.get_running_loop(), 100.0
    asked, answers, answered = 0, threading.Event(), asyncio.Event()

    def disk() -> None:
        nonlocal asked
        asked += 1
        assert answers.wait(30)
        loop.call_soon_threadsafe(answered.set)

    health = Health(FakeBackend(Sandboxd()), disk, clock=lambda: now)
    monkeypatch.setattr(asking, "ASK_S", 0.01)
    for _ in range(3):
        ok, about = await health.ask()
        assert (ok, about["status"]) == (True, "degraded")
        assert "does not answer" in about["message"]
        now += KEPT_S
    assert asked == 1
    answers.set()
    await answered.wait()
    monkeypatch.setattr(asking, "ASK_S", 30.0)
    assert await health.ask() == (True, {"status": "ok", "runtime": "fake"})
    now += KEPT_S
    await health.ask()
    assert asked == 2, "it is asked anew then"
