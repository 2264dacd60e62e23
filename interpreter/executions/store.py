"""Which executions are known, and for how long: bounded in number, bytes and time.

Promises: one that has not finished is never forgotten. Ids of callers are looked up within their scope only; ours have 128
unguessable bits. Plain code that is told the time, in monotonic seconds.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from interpreter.errors import ExecutionIdTaken, ExecutionNotFound
from interpreter.executions.events import EventLog, Room
from interpreter.executions.execution import Execution
from interpreter.executions.model import ExecRequest
from interpreter.keys import Key

MAX_NUMBER = 10_000
MAX_BYTES = 256 * 1024 * 1024
MAX_STORED = 2 * 1024 * 1024 * 1024
"""Bytes of output in files, of what has finished."""

MAX_ROOM = 2 * MAX_STORED
"""Bytes of output in files, of all."""


@dataclass(slots=True)
class Store:
    """keep_s: how long a finished execution is kept, if number and bytes allow. folder: for output that is long; None keeps it in
    memory. spill: bytes of each stream that are kept of an execution."""

    keep_s: float
    folder: Path | None = None
    spill: int = 2**26
    max_number: int = MAX_NUMBER
    max_bytes: int = MAX_BYTES
    max_stored: int = MAX_STORED
    room: Room = field(default_factory=lambda: Room(MAX_ROOM))
    _all: dict[tuple[str, str], Execution] = field(default_factory=dict)
    _ours: dict[str, Execution] = field(default_factory=dict)
    _finished: OrderedDict[tuple[str, str], tuple[int, int]] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _stored: int = 0

    def __len__(self) -> int:
        """How many are known."""
        return len(self._all)

    def known(self, request: ExecRequest, now: float) -> Execution | None:
        """Return the first execution of the same request and id, if it is kept. Raises ExecutionIdTaken for another request.

        One that never ran is forgotten by that: the same call may succeed now.
        """
        self.expire(now)
        if request.execution_id is None:
            return None
        name = (request.scope, request.execution_id)
        first = self._fresh(self._all.get(name), now)
        if first is not None and first.never_ran:
            self._remove(name)
            return None
        if first is not None and first.digest != request.digest():
            raise ExecutionIdTaken("Another request of this scope has this execution_id.")
        return first

    def add(self, request: ExecRequest) -> Execution:
        """Return a new execution of ``request``, whose id must not be known."""
        named = request.execution_id is not None
        name = request.execution_id or secrets.token_hex(16)
        events = EventLog(name, folder=self.folder, limit=self.spill, room=self.room)
        execution = Execution(name, request, named=named, events=events)
        self._all[request.scope, execution.id] = execution
        if not named:
            self._ours[execution.id] = execution
        return execution

    def restore(self, execution: Execution) -> None:
        """Take in one that an earlier service knew, or that was kept elsewhere, whether it has finished or not."""
        execution.events.keep_in(self.folder, limit=self.spill, room=self.room)
        self._all[execution.scope, execution.id] = execution
        if not execution.named:
            self._ours[execution.id] = execution
        if execution.finished_at is not None:
            self.finished(execution, execution.finished_at)

    def drop(self, execution: Execution) -> None:
        """Forget an execution that never began."""
        self._remove((execution.scope, execution.id))

    def finished(self, execution: Execution, now: float) -> None:
        """Say that ``execution`` has ended; from now on it may be forgotten."""
        name = (execution.scope, execution.id)
        if self._all.get(name) is execution and name not in self._finished:
            execution.shed()
            self._finished[name] = size, stored = execution.size(), execution.events.stored
            self._bytes += size
            self._stored += stored
        self.expire(now)

    def get(self, execution_id: str, scope: str | None, now: float) -> Execution:
        """Return a kept execution. scope: needed for ids of callers. Raises ExecutionNotFound."""
        self.expire(now)
        found = self._named(execution_id, scope, now)
        if found is None:
            raise ExecutionNotFound(
                "No such execution is kept." if scope else "No such execution is kept; ids of callers need ?scope=."
            )
        return found

    def has(self, execution_id: str, scope: str | None, now: float) -> bool:
        """Whether ``get`` would return one."""
        return self._named(execution_id, scope, now) is not None

    def active(self, key: Key | None = None) -> list[Execution]:
        """Return those that have not finished, of one sandbox or all, oldest first."""
        return [e for n, e in self._all.items() if n not in self._finished and key in (None, e.request.key)]

    def phases(self) -> dict[str, int]:
        """Return how many are queued and running."""
        found = {"queued": 0, "running": 0}
        for execution in self.active():
            if execution.phase != "finished":
                found[execution.phase] += 1
        return found

    def active_count(self) -> int:
        """How many have not finished."""
        return len(self._all) - len(self._finished)

    def forget(self, scope: str, session: str | None = None) -> None:
        """Forget what has finished in a purged session, or in all of a scope if ``session`` is None."""
        for name in list(self._finished):
            if name[0] == scope and session in (None, self._all[name].session):
                self._remove(name)

    def expire(self, now: float) -> None:
        """Forget what is kept too long, and the oldest of what is too much."""
        while self._finished:
            name = next(iter(self._finished))
            too_old = self._too_old(self._all[name], now)
            too_much = self._bytes > self.max_bytes or self._stored > self.max_stored
            if not (too_old or len(self._finished) > self.max_number or too_much):
                return
            self._remove(name)

    def _named(self, execution_id: str, scope: str | None, now: float) -> Execution | None:
        return self._fresh(self._ours.get(execution_id) if scope is None else self._all.get((scope, execution_id)), now)

    def _fresh(self, execution: Execution | None, now: float) -> Execution | None:
        """Return it, or forget it if it is too old: one that was restored may be so before those that came earlier."""
        if execution is not None and self._too_old(execution, now):
            self._remove((execution.scope, execution.id))
            return None
        return execution

    def _too_old(self, execution: Execution, now: float) -> bool:
        return execution.finished_at is not None and now - execution.finished_at >= self.keep_s

    def _remove(self, name: tuple[str, str]) -> None:
        execution = self._all.pop(name, None)
        if execution is not None and not execution.named:
            self._ours.pop(execution.id, None)
        size, stored = self._finished.pop(name, (0, 0))
        self._bytes -= size
        self._stored -= stored
        if execution is not None:
            execution.discard()
