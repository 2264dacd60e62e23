"""The SQLite file of the data root: opened, written in batches, set aside where it is damaged.

Promises: what a batch has written is there after ``kill -9``, all of it or nothing; a power cut may lose the last of it and never
the whole. A write takes some 50 µs and waits for no disk: what would (``checkpoint``) belongs into a thread. A file that is
damaged is set aside and said so, since a service that starts is worth more. Where the disk takes nothing, what is there is read
and every write is refused, until ``attach`` finds room.
Leaves to records.py: what is in it. Used by one thread, but for ``checkpoint``.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

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


_DISK = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
"""What SQLite fails with where it is the disk and not the file; the rest of such a number says which call."""


SANDBOX_COLUMNS = "id, scope, session, started_at"
KERNEL_COLUMNS = (
    "scope, session, language, context, generation, home, alive, restarted, loss, executions, started_at, used_at"
)
EXECUTION_COLUMNS = (
    "scope, session, id, named, digest, request, whole, sandbox, link, sent_at, answer, file, size, finished_at, number"
)
"""The columns, in the order of ExecutionRecord."""


class RecordsError(Exception):
    """The file cannot be used at all. The text is for the operator."""


class _Damaged(Exception):
    """The file is none of ours any more."""


class StateFile:
    """The file. ``open`` it before anything else. Every write raises StorageFailed where the disk does not take it."""

    def __init__(self, root: Path) -> None:
        self._file = root / FILE
        self._database: sqlite3.Connection | None = None
        self._depth = 0
        self._boot, self._now = "", 0.0
        self.refused: str | None = None
        """Why the disk took no record when it was last tried to; None while it takes them."""
        self.failures = 0
        """Writes that it did not take."""

    def open(self, *, boot: str, now: float) -> list[str]:
        """Open or make it; return warnings. boot: id of this boot of the host; monotonic times of another one mean nothing
        here, so that what has finished counts as finished ``now``. Raises RecordsError.
        """
        self._boot, self._now = boot, now
        warnings = []
        try:
            try:
                self._begin(look=True)
            except _Damaged as error:
                aside = self._set_aside()
                log.error("the state file is damaged", extra={"error": str(error), "aside": aside})
                warnings.append(
                    f"{self._file} was damaged and is now {aside}: what an earlier service ran is forgotten"
                )
                self._begin(look=False)
        except (sqlite3.Error, OSError, _Damaged) as error:
            self.close()
            raise RecordsError(f"{self._file} cannot be used: {error}.") from error
        if self.refused is not None:
            log.error("the state file cannot be written", extra={"error": self.refused})
            warnings.append(
                f"{self._file} cannot be written ({self.refused}): what needs to be noted is refused until there is room"
            )
        return warnings

    def attach(self) -> bool:
        """Whether writes are taken now; tried anew where they were not. A few milliseconds of the disk then."""
        if self._database is not None and self.refused is not None:
            self._database.close()
            self._database = None
            try:
                self._begin(look=False)
            except (sqlite3.Error, OSError, _Damaged) as error:
                log.error("the state file cannot be opened again", extra={"error": str(error)})
                self._read_only(error)
        return self.refused is None

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
            self._database.execute("BEGIN IMMEDIATE" if self.refused is None else "BEGIN")
            yield self._database
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self.failures += 1
            raise StorageFailed(
                f"The data root of the service cannot be written ({self.refused or error}); free or repair its disk."
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

    def _begin(self, *, look: bool) -> None:
        """Open the file for reading and writing, or for reading where the disk takes nothing. look: at all of its pages. Raises
        _Damaged.
        """
        for path in self._paths():
            if path.exists() and not stat.S_ISREG(path.lstat().st_mode):
                raise _Damaged("not a file")
        try:
            self._open(look=look)
            self._of_this_boot()
        except sqlite3.Error as error:
            if _kind(error) not in _DISK:
                raise
            self._read_only(error)

    def _open(self, *, look: bool) -> None:
        self._database = database = sqlite3.connect(
            self._file, isolation_level=None, timeout=BUSY_S, check_same_thread=False
        )
        os.chmod(self._file, 0o600)
        self.refused = None
        with _damage():
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA wal_autocheckpoint = 0")  # it would wait for the disk, in the loop
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                raise sqlite3.OperationalError("a newer service made it; start that one, or remove the file")
            if not version:
                database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
            if look and database.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise _Damaged("its pages do not fit together")
            _check_tables(database)

    def _of_this_boot(self) -> None:
        """Make the times of another boot mean something. It writes in any case: only that tells whether the disk takes it."""
        assert self._database is not None  # noqa: S101 - just opened
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        if database.execute("SELECT id FROM boot").fetchone() != (self._boot,):
            database.execute("UPDATE executions SET finished_at = ? WHERE finished_at IS NOT NULL", (self._now,))
        database.execute("DELETE FROM boot")
        database.execute("INSERT INTO boot VALUES (?)", (self._boot,))
        database.execute("COMMIT")

    def _read_only(self, error: Exception) -> None:
        """Go on with what can be read without writing anything; with nothing if there is no file that can."""
        if self._database is not None:
            self._database.close()
        self.refused = str(error)
        self._database = self._readable() or sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        if not self._database.execute("PRAGMA user_version").fetchone()[0]:
            self._database.executescript(_SCHEMA)
        self._database.execute("PRAGMA query_only = ON")

    def _readable(self) -> sqlite3.Connection | None:
        """Return the file opened without need of the disk: exclusively, which keeps the index of its log in memory, or, where not
        even an empty log can be made, as one that nobody changes."""
        for options, pragma in (("mode=rw", "locking_mode = EXCLUSIVE"), ("mode=ro&immutable=1", "query_only = ON")):
            if "immutable" in options and Path(f"{self._file}-wal").exists():
                return None  # which would be passed over
            uri = f"{self._file.absolute().as_uri()}?{options}"
            try:
                database = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_S, check_same_thread=False)
            except sqlite3.Error:
                continue
            try:
                database.execute(f"PRAGMA {pragma}")
                _check_tables(database)
            except sqlite3.Error:
                database.close()
            else:
                return database
        return None

    def _paths(self) -> tuple[Path, Path, Path]:
        return self._file, Path(f"{self._file}-wal"), Path(f"{self._file}-shm")

    def _set_aside(self) -> str:
        """Keep the file to be looked at, in place of one that was kept before; return its name."""
        if self._database is not None:
            self._database.close()
            self._database = None
        aside = self._file.with_suffix(".damaged")
        _remove(aside)
        os.replace(self._file, aside)
        for beside in self._paths()[1:]:
            _remove(beside)
        return aside.name


@contextmanager
def _damage() -> Iterator[None]:
    """Make of an error that is about what is in the file _Damaged."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and _kind(error) != sqlite3.SQLITE_ERROR:
            raise
        if not hasattr(error, "sqlite_errorcode"):
            raise  # our own
        raise _Damaged(str(error)) from error


def _kind(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _check_tables(database: sqlite3.Connection) -> None:
    """Raise sqlite3.OperationalError if a table or column is not there."""
    for columns, table in (
        ("id", "boot"),
        (SANDBOX_COLUMNS, "sandboxes"),
        (KERNEL_COLUMNS, "kernels"),
        (EXECUTION_COLUMNS, "executions"),
    ):
        database.execute(f"SELECT {columns} FROM {table} LIMIT 0")  # noqa: S608 - names of ours


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
