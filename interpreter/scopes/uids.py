"""Which user id of the kernel a scope has, remembered in ``.uids`` of the data root.

Promises: a scope's uid never changes and is never given to another, across restarts. A uid is used only once it is durable.
Leaves to root.py: that one thread at a time is in here. Blocks.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

from interpreter.backends.base import SandboxId
from interpreter.keys import NAME

_HIGHEST_UID = 2**31 - 2


@dataclass(frozen=True, slots=True)
class Ids:
    """Whose tenants' files are. own: everything belongs to the service's own uid. Else ``uid`` for all, or from ``base`` up."""

    own: bool
    uid: int | None = None
    gid: int | None = None
    base: int = 200_000


@dataclass(slots=True)
class Uids:
    """The uids of a data root, in ``file``."""

    file: Path
    ids: Ids
    _given: dict[str, int] = field(default_factory=dict)
    _reserved: dict[SandboxId, int] = field(default_factory=dict)

    def read(self) -> dict[str, int]:
        """Read, and return, what is remembered. Raises ValueError with a sentence where the file is not ours, OSError."""
        self._given = {}
        if not self.file.exists():
            return {}
        text = self.file.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            # A crash cut the last line short: it was never used, since it is used only once it is durable.
            os.truncate(self.file, len(whole.encode()))
        for line in whole.splitlines():
            scope, _, uid = line.partition(" ")
            if NAME.fullmatch(scope) is None or not uid.isdecimal():
                raise ValueError(f"{self.file} has a line that is not ours: {line[:80]!r}.")
            self._given[scope] = int(uid)
        return dict(self._given)

    def has(self, scope: str) -> bool:
        """Whether the scope has come before. Microseconds, on any thread."""
        return scope in self._given

    def of(self, scope: str | None, spare: SandboxId | None = None) -> tuple[int | None, int | None]:
        """Return the ids of a scope; for None, those that the first scope to get ``spare`` will have. Raises OSError."""
        ids = self.ids
        if ids.own:
            return None, None
        if ids.uid is not None:
            return ids.uid, ids.uid if ids.gid is None else ids.gid
        uid = None if scope is None else self._given.get(scope)
        if uid is None:
            uid = max(ids.base, max((*self._given.values(), *self._reserved.values()), default=0) + 1)
            if uid > _HIGHEST_UID:
                raise OSError("no uid is left")
            if scope is not None:
                self._remember(scope, uid)
            elif spare is not None:
                self._reserved[spare] = uid  # forgotten with the service: nothing of a tenant was done under it
        return uid, uid if ids.gid is None else ids.gid

    def give(self, spare: SandboxId, scope: str) -> None:
        """Make the uid of a spare that of ``scope``. Raises OSError."""
        if (uid := self._reserved.pop(spare, None)) is not None:
            self._remember(scope, uid)

    def drop(self, spare: SandboxId) -> None:
        """Forget the uid of a spare that nobody got."""
        self._reserved.pop(spare, None)

    def _remember(self, scope: str, uid: int) -> None:
        _append_durably(self.file, f"{scope} {uid}\n")
        self._given[scope] = uid


def _append_durably(file: Path, line: str) -> None:
    """Append a whole line or nothing: half a line would make one with the next."""
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(handle).st_size
        try:
            if os.write(handle, line.encode()) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)
