"""Spare sandboxes: for whom they are made ahead, and the task that makes them.

Promises: never more than ``limit``, and never more than the keys leave room for. One is made at a time, and none while a
sandbox is being started for somebody. It serves the next new session of the scope that it was made for, or of a scope that has
not come before, with the ids and the policy that it has had from the start; it is used once, and goes when nobody has wanted it
for the idle time. A spare has a Python kernel from the start.
Leaves to manager.py: starting, giving away, ending.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interpreter.sandboxes.manager import Manager
    from interpreter.sandboxes.table import Table

PAUSE_S = 0.3
"""From the moment when a spare is missing: the first call of the session that has taken it has the machine to itself."""
LONGEST_PAUSE_S = 60.0
"""Where spares do not start."""


@dataclass(slots=True)
class Plan:
    """Which spares there should be. limit: how many. idle_s: without a new session, before a scope has none any more.

    A scope of None stands for scopes that have not come before; unseen: such can come.
    """

    limit: int = 0
    idle_s: float = 600.0
    unseen: bool = True
    taken: int = 0
    """New sessions that got a spare."""
    missed: int = 0
    """New sessions for which there was none."""
    _used: dict[str | None, float] = field(default_factory=dict)

    def used(self, scope: str, now: float, *, unseen: bool) -> None:
        """Say that a new session of ``scope`` has come. unseen: the first that was ever seen of it."""
        for name in (None, scope) if unseen else (scope,):
            self._used.pop(name, None)
            if name is not None or self.unseen:
                self._used[name] = now
        for name in list(self._used)[: -max(1, self.limit)]:
            del self._used[name]

    def begin(self, now: float) -> None:
        """Say that the service begins: the first to come is somebody new."""
        if self.unseen:
            self._used[None] = now

    def forget(self, scope: str) -> None:
        """Make no more spares for ``scope`` until it comes again."""
        self._used.pop(scope, None)

    def missing(self, there: Sequence[str | None], now: float) -> list[str | None]:
        """Return the scopes for which spares are to be made beside those that are ``there``, the most urgent first.

        One that is there for somebody else counts: it is not ended for another.
        """
        recent = [scope for scope, at in reversed(self._used.items()) if now - at < self.idle_s]
        if not recent:
            return []
        found, left = [], Counter(there)
        for scope in islice(cycle(recent), self.limit):
            if left[scope]:
                left[scope] -= 1
            else:
                found.append(scope)
        return found[: max(0, self.limit - len(there))]


async def run(plan: Plan, table: Table, manager: Manager, clock: Callable[[], float]) -> None:
    """Make spares for ever, one after the other."""
    pause_s = PAUSE_S
    while True:
        await manager.changed.wait()
        await asyncio.sleep(pause_s)
        manager.changed.clear()
        there = [row.key.scope or None for row in table.spares()]
        scopes = plan.missing(there, clock())
        if not scopes or table.room() < 1 or table.starting():
            continue  # whatever changes that is told
        live = manager.begin_spare(scopes[0])
        await asyncio.wait([live.started])
        pause_s = PAUSE_S if live.usable else min(2 * pause_s, LONGEST_PAUSE_S)
