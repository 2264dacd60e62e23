"""The data root: one service at a time, a fixed layout, a uid for each scope.

Layout: ``<scope>/workspace`` (long-term, and the workspace without a session), ``<scope>/sessions/<session>``,
``<scope>/.staging``; ``<scope>/.spares/<sandbox id>`` (a session without a name) and ``.spares/<sandbox id>`` (a scope
without one, with such a session), renamed when they get it; ``.run/<sandbox id>`` (links, where no other place is named),
``.trash`` (being removed; a scope with a quota has one of its own), ``.volumes`` (see quota.py), ``.uids``, ``.tenant``,
``.lock``, ``.state.db`` and ``.answers`` (see records.py). Names of scopes never begin with a dot.

Promises: every directory that tenants own lies in one that only the service can write, and is reached without following
a link; a scope's uid never changes and is never given to another, across restarts.
Leaves to its owner: that no sandbox uses what is purged. Blocks (all but ``run_dir`` and ``is_new``): call it in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import InitVar, dataclass, field
from pathlib import Path

from interpreter import shortage
from interpreter.backends.base import SandboxId
from interpreter.errors import SingleTenant, StorageFailed
from interpreter.keys import NAME, Key
from interpreter.records import Records
from interpreter.scopes.opening import DIRECTORY, made, opened
from interpreter.scopes.ownership import take_over
from interpreter.scopes.quota import TRASH, Volumes, VolumesError
from interpreter.scopes.removal import empty, make_usable
from interpreter.scopes.renaming import rename_new
from interpreter.scopes.uids import Ids, Uids

SPARES = ".spares"
_ROOM_BYTES = 1024 * 1024
"""For which there must be room: an execution is noted in some 30 KB, a sandbox started in less."""
_PURGED_MEANWHILE = 3
"""Times that a directory is made anew, since a purge has taken it between two of our steps."""
_GOING_S = 1.0
"""A service that has just been killed has its lock until its memory is freed, tens of milliseconds."""


class DataRootError(Exception):
    """The data root cannot be used. The text is for the operator."""


class DataRootLocked(DataRootError):
    """Another service uses this data root; the text names its pid."""


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of a key, and their owner (None: the service's own)."""

    workspace: Path
    user: Path
    uid: int | None
    gid: int | None


@dataclass(slots=True)
class DataRoot:
    """The data root at ``path``. single_tenant: the first scope claims it.

    links: directory for the link directories of this data root and of others, each below a name of its own; None: ``.run``.
    quota_mib, apart: see ``Volumes``.
    """

    path: Path
    ids: Ids
    single_tenant: bool = False
    links: Path | None = None
    quota_mib: InitVar[int | None] = None
    apart: InitVar[bool] = False
    records: Records = field(init=False)
    volumes: Volumes = field(init=False)
    _uids: Uids = field(init=False)
    _lock: int | None = None
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _sweeping: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self, quota_mib: int | None, apart: bool) -> None:
        """Know where what outlives a service is."""
        self.records = Records(self.path)
        self.volumes = Volumes(self.path, quota_mib, shared=apart)
        self._uids = Uids(self.path / ".uids", self.ids)

    def open(self) -> None:
        """Make the root, lock it, read what is remembered, and remove what an earlier service left in the trash.

        Raises DataRootLocked, DataRootError.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock()
            self.path.chmod(0o700)
            for name in (".run", TRASH, SPARES):
                (self.path / name).mkdir(mode=0o700, exist_ok=True)
            if self.links is not None:
                self.links.mkdir(mode=0o755, parents=True, exist_ok=True)
                self._links.mkdir(mode=0o700, exist_ok=True)
            self._uids.read()
            self.volumes.open(self._lock)
        except OSError as error:
            self.close()
            raise DataRootError(f"The data root {self.path} cannot be used: {error.strerror}.") from error
        except (VolumesError, ValueError) as error:
            self.close()
            raise DataRootError(str(error)) from error
        except DataRootError:
            self.close()
            raise
        self._clear_staging()
        self.sweep()

    def close(self) -> None:
        """Unmount what no sandbox uses, close the records and give the lock back. May be called twice."""
        if self._lock is not None:
            with contextlib.suppress(StorageFailed):  # then who uses what is not known; the next service finds it
                self.volumes.close({record.scope for record in self.records.sandboxes()})
        self.records.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def trouble(self) -> str | None:
        """Return what keeps the disk from taking what is to be noted, as a part of a sentence; None: it takes it."""
        file = self.path / ".room"
        try:
            try:
                handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                try:
                    os.posix_fallocate(handle, 0, _ROOM_BYTES)
                finally:
                    os.close(handle)
            finally:
                file.unlink(missing_ok=True)
        except OSError as error:
            return shortage.told(error.errno) or f"the data root cannot be written: {error.strerror}"
        return None if self.records.refused is None else "the data root could not be written a moment ago"

    def prepare(self, key: Key) -> Place:
        """Make the directories of ``key``, owned by its scope's uid, and return them.

        Raises SingleTenant, QuotaExceeded, StorageFailed, OSError.
        """
        with self._mutex:
            self._claim(key.scope)
            uid, gid = self._uids.of(key.scope)
        # Without the mutex: a takeover may go over millions of files, and the sandboxes of others start meanwhile.
        with self.volumes.full_is_told(key.scope), self._scope(key.scope) as scope:
            with made(scope, ".staging"), made(scope, "workspace") as workspace:
                _give(workspace, uid, gid)
            with made(scope, "sessions") as sessions:
                if key.session is not None:
                    with made(sessions, key.session) as session:
                        _give(session, uid, gid)
        user = self.path / key.scope / "workspace"
        workspace_path = user if key.session is None else self.path / key.scope / "sessions" / key.session
        return Place(workspace_path, user, uid, gid)

    def open_directories(self, key: Key) -> tuple[int, int, int | None, int | None]:
        """Return descriptors of the directory of ``key`` and of its scope's staging directory, and the owner (None: the
        service's own). The caller closes both. Raises FileNotFoundError where it was never made: nothing is made here.
        Raises StorageFailed, QuotaExceeded."""
        self.volumes.mount(key.scope)
        scope = self.path / key.scope
        directory = scope / "workspace" if key.session is None else scope / "sessions" / key.session
        root = os.open(directory, DIRECTORY)
        try:
            with opened(scope) as parent, made(parent, ".staging") as staging:
                owner = os.fstat(root)
                uid, gid = (None, None) if self.ids.own else (owner.st_uid, owner.st_gid)
                return root, os.dup(staging), uid, gid
        except BaseException:
            os.close(root)
            raise

    # --- spares -----------------------------------------------------------------------------------------------------

    def is_new(self, key: Key) -> bool:
        """Whether the session of ``key`` has no directory yet; without a session, whether its scope has never come.

        Microseconds, on any thread.
        """
        if key.session is not None:
            return not os.path.lexists(self.path / key.scope / "sessions" / key.session)
        return not self._uids.has(key.scope) and not os.path.lexists(self.path / key.scope)

    def prepare_spare(self, sandbox: SandboxId, scope: str | None) -> Place:
        """Make the directories of a session that has no name yet, in ``scope`` or in a scope that has none either.

        With a quota only in a scope. Raises SingleTenant, QuotaExceeded, StorageFailed, OSError.
        """
        with self._mutex:
            if scope is not None:
                self._claim(scope)
            uid, gid = self._uids.of(scope, sandbox)
        home = self._home(sandbox, scope)
        with self._spare_home(sandbox, scope) as directory, made(directory, SPARES) as spares:
            with made(directory, ".staging"), made(directory, "sessions"), made(directory, "workspace") as workspace:
                _give(workspace, uid, gid)
            with made(spares, sandbox) as session:
                _give(session, uid, gid)
        return Place(home / SPARES / sandbox, home / "workspace", uid, gid)

    def give_spare(self, sandbox: SandboxId, key: Key, *, unseen: bool) -> None:
        """Make the directories of a spare those of ``key``, a new session. unseen: the spare has no scope yet.

        Raises OSError where they are there already; then nothing was done that anybody sees.
        """
        if key.session is None:
            raise ValueError("a spare becomes a session")
        home = self._home(sandbox, None if unseen else key.scope)
        with self._mutex:
            if unseen and not self.is_new(Key(key.scope, None)):
                raise FileExistsError(errno.EEXIST, "the scope has come meanwhile")
            rename_new(home / SPARES / sandbox, home / "sessions" / key.session)
            if unseen:
                self._uids.give(sandbox, key.scope)
                rename_new(home, self.path / key.scope)

    def drop_spare(self, sandbox: SandboxId, scope: str | None) -> None:
        """Remove what nobody got of the directories of a spare. Nothing happens if there is none."""
        home = self._home(sandbox, scope)
        with self._mutex:
            self._uids.drop(sandbox)
            there = self._to_trash(home / SPARES if scope is not None else home.parent, sandbox, of=scope)
        if there and not self._sweeping.locked():  # else it goes with the next sweep
            self.sweep()

    def drop_spares(self) -> None:
        """Remove the spares' directories of an earlier service, of which no sandbox may be left.

        Those of a scope with a quota go when it is mounted first.
        """
        scopes = [scope for scope in self.scopes() if not self.volumes.has(scope)]
        for parent in (self.path / SPARES, *(self.path / scope / SPARES for scope in scopes)):
            with contextlib.suppress(FileNotFoundError):
                for name in os.listdir(parent):
                    self._to_trash(parent, name)
        self.sweep()

    def _home(self, sandbox: SandboxId, scope: str | None) -> Path:
        return self.path / SPARES / sandbox if scope is None else self.path / scope

    @contextlib.contextmanager
    def _spare_home(self, sandbox: SandboxId, scope: str | None) -> Iterator[int]:
        if scope is not None:
            with self.volumes.full_is_told(scope), self._scope(scope) as home:
                yield home
            return
        with opened(self.path / SPARES) as parent, made(parent, sandbox) as home:
            yield home

    @contextlib.contextmanager
    def _scope(self, scope: str) -> Iterator[int]:
        """Yield the directory of a scope, made at need: on its own file system where it has a quota."""
        for _ in range(_PURGED_MEANWHILE):
            confined = self.volumes.mount(scope, make=True)
            with opened(self.path) as root, made(root, scope) as home:
                if not confined or os.fstat(home).st_dev != os.fstat(root).st_dev:
                    yield home
                    return
        raise StorageFailed("The scope is being purged all the time.")

    # --- links ------------------------------------------------------------------------------------------------------

    def run_dir(self, sandbox: SandboxId) -> Path:
        """Make and return the link directory of a sandbox: readable inside, written by the service alone."""
        path = self._links / sandbox
        path.mkdir(mode=0o755)
        path.chmod(0o755)
        return path

    def found_run_dir(self, sandbox: SandboxId) -> Path:
        """Return the link directory that an earlier service made for a sandbox."""
        here, before = self._links / sandbox, self.path / ".run" / sandbox  # it may have had no other place yet
        return before if before.is_dir() and not here.is_dir() else here

    def drop_run_dir(self, sandbox: SandboxId) -> None:
        """Remove the link directory of a sandbox, if it is there."""
        for place in {self._links, self.path / ".run"}:
            shutil.rmtree(place / sandbox, ignore_errors=True)

    def drop_run_dirs(self, keep: Collection[SandboxId] = ()) -> None:
        """Remove the link directories of an earlier service, but those of sandboxes to ``keep``; of others none may be left."""
        for place in {self._links, self.path / ".run"}:
            with os.scandir(place) as entries:
                left = [
                    entry.path for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name not in keep
                ]
            for path in left:
                shutil.rmtree(path, ignore_errors=True)

    @property
    def _links(self) -> Path:
        if self.links is None:
            return self.path / ".run"
        return self.links / hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]

    # --- removal ----------------------------------------------------------------------------------------------------

    def purge_session(self, key: Key) -> bool:
        """Move the directory of a session out of reach; whether there was one. ``sweep`` then removes it."""
        self.volumes.mount(key.scope)
        with self._mutex:
            sessions = self.path / key.scope / "sessions"
            return key.session is not None and self._to_trash(sessions, key.session, of=key.scope)

    def purge_scope(self, scope: str) -> bool:
        """Move all data of a scope out of reach; whether there was any. ``sweep`` then removes it."""
        if self.volumes.remove(scope):
            return True
        with self._mutex:
            return self._to_trash(self.path, scope)

    def sweep(self) -> bool:
        """Remove what was moved out of reach; False if something could not be removed now (a later sweep tries again)."""
        gone = True
        with self._sweeping:
            for place in (self.path, *(self.path / scope for scope in self.volumes.mounted())):
                with contextlib.suppress(FileNotFoundError), opened(place / TRASH) as trash:
                    gone = empty(trash) and gone
        return gone

    def move_over(self) -> None:
        """Move what scopes have from before there was a quota under it. No sandbox may use it."""
        self.volumes.move_over(self.scopes())
        self.sweep()

    def scopes(self) -> list[str]:
        """Return the scopes that have data, sorted."""
        with os.scandir(self.path) as entries:
            return sorted(
                e.name for e in entries if NAME.fullmatch(e.name) is not None and e.is_dir(follow_symlinks=False)
            )

    def _clear_staging(self) -> None:
        """Move out of reach what a killed service was storing or deleting."""
        for scope in self.scopes():
            if self.volumes.has(scope):
                continue  # when it is mounted first
            try:
                (self.path / scope / ".staging").rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                self._to_trash(self.path / scope, ".staging")

    def _take_lock(self) -> None:
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _GOING_S
        while not _flocked(self._lock):
            if time.monotonic() > deadline:
                pid = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
                raise DataRootLocked(f"Another service, pid {pid}, uses the data root {self.path}.")
            time.sleep(_GOING_S / 50)
        with contextlib.suppress(OSError):  # a full disk: it only tells a second service who the first one is
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _claim(self, scope: str) -> None:
        if not self.single_tenant:
            return
        file = self.path / ".tenant"
        if not file.exists():
            _write_durably(file, scope)
        if file.read_text() != scope:
            raise SingleTenant(
                "This service keeps one scope only, since it cannot keep several apart here, and another scope has claimed it. "
                "Run it as root or with Docker to serve several."
            )

    def _to_trash(self, parent: Path, name: str, *, of: str | None = None) -> bool:
        """Move an entry out of reach, on its own file system. of: the scope that has it."""
        place = self.path if of is None or not self.volumes.has(of) else self.path / of
        try:
            with opened(parent) as directory:
                make_usable(directory, name)
            os.rename(parent / name, place / TRASH / secrets.token_hex(8))
        except FileNotFoundError:
            return False
        return True


def _flocked(lock: int) -> bool:
    """Whether we have the lock now. It is the kernel's, so it ends with its holder, however that ends."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _give(directory: int, uid: int | None, gid: int | None) -> None:
    """Make a tenant's directory its own, with all that is in it if it belonged to somebody else."""
    if uid is not None and gid is not None:
        take_over(directory, uid, gid)


def _write_durably(file: Path, text: str) -> None:
    part = file.with_suffix(".part")
    with part.open("w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    part.replace(file)
