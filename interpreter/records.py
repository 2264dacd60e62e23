"""What outlives the service: its sandboxes, the lives of kernels and the executions, in one SQLite file of the data root.

Promises: what a method has written is there after ``kill -9``, and all of one ``batch`` or nothing of it; a power cut may
lose the last of it and never the whole. A write takes some 50 µs and waits for no disk: what would (``checkpoint``) belongs
into a thread. A file that is damaged is set aside and said so, since a service that starts is worth more.
Leaves to executions/recorder.py and sandboxes/: what is written when. Used by one thread, but for ``checkpoint``.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from interpreter.errors import StorageFailed

log = logging.getLogger(__name__)

FILE = ".state.db"
VERSION = 1
BUSY_S = 2.0
"""For which a write waits where a checkpoint is just being made; in truth microseconds."""
LOG_PAGES = 4096
"""Of 4 KiB, in the log, after which it begins anew."""

_SCHEMA = """
CREATE TABLE boot (id TEXT NOT NULL);
CREATE TABLE sandboxes (id TEXT PRIMARY KEY, scope TEXT NOT NULL, session TEXT, started_at REAL NOT NULL);
CREATE TABLE kernels (
  scope TEXT NOT NULL, session TEXT NOT NULL, language TEXT NOT NULL, context TEXT NOT NULL, generation INT NOT NULL,
  home TEXT, alive INT NOT NULL, restarted INT NOT NULL, loss TEXT, executions INT NOT NULL, started_at REAL NOT NULL,
  used_at REAL NOT NULL, PRIMARY KEY (scope, session, language, context)
);
CREATE TABLE executions (
  number INTEGER PRIMARY KEY, scope TEXT NOT NULL, session TEXT, id TEXT NOT NULL, named INT NOT NULL, digest BLOB NOT NULL,
  whole INT NOT NULL, sandbox TEXT, link TEXT, sent_at REAL, file TEXT, size INT, finished_at REAL, request BLOB NOT NULL,
  answer BLOB, UNIQUE (scope, id)
);
CREATE INDEX executions_by_id ON executions (id);
CREATE INDEX executions_by_end ON executions (finished_at, number, size, file);
"""


class RecordsError(Exception):
    """The file cannot be used at all. The text is for the operator."""


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


_EXECUTION = (
    "scope, session, id, named, digest, request, whole, sandbox, link, sent_at, answer, file, size, finished_at, number"
)
"""The columns, in the order of ExecutionRecord."""

_FINISHED = f"SELECT {_EXECUTION} FROM executions WHERE finished_at IS NOT NULL AND id = ? AND "  # noqa: S608 - names of ours


_sandbox_values, _kernel_values, _execution_values = (
    attrgetter(*(field.name for field in fields(kind))) for kind in (SandboxRecord, KernelRecord, ExecutionRecord)
)
"""As dataclasses.astuple, without its copies of everything."""


class Records:
    """The file. ``open`` it before anything else. Every write raises StorageFailed where the disk does not take it."""

    def __init__(self, root: Path) -> None:
        self._file = root / FILE
        self._database: sqlite3.Connection | None = None
        self._depth = 0

    def open(self, *, boot: str, now: float) -> list[str]:
        """Open or make it; return warnings. boot: id of this boot of the host; monotonic times of another one mean nothing
        here, so that what has finished counts as finished ``now``. Raises RecordsError.
        """
        warnings = []
        try:
            try:
                self._open()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise  # the disk, not the file
                aside = self._set_aside()
                log.error("the state file is damaged", extra={"error": str(error), "aside": aside})
                warnings.append(
                    f"{self._file} was damaged and is now {aside}: what an earlier service ran is forgotten"
                )
                self._open()
            with self.batch() as database:
                if database.execute("SELECT id FROM boot").fetchone() != (boot,):
                    database.execute("DELETE FROM boot")
                    database.execute("INSERT INTO boot VALUES (?)", (boot,))
                    database.execute("UPDATE executions SET finished_at = ? WHERE finished_at IS NOT NULL", (now,))
        except (sqlite3.Error, OSError, StorageFailed) as error:
            self.close()
            raise RecordsError(f"{self._file} cannot be used: {error}.") from error
        return warnings

    def close(self) -> None:
        """Close it, everything in one file. May be called twice."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._database.close()
            self._database = None

    @contextmanager
    def batch(self) -> Iterator[sqlite3.Connection]:
        """Make all writes inside one: all of it or nothing. Raises StorageFailed."""
        if self._database is None:
            raise StorageFailed("The service is not running.")
        if self._depth:
            yield self._database
            return
        self._depth = 1
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise StorageFailed(
                f"The data root of the service cannot be written ({error}); free or repair its disk."
            ) from error
        finally:
            self._depth = 0
            if self._database.in_transaction:
                with suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")

    def checkpoint(self) -> None:
        """Move what was written into the main file, so that the log beside it stays small. Blocks: call it in a thread."""
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(self._file, isolation_level=None, timeout=BUSY_S)) as database,
        ):
            _, pages, _ = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if pages > LOG_PAGES:
                # While writes go on, the log never begins anew by itself: 13 MB/s at 400 executions a second. Most of it is
                # moved by now, so that a write waits for little.
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

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
            return [SandboxRecord(*row) for row in database.execute("SELECT * FROM sandboxes ORDER BY rowid")]

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
            rows = database.execute("SELECT * FROM kernels").fetchall()
        return [KernelRecord(r[0], r[1] or None, *r[2:6], *map(bool, r[6:8]), *r[8:]) for r in rows]

    # --- executions -------------------------------------------------------------------------------------------------

    def execution(self, record: ExecutionRecord) -> None:
        """Note an execution as it is now, in the place that it has."""
        with self.batch() as database:
            database.execute(
                f"INSERT INTO executions ({_EXECUTION}) VALUES ({', '.join('?' * 15)})"  # noqa: S608 - names and marks
                " ON CONFLICT (scope, id) DO UPDATE SET request = excluded.request, whole = excluded.whole,"
                " sandbox = excluded.sandbox, link = excluded.link, sent_at = excluded.sent_at, answer = excluded.answer,"
                " file = excluded.file, size = excluded.size, finished_at = excluded.finished_at",
                _execution_values(record),
            )

    def unfinished(self) -> list[ExecutionRecord]:
        """Return those that wait or run, in the order of their coming."""
        with self.batch() as database:
            rows = database.execute(f"SELECT {_EXECUTION} FROM executions WHERE finished_at IS NULL ORDER BY number")  # noqa: S608 - names
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

    def purge(self, scope: str, session: str | None) -> list[str]:
        """Forget what has finished in a session, or in all of a scope if that is None; return the files."""
        with self.batch() as database:
            return [
                file
                for (file,) in database.execute(
                    "DELETE FROM executions WHERE finished_at IS NOT NULL AND scope = ? AND ? IN (session, '') RETURNING file",
                    (scope, session or ""),
                )
                if file is not None
            ]

    def expire(self, before: float, *, max_bytes: int, max_number: int) -> list[str]:
        """Forget what finished ``before``, and the oldest of what is over a limit; return the files of both."""
        with self.batch() as database:
            gone = database.execute("SELECT number, file FROM executions WHERE finished_at < ?", (before,)).fetchall()
            gone += database.execute(
                "SELECT number, file FROM (SELECT number, file, sum(size) OVER later AS total, row_number() OVER later AS place"
                " FROM executions WHERE finished_at >= ? WINDOW later AS (ORDER BY finished_at DESC, number DESC))"
                " WHERE total > ? OR place > ?",
                (before, max_bytes, max_number),
            ).fetchall()
            database.executemany("DELETE FROM executions WHERE number = ?", [(number,) for number, _ in gone])
        return [file for _, file in gone if file is not None]

    def files(self) -> set[str]:
        """Return the files that hold answers."""
        with self.batch() as database:
            return {file for (file,) in database.execute("SELECT file FROM executions WHERE file IS NOT NULL")}

    def _open(self) -> None:
        self._database = database = sqlite3.connect(
            self._file, isolation_level=None, timeout=BUSY_S, check_same_thread=False
        )
        os.chmod(self._file, 0o600)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")  # it would wait for the disk, in the loop
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise sqlite3.OperationalError("a newer service made it; start that one, or remove the file")
        if not version:
            database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        if database.execute("PRAGMA quick_check").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("damaged")

    def _set_aside(self) -> str:
        if self._database is not None:
            self._database.close()
            self._database = None
        aside = self._file.with_suffix(".damaged")
        os.replace(self._file, aside)
        for beside in ("-wal", "-shm"):
            Path(f"{self._file}{beside}").unlink(missing_ok=True)
        return aside.name


def _execution(row: tuple[Any, ...]) -> ExecutionRecord:
    scope, session, ident, named, digest, request, whole, *rest = row
    return ExecutionRecord(scope, session, ident, bool(named), digest, request, bool(whole), *rest)
