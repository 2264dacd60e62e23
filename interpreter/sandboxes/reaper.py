"""Removes sandboxes that nobody has used for their time to live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from interpreter.sandboxes.manager import Manager
from interpreter.sandboxes.table import Table

LONGEST_S = 15.0


def reap(table: Table, manager: Manager, now: float) -> int:
    """Begin to stop all sandboxes that are due; return how many. Decided at once: whoever comes later gets a fresh one."""
    due = table.due(now)
    for row in due:
        if (live := manager.live(row)) is not None:
            manager.stop(live, "idle")
    return len(due)


async def run(table: Table, manager: Manager, clock: Callable[[], float]) -> None:
    """Reap for ever, looking at least every quarter of the time to live."""
    while True:
        await asyncio.sleep(min(LONGEST_S, table.idle_s / 4))
        reap(table, manager, clock())
