"""Spare sandboxes: for whom they are made ahead, and the task that makes them.

Promises: never more than ``limit``, and never more than the keys leave room for. One is made at a time, and none while a
sandbox is being started for somebody. It serves the next new session of the scope that it was made for, or of a scope that has
not come before, with the ids and the policy that it has had from the start; it is used once, and goes when nobody has wanted it
for the idle time. A spare has a Python kernel from the start.
Leaves to manager.py: starting, giving away, ending.
"""

from __future__ import annotations

import asyncio
import contextlib
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
PATIENCE = 0.1
"""Of the idle time, which a spare has before another scope's may be made in its place."""
LONGEST_PAUSE_S = 60.0
"""Where spares do not start."""
LOOK_S = 5.0
"""Between two looks at the least: that time has passed, or a lease has ended without a sandbox, is told by nobody."""


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
        """Make no more spares for ``scope`` until it comes again. Where nobody else has come, the next one is somebody new."""
        at = self._used.pop(scope, None)
        if at is not None and not self._used and self.unseen:
            self._used[None] = at

    def missing(self, there: Sequence[str | None], now: float) -> list[str | None]:
        """Return the scopes for which spares are to be made beside those that are ``there``, the most urgent first.

        One that is there for somebody else counts, as long as it is not ``misplaced``.
        """
        recent = self._recent(now)
        if not recent:
            return []
        found, left = [], Counter(there)
        for scope in islice(cycle(recent), self.limit):
            if left[scope]:
                left[scope] -= 1
            else:
                found.append(scope)
        return found[: max(0, self.limit - len(there))]

    def misplaced(self, scope: str | None, now: float, *, since: float) -> bool:
        """Whether a spare that has been there ``since`` is for nobody who came lately, and another may be made instead.

        Not at once: many scopes in turns would end each other's spares, and none get any.
        """
        recent = self._recent(now)
        return bool(recent) and scope not in recent and now - since >= self.idle_s * PATIENCE

    def _recent(self, now: float) -> list[str | None]:
        """Return those that may have a spare, the last one first."""
        recent = [scope for scope, at in reversed(self._used.items()) if now - at < self.idle_s]
        return recent[: self.limit]


async def run(plan: Plan, table: Table, manager: Manager, clock: Callable[[], float]) -> None:
    """Make spares for as long as anything is started, one after the other."""
    pause_s = PAUSE_S
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await manager.changed.wait()
        await asyncio.sleep(pause_s)
        manager.changed.clear()
        if manager.closed:  # by now
            return
        there, now = table.spares(), clock()
        for row in there if len(there) >= plan.limit else []:
            live = manager.live(row)
            if live is not None and plan.misplaced(row.key.scope or None, now, since=row.used_at):
                manager.stop(live, "idle")
        scopes = plan.missing([row.key.scope or None for row in table.spares()], now)
        if not scopes or table.room() < 1 or table.starting():
            continue
        made = manager.begin_spare(scopes[0])
        await asyncio.wait([made.started])
        pause_s = PAUSE_S if made.usable else min(2 * pause_s, LONGEST_PAUSE_S)
