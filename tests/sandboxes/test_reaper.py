"""How often the reaper looks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interpreter.sandboxes import reaper
from interpreter.sandboxes.table import Table


@pytest.mark.parametrize(("idle_s", "longest_s"), [(1, 0.25), (2, 0.5), (600, 15), (7200, 15)])
async def test_it_looks_at_least_every_quarter_of_the_time_to_live(
    monkeypatch: pytest.MonkeyPatch, idle_s: float, longest_s: float
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(reaper.asyncio, "sleep", sleep)
    nobody: Any = None
    with pytest.raises(asyncio.CancelledError):
        await reaper.run(Table(limit=1, idle_s=idle_s), nobody, lambda: 0.0)
    assert pauses == [longest_s] * 3
