"""Which sandboxes exist, who leases them, which may go.

Promises: a leased key is never due. There are never more than ``limit`` keys that have or may get a sandbox, and a leased
key always has room for one. A key has one sandbox at a time; one that is leaving is not its sandbox any more, so whoever comes
then gets a fresh one. Spares, which are nobody's yet, take what room the keys leave, and no key is refused for them.
Leaves to manager.py: starting, stopping, waiting and the clock. Plain code: no await, no I/O. Times are monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from interpreter.backends.base import SandboxId
from interpreter.errors import SessionBusy, TooManySessions
from interpreter.keys import Key, spare

RETRY_MAX_S = 60.0


@dataclass(eq=False, slots=True)
class Row:
    """One sandbox. used_at: when it was last leased, became ready, or was at work by itself."""

    key: Key
    id: SandboxId
    phase: Literal["starting", "ready", "leaving"]
    used_at: float

    @property
    def spare(self) -> bool:
        """Whether it is nobody's yet."""
        return self.key.session == ""


@dataclass(slots=True)
class Table:
    """limit: keys with a sandbox. idle_s: without a lease before a sandbox is due."""

    limit: int
    idle_s: float
    _rows: dict[Key, Row] = field(default_factory=dict)
    _leaving: set[Row] = field(default_factory=set)
    _spares: list[Row] = field(default_factory=list)
    _leases: dict[Key, int] = field(default_factory=dict)

    def enter(self, key: Key, now: float) -> None:
        """Lease ``key``: from now on it has room for a sandbox and is not due. Raises TooManySessions."""
        if key not in self._leases and key not in self._rows and len(self._taken() - {key}) >= self.limit:
            raise TooManySessions(
                f"{self.limit} sandboxes exist, which is the limit.", retry_after_s=self._first_due_in(now)
            )
        self._leases[key] = self._leases.get(key, 0) + 1

    def leave(self, key: Key, now: float) -> None:
        """Give one lease of ``key`` back."""
        left = self._leases[key] - 1
        if left:
            self._leases[key] = left
        else:
            del self._leases[key]
        if (row := self._rows.get(key)) is not None:
            row.used_at = now

    def used(self, row: Row, now: float) -> None:
        """Say that something in ``row`` is at work though nobody leases it."""
        row.used_at = now

    def leased(self, key: Key) -> bool:
        """Whether somebody leases ``key``."""
        return key in self._leases

    def row(self, key: Key) -> Row | None:
        """Return the sandbox of ``key``: starting or ready."""
        return self._rows.get(key)

    def rows(self, scope: str | None = None) -> list[Row]:
        """Return the sandboxes, of one scope or all; none that is leaving."""
        return [row for key, row in self._rows.items() if scope is None or key.scope == scope]

    def states(self) -> dict[str, int]:
        """Return how many sandboxes are starting, idle, busy (leased), spare and leaving."""
        found = {"starting": 0, "idle": 0, "busy": 0, "spare": len(self._spares), "leaving": len(self._leaving)}
        for key, row in self._rows.items():
            found["starting" if row.phase == "starting" else "busy" if key in self._leases else "idle"] += 1
        return found

    def begin(self, key: Key, sandbox: SandboxId, now: float) -> Row:
        """Say that the sandbox of the leased ``key`` is being started. There must be none."""
        if key in self._rows or key not in self._leases:
            raise ValueError("a sandbox begins once, and for somebody")
        row = self._rows[key] = Row(key, sandbox, "starting", now)
        return row

    def adopt(self, key: Key, sandbox: SandboxId, now: float) -> Row:
        """Say that a sandbox of an earlier service is ``key``'s, and is being taken over. There must be none yet."""
        if key in self._rows:
            raise ValueError("a key has one sandbox")
        row = self._rows[key] = Row(key, sandbox, "starting", now)
        return row

    def begin_spare(self, scope: str | None, sandbox: SandboxId, now: float) -> Row:
        """Say that a sandbox is being started for nobody yet: for a scope, or None for one that has not come before.

        There must be ``room``.
        """
        if self.room() < 1:
            raise ValueError("there is no room for a spare")
        row = Row(spare(scope), sandbox, "starting", now)
        self._spares.append(row)
        return row

    def spares(self, scope: str | None = None) -> list[Row]:
        """Return the spares, of one scope or all, oldest first; none that is leaving."""
        return [row for row in self._spares if scope is None or row.key.scope == scope]

    def fitting(self, key: Key, *, unseen: bool) -> Row | None:
        """Return a spare that can become the sandbox of ``key``, a new session. unseen: its scope has not come before."""
        wanted = spare(None if unseen else key.scope)
        return next((row for row in self._spares if row.key == wanted and row.phase == "ready"), None)

    def claim(self, row: Row, key: Key, now: float) -> None:
        """Say that a ready spare is becoming the sandbox of the leased ``key``, once and for all. There must be none."""
        if (
            key in self._rows
            or key not in self._leases
            or row.phase != "ready"
            or key.scope != (row.key.scope or key.scope)
        ):
            raise ValueError("a spare becomes a sandbox once, for somebody of its scope")
        self._spares.remove(row)
        row.key, row.phase, row.used_at = key, "starting", now
        self._rows[key] = row

    def room(self) -> int:
        """Return how many more sandboxes there may be now; negative where spares have to go."""
        leaving = sum(row.spare for row in self._leaving)
        return self.limit - len(self._taken()) - len(self._spares) - leaving

    def surplus(self) -> list[Row]:
        """Return the spares for which the keys leave no room, oldest first."""
        return self._spares[: max(0, len(self._taken()) + len(self._spares) - self.limit)]

    def starting(self) -> bool:
        """Whether the sandbox of some key is being started."""
        return any(row.phase == "starting" for row in self._rows.values())

    def ready(self, row: Row, now: float) -> None:
        """Say that a sandbox works."""
        if row.phase == "starting":
            row.phase = "ready"
            row.used_at = now

    def take(self, row: Row) -> bool:
        """Say that ``row`` is about to be stopped, or has ended by itself; False if that was known."""
        if row.phase == "leaving":
            return False
        row.phase = "leaving"
        if row.spare:
            self._spares.remove(row)
        else:
            del self._rows[row.key]
        self._leaving.add(row)
        return True

    def gone(self, row: Row) -> None:
        """Say that nothing of ``row`` is left."""
        self.take(row)
        self._leaving.discard(row)

    def due(self, now: float) -> list[Row]:
        """Sandboxes, spares too, that nobody has leased for ``idle_s`` seconds or more, longest idle first."""
        rows = [*self._rows.values(), *self._spares]
        idle = [row for row in rows if row.key not in self._leases and now - row.used_at >= self.idle_s]
        return sorted(idle, key=lambda row: row.used_at)

    def removable(self, keys: list[Key], *, force: bool) -> list[Row]:
        """Return the sandboxes of ``keys``. Raises SessionBusy if one of the keys is leased, unless ``force``."""
        if not force and any(key in self._leases for key in keys):
            raise SessionBusy("Something is queued or running there; force=true ends it.", retry_after_s=1.0)
        return [self._rows[key] for key in keys if key in self._rows]

    def keys(self, scope: str) -> list[Key]:
        """Return the keys of ``scope`` that have a sandbox or a lease."""
        return sorted(
            {key for key in (*self._rows, *self._leases) if key.scope == scope}, key=lambda key: key.session or ""
        )

    def _taken(self) -> set[Key]:
        return {*self._rows, *self._leases, *(row.key for row in self._leaving if not row.spare)}

    def _first_due_in(self, now: float) -> float:
        idle = [row.used_at for row in self._rows.values() if row.key not in self._leases]
        return min(RETRY_MAX_S, max(1.0, min(idle) + self.idle_s - now)) if idle else 1.0
