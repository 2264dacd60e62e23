"""Waiting for facts that nobody tells of: that a process has gone, that a file is there.

What ends by itself is not gone at the moment at which it was told to: a killed process is listed until its parent, who may be
busy, has reaped it. So a test asks again and again. The limit only ends a test that has failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 20.0


def until(fact: Callable[[], object], *, within_s: float = PATIENCE_S) -> None:
    """Return once ``fact`` is so."""
    deadline = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < deadline, f"not so within {within_s} s"
        time.sleep(0.005)


async def soon(fact: Callable[[], object], *, within_s: float = PATIENCE_S) -> None:
    """Return once ``fact`` is so; the loop goes on meanwhile."""
    deadline = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < deadline, f"not so within {within_s} s"
        await asyncio.sleep(0.001)


def gone(pid: int | str) -> bool:
    """Whether the process has ended and its parent knows."""
    return not Path(f"/proc/{pid}").exists()


def ended(pid: int | str) -> bool:
    """Whether the process has ended: it is gone, or waits for whoever is its parent by now to reap it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"
