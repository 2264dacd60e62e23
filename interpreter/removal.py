"""Removing sandboxes, and with a purge what is theirs: kernels, answers, directories.

Promises: decided before the first wait, so that who comes later gets a fresh sandbox, after the purge; ``purged`` is said once
nothing is left, answers in the records neither.
Leaves to scopes/: how directories go; to service.py: what is asked for, and by whom.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any

from interpreter import shortage
from interpreter.errors import ServiceError, StorageFailed
from interpreter.executions.execution import Execution
from interpreter.executions.recorder import Recorder
from interpreter.executions.runner import Runner
from interpreter.executions.store import Store
from interpreter.keys import Key
from interpreter.sandboxes.kernels import Kernels
from interpreter.sandboxes.manager import Manager
from interpreter.sandboxes.spares import Plan
from interpreter.sandboxes.table import Table
from interpreter.scopes.root import DataRoot
from interpreter.tasks import finish

log = logging.getLogger(__name__)

REMOVE_S = 600.0
"""For the data of a scope, which may be millions of files."""


@dataclass(slots=True)
class Removal:
    """Ends and forgets, in all the parts that know of a sandbox."""

    _table: Table
    _kernels: Kernels
    _manager: Manager
    _runner: Runner
    _store: Store
    _recorder: Recorder
    _data: DataRoot
    _plan: Plan
    _sweeping: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def remove(self, keys: list[Key], *, purge: bool, force: bool, scope: str | None = None) -> dict[str, Any]:
        """Remove sandboxes. Decided before the first wait: who comes later gets a fresh sandbox, after the purge."""
        rows = self._table.removable(keys, force=force)
        ended = [execution for key in keys for execution in self._store.active(key)]
        for execution in ended:
            self._runner.end(execution, "deleted")
        lives = [live for row in rows if (live := self._manager.get(row.key)) is not None]
        unused = []
        if scope is not None:
            self._plan.forget(scope)
            unused = [live for row in self._table.spares(scope) if (live := self._manager.live(row)) is not None]
        for live in [*lives, *unused]:
            self._manager.stop(live, "deleted")
        for key in keys:
            self._kernels.ended_by_owner(key)
        async with self._manager.held(scope or frozenset(keys)):
            await self._manager.gone([*lives, *unused])
            await all_finished(ended)
            if not purge:
                return {"removed": len(lives), "purged": False}
            for key in keys:
                self._kernels.forget(key)
            forgotten = await self._forget(keys, scope)
            try:
                await finish(asyncio.to_thread(self._move_away, keys, scope), within_s=REMOVE_S)
            except OSError as error:
                cause = shortage.told(error.errno) or "the log of the service has the reason"
                log.error("a directory could not be purged", exc_info=error)
                raise StorageFailed(f"The data could not be moved away: {cause}.") from error
        purged = await self._sweep()
        if not forgotten:  # on a full disk, which may have room now
            purged = await self._forget(keys, scope) and purged
        if not purged:
            log.warning("not all of a purged directory could be removed yet", extra={"scope": scope or keys[0].scope})
        return {"removed": len(lives), "purged": purged}

    async def _forget(self, keys: list[Key], scope: str | None) -> bool:
        """Forget the answers of what is purged; whether none is left, in records either."""
        wanted = [(key.scope, key.session) for key in keys] if scope is None else [(scope, None)]
        for name, session in wanted:
            self._store.forget(name, session)
        try:
            for name, session in wanted:
                await self._recorder.forget(name, session)
        except StorageFailed:
            return False
        return True

    async def _sweep(self) -> bool:
        """Remove what was moved away; False if it is not all gone in time. One at a time: a purge of millions of files takes
        one thread, however many wait for theirs, and leaves the others to sandboxes that start."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REMOVE_S), self._sweeping:
                return await finish(asyncio.to_thread(self._data.sweep), within_s=REMOVE_S)
        return False

    def _move_away(self, keys: list[Key], scope: str | None) -> None:
        if scope is not None:
            self._data.purge_scope(scope)
        else:
            for key in keys:
                self._data.purge_session(key)


async def all_finished(executions: list[Execution]) -> None:
    """Wait until all have ended, whichever way."""
    for execution in executions:
        with contextlib.suppress(ServiceError):
            await execution.finished()
