"""What outlives the service: its sandboxes, the lives of kernels and the executions.

Promises: each method is one batch of the state file, or a part of the one around it.
Leaves to statefile.py: the file; to executions/recorder.py and sandboxes/: what is written when. Used by one thread.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from interpreter.statefile import EXECUTION_COLUMNS, KERNEL_COLUMNS, SANDBOX_COLUMNS, StateFile

SOME = 20
"""Executions that are forgotten at a time: with answers of 64 KiB each that takes 5 ms, 20 ms on a busy host; of 4,000 at once,
seconds."""


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """A sandbox that is somebody's. started_at: seconds since 1970."""

    id: str
    scope: str
    session: str | None
    started_at: float


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """What is remembered of a kernel; see sandboxes/kernels.py."""

    scope: str
    session: str | None
    language: str
    context: str
    generation: int
    home: str | None
    alive: bool
    restarted: bool
    loss: str | None
    executions: int
    started_at: float
    used_at: float


@dataclass(frozen=True, slots=True)
class ExecutionRecord:
    """An execution. digest: of what makes another request its repetition. request: see executions/recorder.py; not ``whole``:
    without what could run it again.

    sandbox, link, sent_at: where it was sent, under which id, when (monotonic seconds). answer: JSON, in ``file`` where it is
    large. finished_at: monotonic seconds; None while it waits or runs. number: its place in the order of their coming.
    """

    scope: str
    session: str | None
    id: str
    named: bool
    digest: bytes
    request: bytes
    whole: bool
    sandbox: str | None = None
    link: str | None = None
    sent_at: float | None = None
    answer: bytes | None = None
    file: str | None = None
    size: int = 0
    finished_at: float | None = None
    number: int | None = None


_SANDBOXES = f"SELECT {SANDBOX_COLUMNS} FROM sandboxes ORDER BY rowid"  # noqa: S608 - names of ours
_KERNELS = f"SELECT {KERNEL_COLUMNS} FROM kernels"  # noqa: S608 - names of ours
_UNFINISHED = f"SELECT {EXECUTION_COLUMNS} FROM executions WHERE finished_at IS NULL ORDER BY number"  # noqa: S608 - names of ours
_FINISHED = f"SELECT {EXECUTION_COLUMNS} FROM executions WHERE finished_at IS NOT NULL AND id = ? AND "  # noqa: S608 - names of ours


_sandbox_values, _kernel_values, _execution_values = (
    attrgetter(*(field.name for field in fields(kind))) for kind in (SandboxRecord, KernelRecord, ExecutionRecord)
)
"""As dataclasses.astuple, without its copies of everything."""


class Records(StateFile):
    """What is in the state file. ``open`` it before anything else. Every write raises StorageFailed where the disk refuses it."""

    # --- sandboxes --------------------------------------------------------------------------------------------------

    def sandbox_begins(self, record: SandboxRecord) -> None:
        """Note a sandbox before there is anything of it."""
        with self.batch() as database:
            database.execute("INSERT OR REPLACE INTO sandboxes VALUES (?, ?, ?, ?)", _sandbox_values(record))

    def sandbox_leaves(self, sandbox: str) -> None:
        """Note that it is nobody's any more: a later service removes what is left of it."""
        with self.batch() as database:
            database.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox,))

    def sandboxes(self) -> list[SandboxRecord]:
        """Return them, oldest first."""
        with self.batch() as database:
            rows = database.execute(_SANDBOXES).fetchall()
        return [SandboxRecord(*row) for row in rows]

    # --- kernels ----------------------------------------------------------------------------------------------------

    def kernel(self, record: KernelRecord) -> None:
        """Note what is now known of a kernel."""
        values = (record.scope, record.session or "", *_kernel_values(record)[2:])
        with self.batch() as database:
            database.execute(f"INSERT OR REPLACE INTO kernels VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608 - marks

    def forget_kernel(self, scope: str, session: str | None, language: str, context: str) -> None:
        """Forget a kernel, its generation too."""
        with self.batch() as database:
            database.execute(
                "DELETE FROM kernels WHERE (scope, session, language, context) = (?, ?, ?, ?)",
                (scope, session or "", language, context),
            )

    def kernels(self) -> list[KernelRecord]:
        """Return all that is known of kernels."""
        with self.batch() as database:
            rows = database.execute(_KERNELS).fetchall()
        return [KernelRecord(r[0], r[1] or None, *r[2:6], *map(bool, r[6:8]), *r[8:]) for r in rows]

    # --- executions -------------------------------------------------------------------------------------------------

    def execution(self, record: ExecutionRecord) -> None:
        """Note an execution as it is now, in the place that it has."""
        with self.batch() as database:
            database.execute(
                f"INSERT INTO executions ({EXECUTION_COLUMNS}) VALUES ({', '.join('?' * 15)})"  # noqa: S608 - names and marks
                " ON CONFLICT (scope, id) DO UPDATE SET request = excluded.request, whole = excluded.whole,"
                " sandbox = excluded.sandbox, link = excluded.link, sent_at = excluded.sent_at, answer = excluded.answer,"
                " file = excluded.file, size = excluded.size, finished_at = excluded.finished_at",
                _execution_values(record),
            )

    def unfinished(self) -> list[ExecutionRecord]:
        """Return those that wait or run, in the order of their coming."""
        with self.batch() as database:
            rows = database.execute(_UNFINISHED)
            return [_execution(row) for row in rows]

    def finished(self, execution_id: str, scope: str | None) -> ExecutionRecord | None:
        """Return a finished one, if it is kept. scope: None for ids that the service made."""
        with self.batch() as database:
            if scope is None:
                row = database.execute(_FINISHED + "NOT named", (execution_id,)).fetchone()
            else:
                row = database.execute(_FINISHED + "scope = ?", (execution_id, scope)).fetchone()
        return None if row is None else _execution(row)

    def forget(self, scope: str, execution_id: str) -> None:
        """Forget one execution."""
        with self.batch() as database:
            database.execute("DELETE FROM executions WHERE scope = ? AND id = ?", (scope, execution_id))

    def purge(self, scope: str, session: str | None) -> tuple[int, list[str]]:
        """Forget some of what has finished in a session, or in all of a scope if that is None: ``SOME`` at most. Return
        how many, and their files.
        """
        with self.batch() as database:
            gone = database.execute(
                "SELECT number, file FROM executions WHERE finished_at IS NOT NULL AND scope = ? AND ? IN (session, '') LIMIT ?",
                (scope, session or "", SOME),
            ).fetchall()
            return self._remove(database, gone)

    def expire(self, before: float, max_bytes: int, max_number: int) -> tuple[int, list[str]]:
        """Forget some of what finished ``before``, and of the oldest that is over a limit; otherwise as ``purge``."""
        with self.batch() as database:
            gone = database.execute(
                "SELECT number, file FROM executions WHERE finished_at < ? LIMIT ?", (before, SOME)
            ).fetchall()
            gone += database.execute(
                "SELECT number, file FROM (SELECT number, file, sum(size) OVER later AS total, row_number() OVER later AS place"
                " FROM executions WHERE finished_at >= ? WINDOW later AS (ORDER BY finished_at DESC, number DESC))"
                " WHERE total > ? OR place > ? LIMIT ?",
                (before, max_bytes, max_number, SOME - len(gone)),
            ).fetchall()
            return self._remove(database, gone)

    def _remove(self, database: sqlite3.Connection, gone: list[tuple[int, str | None]]) -> tuple[int, list[str]]:
        database.executemany("DELETE FROM executions WHERE number = ?", [(number,) for number, _ in gone])
        return len(gone), [file for _, file in gone if file is not None]

    def files(self) -> set[str]:
        """Return the files that hold answers."""
        with self.batch() as database:
            return {file for (file,) in database.execute("SELECT file FROM executions WHERE file IS NOT NULL")}


def _execution(row: tuple[Any, ...]) -> ExecutionRecord:
    scope, session, ident, named, digest, request, whole, *rest = row
    return ExecutionRecord(scope, session, ident, bool(named), digest, request, bool(whole), *rest)
