"""A quota: the data of each scope on a file system of its own.

``.volumes/<scope>`` is the image, a sparse file, and ``<scope>`` where it is mounted: made when the scope comes first, mounted
when something of it is wanted first. Mounts outlive a service that is killed; the next one finds them.

Promises: with a quota, no directory of a tenant lies outside of such a file system; what is full is told as QuotaExceeded, and
as the scope's own trouble; no other scope waits for what is done here for one; the image is the service's alone.
Leaves to images.py: how; to its owner: that no sandbox uses what is removed. Blocks (all but ``has`` and ``confined``).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from interpreter.errors import QuotaExceeded, StorageFailed
from interpreter.keys import NAME
from interpreter.scopes import images
from interpreter.scopes.images import MIB, ImageError, Usage
from interpreter.scopes.moving import copy_tree
from interpreter.scopes.opening import made, opened
from interpreter.scopes.removal import empty

log = logging.getLogger(__name__)

FOLDER, TRASH = ".volumes", ".trash"
_SETTLE_S = 5.0
"""For removing what a killed service was removing, before the first use; the rest goes with a later sweep."""
_CLOSE_S = 10.0
"""For unmounting at the end, which writes what has not been written yet. What stays mounted is found by the next service."""


class VolumesError(Exception):
    """The quota cannot be kept. Text: for the operator."""


@dataclass(slots=True)
class Volumes:
    """The file systems of the data root at ``root``. quota_mib: of each scope that comes from now on; None: without."""

    root: Path
    quota_mib: int | None
    shared: bool = False
    """Whether what is mounted here is seen by sandboxes only where mounts are shared with the host."""
    notices: list[str] = field(default_factory=list)
    """What ``open`` and ``move_over`` went on without, for the operator."""
    active: bool = field(default=False, init=False)
    """Whether scopes have file systems of their own, or get them."""
    _lock: int | None = None
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _turns: dict[str, threading.Lock] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)
    _used_at: dict[str, float] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)
    _kept: set[str] = field(default_factory=set)
    """Scopes that could not be made larger while they were in use, in this service."""
    _refused: dict[str, str] = field(default_factory=dict)

    def open(self, lock: int | None) -> None:
        """Prove that file systems can be had here, and make those that are larger than the quota smaller.

        lock: of the data root; it is held while a tool works. Raises VolumesError, OSError.
        """
        self._lock = lock
        folder = self.root / FOLDER
        self.active = self.quota_mib is not None or (folder.is_dir() and bool(os.listdir(folder)))
        if not self.active:
            return
        folder.mkdir(mode=0o700, exist_ok=True)
        for left in [*folder.glob(f"*{images.NEW}"), *folder.glob(f"*{images.PLACE}")]:
            images.discard(left.with_suffix(images.NEW), left.with_suffix(images.PLACE))
        if (why := images.trouble(folder, shared=self.shared)) is not None:
            what = "SANDBOX_SCOPE_QUOTA_MB cannot be kept" if self.quota_mib else "Scopes have a quota from before"
            raise VolumesError(f"{what}, since each scope gets a file system of its own: {why}.")
        try:
            self._reduce()
        except ImageError as error:
            raise VolumesError(
                f"SANDBOX_SCOPE_QUOTA_MB={self.quota_mib} is less than a scope has, which could not be made smaller ({error}):"
                " raise it, or remove data first."
            ) from error

    def close(self, used: Collection[str]) -> None:
        """Unmount all but those of the scopes that are ``used``, where nothing is open and while there is time."""
        until = time.monotonic() + _CLOSE_S
        for scope in self.mounted():
            if scope not in used and time.monotonic() < until:
                with self._turn(scope), contextlib.suppress(OSError):
                    images.unmount(self.root / scope)

    def has(self, scope: str) -> bool:
        """Whether a scope has a file system of its own."""
        return self.active and self._image(scope).exists()

    def confined(self, scope: str) -> bool:
        """Whether the data of a scope lies where it has to."""
        return self.quota_mib is None or self.has(scope)

    def mounted(self) -> list[str]:
        """Return the scopes whose file system is mounted."""
        return [scope for scope in self._scopes() if images.is_mounted(self.root / scope)]

    def mount(self, scope: str, *, make: bool = False) -> bool:
        """Have the file system of a scope mounted; False where it has none. make: make it where it has to have one.

        Raises QuotaExceeded, StorageFailed, OSError.
        """
        if not self.active:
            return False
        with self._turn(scope):
            if (sentence := self._refused.get(scope)) is not None:
                raise QuotaExceeded(sentence)
            image = self._image(scope)
            try:
                if not image.exists():
                    if not make or self.quota_mib is None:
                        return False
                    self._make(image)
                self._mount(scope, image)
            except ImageError as error:
                log.error("a scope's file system cannot be had", extra={"scope": scope}, exc_info=error)
                raise StorageFailed(
                    "The file system of this scope cannot be had; the log of the service has the reason."
                ) from error
            self._used_at[scope] = time.monotonic()
        return True

    def remove(self, scope: str) -> bool:
        """Move the file system of a scope out of reach, whatever is open there; whether it had one. Raises OSError."""
        if not self.active:
            return False
        with self._turn(scope):
            self._refused.pop(scope, None)
            self._settled.discard(scope)
            image, place = self._image(scope), self.root / scope
            if not image.exists():
                return False
            while images.is_mounted(place):
                images.unmount(place, at_once=True)
            os.rename(image, self.root / TRASH / secrets.token_hex(8))
            self._clear(place)
            with contextlib.suppress(FileNotFoundError):
                place.rmdir()
        return True

    def unmount_idle(self, used: Collection[str], *, idle_s: float) -> None:
        """Unmount those of scopes that are not ``used`` and of which nothing was wanted for so long."""
        for scope in self.mounted():
            with self._turn(scope):
                idle = time.monotonic() - self._used_at.get(scope, 0.0) >= idle_s
                if idle and scope not in used:
                    with contextlib.suppress(OSError):
                        images.unmount(self.root / scope)

    def usage(self, scope: str) -> Usage | None:
        """Return how much of its quota a scope uses; None: it has none."""
        if not self.active:
            return None
        try:
            return images.usage(self._image(scope), self.root / scope)
        except OSError:
            return None

    def move_over(self, scopes: Collection[str]) -> None:
        """Move what scopes have from before there was a quota to file systems of their own. No sandbox may use it.

        A scope whose data cannot be moved, since it is too large, is refused until it fits or is purged.
        """
        for scope in scopes:
            if not self.confined(scope):
                self._move(scope)

    @contextlib.contextmanager
    def full_is_told(self, scope: str) -> Iterator[None]:
        """Raise QuotaExceeded where a scope's own file system is full; see ``full``."""
        try:
            yield
        except OSError as error:
            if (full := self.full(scope, error)) is None:
                raise
            raise full from error

    def full(self, scope: str, error: OSError) -> QuotaExceeded | None:
        """Return what a caller is told if ``error`` says that the scope's own file system is full; None: it says something else.

        One that has failed, as where the host's disk is full, is mounted anew before its next use, if no sandbox is using it.
        """
        if error.errno in (errno.EROFS, errno.EIO):
            self._failed.add(scope)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self.has(scope) or not images.has_room(self.root):
            return None
        size = self._image(scope).stat().st_size // MIB
        return QuotaExceeded(
            f"The quota of this scope, {size} MiB, is full, or has no room for another file: remove some."
        )

    # --- one scope --------------------------------------------------------------------------------------------------

    def _make(self, image: Path) -> None:
        new = self.root / FOLDER / f"{secrets.token_hex(8)}{images.NEW}"
        try:
            images.make(new, (self.quota_mib or 0) * MIB, lock=self._lock)
            os.rename(new, image)
        finally:
            new.unlink(missing_ok=True)

    def _mount(self, scope: str, image: Path) -> None:
        place = self.root / scope
        if scope in self._failed and images.is_mounted(place):
            images.unmount(place)  # what is mounted first is checked first
            images.is_free(image, lock=self._lock)
        self._failed.discard(scope)
        wanted = (self.quota_mib or 0) * MIB
        if wanted > image.stat().st_size and scope not in self._kept and images.is_mounted(place):
            images.unmount(place)  # nothing has used it yet in this service; what sandboxes have of it stays
        if not images.is_mounted(place):
            self._clear(place)
            with opened(self.root) as root, made(root, scope):
                pass
            if wanted > image.stat().st_size and images.is_free(image, lock=self._lock):
                os.truncate(image, wanted)
            images.mount(image, place, lock=self._lock)
        if wanted > image.stat().st_size and scope not in self._kept:
            try:
                images.enlarge(image, place, wanted, lock=self._lock)
            except ImageError as error:
                log.warning("a scope in use keeps its quota for now", extra={"scope": scope, "error": str(error)})
                self._kept.add(scope)
        if scope not in self._settled:
            self._settle(place)
            self._settled.add(scope)

    def _clear(self, place: Path) -> None:
        """Move away what lies where a scope is to be mounted: data from before the quota, which is in the image by now."""
        with contextlib.suppress(FileNotFoundError):
            if os.listdir(place):
                os.rename(place, self.root / TRASH / secrets.token_hex(8))

    def _settle(self, place: Path) -> None:
        """Remove what a killed service left half done, and have the places for what comes and goes."""
        with opened(place) as home:
            os.fchmod(home, 0o700)
            with contextlib.suppress(OSError):
                os.rmdir("lost+found", dir_fd=home)
            with made(home, TRASH) as trash:
                for name in (".staging", ".spares"):
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(name, secrets.token_hex(8), src_dir_fd=home, dst_dir_fd=trash)
                empty(trash, within_s=_SETTLE_S)
            with made(home, ".staging"):
                pass

    def _move(self, scope: str) -> None:
        moving = self.root / FOLDER / secrets.token_hex(8)
        new, place = moving.with_suffix(images.NEW), moving.with_suffix(images.PLACE)
        began = time.monotonic()
        with self._turn(scope):
            try:
                images.make(new, (self.quota_mib or 0) * MIB, lock=self._lock)
                place.mkdir(mode=0o700)
                images.mount(new, place, lock=self._lock)
                with opened(self.root / scope) as old, opened(place) as target:
                    copy_tree(old, target)
                images.unmount(place)
                os.rename(new, self._image(scope))
            except (ImageError, OSError) as error:
                self._refuse(scope, error)
            else:
                log.info("scope moved", extra={"scope": scope, "elapsed_ms": round(1000 * (time.monotonic() - began))})
            finally:
                images.discard(new, place)

    def _refuse(self, scope: str, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            cause = f"is more than SANDBOX_SCOPE_QUOTA_MB={self.quota_mib} holds: raise it, or purge the scope"
        else:
            log.error("a scope could not be moved", extra={"scope": scope}, exc_info=error)
            cause = "could not be moved under it: the log of the service has the reason; or purge the scope"
        self._refused[scope] = f"The data of this scope is from before there was a quota, and {cause}."
        self.notices.append(f"scope {scope} is not served: its data is from before there was a quota, and {cause}")

    # --- all of them ------------------------------------------------------------------------------------------------

    def _reduce(self) -> None:
        """Make those smaller that are larger than the quota, where no sandbox uses them."""
        if self.quota_mib is None:
            return
        wanted = self.quota_mib * MIB
        larger = [scope for scope in self._scopes() if self._image(scope).stat().st_size > wanted]
        uses = {scope: images.usage(self._image(scope), self.root / scope).used for scope in larger}
        if above := [f"{scope} ({used / MIB:.0f} MiB)" for scope, used in uses.items() if used > wanted]:
            named = ", ".join(above[:5]) + (" …" if len(above) > 5 else "")
            raise VolumesError(
                f"SANDBOX_SCOPE_QUOTA_MB={self.quota_mib} is less than scopes use: {named}. Raise it, or remove data of"
                " theirs first."
            )
        kept = 0
        for scope in larger:
            image = self._image(scope)
            if images.is_mounted(self.root / scope):
                images.unmount(self.root / scope)
            if images.is_free(image, lock=self._lock):
                images.reduce(image, wanted, lock=self._lock)
            else:
                kept += 1
        if kept:
            self.notices.append(
                f"SANDBOX_SCOPE_QUOTA_MB={self.quota_mib}: {kept} scopes in use keep the larger one that they have until a"
                " start that finds them unused"
            )

    def _scopes(self) -> list[str]:
        if not self.active:
            return []
        return sorted(name for name in os.listdir(self.root / FOLDER) if NAME.fullmatch(name))

    def _image(self, scope: str) -> Path:
        return self.root / FOLDER / scope

    @contextlib.contextmanager
    def _turn(self, scope: str) -> Iterator[None]:
        with self._mutex:
            turn = self._turns.setdefault(scope, threading.Lock())
        with turn:
            yield
