"""Blocking work has its threads from the start."""

from __future__ import annotations

import threading

import pytest

from interpreter import app, threads


def test_no_thread_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = threads.started(4)

    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pool, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert [future.result(5) for future in [pool.submit(pow, 2, n) for n in range(50)]] == [2**n for n in range(50)]


def test_a_host_that_allows_too_few_is_an_error_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start, before = threading.Thread.start, threading.active_count()
    allowed = iter(range(2))

    def few(thread: threading.Thread) -> None:
        if next(allowed, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    with pytest.raises(RuntimeError):
        threads.started(4)
    assert threading.active_count() == before


async def test_a_service_that_gets_too_few_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "started", refused)
    with pytest.raises(app.StartError, match=r"no further process is allowed: raise .*pids\.max"):
        app._start_threads()
