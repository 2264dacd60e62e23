"""Removes sandboxes that nobody has used for their time to live, and unmounts what scopes without one do not use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from interpreter.sandboxes.manager import Manager
from interpreter.sandboxes.table import Table
from interpreter.scopes.quota import Volumes

LONGEST_S = 15.0
UNMOUNT_S = 60.0


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


async def unmount(table: Table, volumes: Volumes) -> None:
    """Unmount for ever what scopes that have no sandbox have not used for ``UNMOUNT_S`` seconds."""
    while True:
        await asyncio.sleep(UNMOUNT_S)
        used = {row.key.scope for row in table.rows()}
        await asyncio.to_thread(volumes.unmount_idle, used, idle_s=UNMOUNT_S)
