"""What is created, changed and deleted in the workspace while an execution runs, found by looking at it before and after.

What is known of the workspace is kept between executions. Before one, only directories are looked at, and those that have
changed are read; after it files too. A file has changed if its inode or size or the time of its last change (ctime, which its
owner cannot set) is another, so a modification time that was set back hides nothing.

Promises: nothing raises; at most ``MOST_ENTRIES`` names are looked at, those of the upper directories first, and what was
not looked at is said; links are never followed into a directory. Of executions side by side each is told what changed while it
ran, whoever did it: the kernel of the host tells nobody who wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
import time
from collections import deque
from dataclasses import dataclass, field

from .protocol import MAX_CHANGES, Change, FilesIncomplete

MOST_ENTRIES, LEAST_ENTRIES = 5_000, 1_000
MOST_S = 0.04
"""Of one look. A name takes some 2 µs, under gVisor some 30: fewer are looked at there."""
MOST_FOUND = 20_000
"""Changes that are remembered of one execution, also those that a later one takes back."""
MOST_PATHS = 128 * 1024
"""Bytes of all paths that one answer names."""
_OF_PROGRAMS = frozenset((".cache", ".config", ".local"))
_COARSE = 5
"""CLOCK_REALTIME_COARSE, which Python has no name for."""
_TICK_S = 0.001
_LONGEST_TICK = 10
"""Times that are waited for the clock of files, which moves on every 1 to 10 ms."""

_State = tuple[int, int, int]
"""Inode, time of the last change in nanoseconds, size."""


@dataclass(slots=True)
class _Folder:
    """One directory: what it was when its names were read, and they. settled: a change since then has another time."""

    state: _State
    files: dict[str, _State]
    folders: list[str]
    settled: bool

    def __len__(self) -> int:
        """Return how many names it has."""
        return len(self.files) + len(self.folders)


@dataclass(slots=True, eq=False)
class Watch:
    """One execution's view. found: by path, whether there was such a file before it."""

    begun: int
    incomplete: FilesIncomplete | None
    found: dict[str, bool] = field(default_factory=dict)


class Workspace:
    """The workspace at ``path``. home: where programs keep what is theirs, which is not told of if it is the same directory."""

    def __init__(self, path: str, home: str | None = None) -> None:
        self._path = path
        self._passed_over = _OF_PROGRAMS if home is not None and os.path.samefile(path, home) else frozenset()
        self._folders: dict[str, _Folder] = {}
        self._watches: set[Watch] = set()
        self._newest = 0
        """When the file was changed that was last."""
        self._most = min(MOST_ENTRIES, max(LEAST_ENTRIES, int(MOST_S / _stat_s(path))))

    async def begin(self) -> Watch:
        """Look at the workspace before an execution. ``end`` must follow."""
        incomplete = self._look(inside=False)
        for _ in range(_LONGEST_TICK):
            if now() > self._newest:
                break
            await asyncio.sleep(_TICK_S)  # else a change that comes now could have the time of the last one
        watch = Watch(now(), incomplete)
        self._watches.add(watch)
        return watch

    def end(self, watch: Watch) -> tuple[list[Change], FilesIncomplete | None]:
        """Return what has changed since ``begin``, sorted by path, and why that may not be all of it."""
        incomplete = self._look(inside=True)
        self._watches.discard(watch)
        changes: list[Change] = []
        room = MOST_PATHS
        for path, existed in sorted(watch.found.items()):
            change = self._change(path, existed=existed)
            if change is None:
                continue
            room -= len(change.path)
            if room < 0 or len(changes) == MAX_CHANGES:
                return changes, "too_many_changes"
            changes.append(change)
        return changes, watch.incomplete or incomplete

    def _change(self, path: str, *, existed: bool) -> Change | None:
        try:
            status = os.stat(f"{self._path}/{path}", follow_symlinks=False)
        except OSError:
            return Change(os.fsencode(path), "deleted") if existed else None
        if stat.S_ISDIR(status.st_mode):
            return Change(os.fsencode(path), "deleted") if existed else None
        return Change(os.fsencode(path), "changed" if existed else "created", _state(status)[2])

    # --- looking ------------------------------------------------------------------------------------------------------

    def _look(self, *, inside: bool) -> FilesIncomplete | None:
        """Learn what is new, note it for all who watch, and return why it may not be all. inside: also of files in directories
        whose names are the same."""
        left = self._most
        incomplete: FilesIncomplete | None = None
        known, self._folders = self._folders, {}
        waiting, new = deque([""]), set[str]()
        while waiting:
            path = waiting.popleft()
            try:
                folder = self._folder(path, known, new, left=left, inside=inside)
            except FileNotFoundError:
                continue  # gone since the directory above it was read, which the next look finds
            except OSError:
                incomplete = incomplete or "unreadable"
                continue
            if folder is None:
                incomplete = "too_many_entries"
                continue
            left -= len(folder)
            self._folders[path] = folder
            waiting.extend(_below(path, name) for name in folder.folders)
        return incomplete

    def _folder(
        self, path: str, known: dict[str, _Folder], new: set[str], *, left: int, inside: bool
    ) -> _Folder | None:
        """Return what a directory is now; None if it has more than ``left`` names. Raises OSError.

        known: all that was. new: directories that were not there, to which those in this one are added.
        """
        full = f"{self._path}/{path}"
        status = os.stat(full, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            raise FileNotFoundError
        state, before = _state(status), known.get(path)
        if before is not None and before.settled and before.state == state:
            if len(before) > left:
                return None
            if inside:
                self._look_inside(path, full, before)
            return before
        folder = _read(full, state, left, frozenset() if path else self._passed_over)
        if folder is None:
            return None
        if before is None and path in new:
            before = _Folder(state, {}, [], settled=True)
        if before is not None:
            new.update(_below(path, name) for name in set(folder.folders).difference(before.folders))
            self._compare(path, before, folder, known)
        else:
            self._newest = max([self._newest, *(file[1] for file in folder.files.values())])
        return folder

    def _look_inside(self, path: str, full: str, folder: _Folder) -> None:
        for name, before in folder.files.items():
            try:
                after = _state(os.stat(f"{full}/{name}", follow_symlinks=False))
            except OSError:
                continue  # gone since its directory was looked at
            if after != before:
                self._differs(_below(path, name), before, after)
                folder.files[name] = after

    def _compare(self, path: str, before: _Folder, after: _Folder, known: dict[str, _Folder]) -> None:
        """Note what is another in a directory whose names were read anew."""
        for name, state in after.files.items():
            if (was := before.files.get(name)) != state:
                self._differs(_below(path, name), was, state)
        for name in before.files.keys() - after.files.keys():
            self._note(_below(path, name), existed=True)
        gone = [_below(path, name) for name in set(before.folders).difference(after.folders)]
        while gone:
            folder = known.get(above := gone.pop())
            if folder is not None:
                gone.extend(_below(above, name) for name in folder.folders)
                for name in folder.files:
                    self._note(_below(above, name), existed=True)

    def _differs(self, path: str, before: _State | None, after: _State) -> None:
        self._newest = max(self._newest, after[1])
        replaced = before is None or before[0] != after[0]
        self._note(path, existed=before is not None, at=None if replaced else after[1])

    def _note(self, path: str, *, existed: bool, at: int | None = None) -> None:
        """Tell all who watch. at: when, where that can have been before an execution began."""
        for watch in self._watches:
            if at is not None and at < watch.begun:
                continue
            if len(watch.found) >= MOST_FOUND:
                watch.incomplete = "too_many_changes"
            else:
                watch.found.setdefault(path, existed)


def _read(full: str, state: _State, left: int, without: frozenset[str]) -> _Folder | None:
    """Return the directory ``full``; None if it has more than ``left`` names, of which nothing else is looked at then.

    without: names of directories that are left out.
    """
    folder = _Folder(state, {}, [], settled=state[1] < now())
    with os.scandir(full) as entries:
        found = list(itertools.islice(entries, left + 1))
    if len(found) > left:
        return None
    for entry in found:
        try:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in without:
                    folder.folders.append(entry.name)
            else:
                folder.files[entry.name] = _state(entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            continue
    return folder


def _stat_s(path: str) -> float:
    """Return how many seconds a name takes to look at: the least of some, since whatever else runs here only adds to it."""
    least = 1.0
    for _ in range(10):
        begun = time.perf_counter()
        with contextlib.suppress(OSError):
            os.stat(path, follow_symlinks=False)
        least = min(least, time.perf_counter() - begun)
    return least


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _state(status: os.stat_result) -> _State:
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    return status.st_ino, status.st_ctime_ns, size


def now() -> int:
    """Return what the clock says that files get their times from."""
    return time.clock_gettime_ns(_COARSE)
