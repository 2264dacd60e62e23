"""What is done with the files of one session: storing, listing, removing, moving, copying, modes.

Promises: everything goes through the descriptors of its directory and of a staging directory that no sandbox sees, on the
same file system. A file appears whole or not at all: it is written in staging, synced, given to its owner and renamed, and
the directory is synced; so no link, hard link or FIFO at its name is ever written through. What is removed is first moved out
of reach. Owners and modes are set on descriptors.
Leaves to its owner: which directory, and that it is one of ours. Blocks: call it in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import heapq
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from interpreter.errors import BodyTooLarge, InvalidRequest, ServiceError
from interpreter.files import confine
from interpreter.files.copying import Copying
from interpreter.files.errors import FileExists, NoSuchFile, NotARegularFile
from interpreter.files.walking import MAX_NAMES, Budget, Found, walk
from interpreter.scopes.removal import WITHIN_S, empty, make_usable
from interpreter.scopes.renaming import rename_new_at

COPY_BYTES = 1024 * 1024
FILE_MODE, DIRECTORY_MODE = 0o644, 0o755

Parts = Sequence[bytes]
Check = Callable[[os.stat_result | None], None]
_checking = threading.Lock()


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a directory. size: of a plain file, else 0. A link is shown as itself."""

    name: bytes
    mode: int
    size: int
    modified_ns: int

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory, and no link to one."""
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True, slots=True)
class Stored:
    """What an upload has become. new: nothing was of this name."""

    size: int
    sha256: str
    new: bool


@dataclass(slots=True)
class Tree:
    """The directory open as ``root``, with ``staging`` for what is coming and going. Owns both; close it.

    uid, gid: whose all that is made here shall be; None: the service's own.
    """

    root: int
    staging: int
    uid: int | None
    gid: int | None

    def close(self) -> None:
        """Close both."""
        os.close(self.root)
        os.close(self.staging)

    # --- looking ----------------------------------------------------------------------------------------------------

    def stat(self, parts: Parts) -> Entry:
        """Return what ``parts`` name; links are followed as ``confine`` says."""
        with confine.found(self.root, parts) as handle:
            return _entry(parts[-1] if parts else b"", os.fstat(handle))

    @contextlib.contextmanager
    def reading(self, parts: Parts) -> Iterator[tuple[int, os.stat_result]]:
        """Yield a descriptor that reads a plain file, and its state when it was opened."""
        with confine.found(self.root, parts) as handle, confine.reading(handle) as descriptor:
            yield descriptor, os.fstat(descriptor)

    def entries(self, parts: Parts, *, limit: int, after: bytes = b"") -> tuple[list[Entry], bytes | None]:
        """Return up to ``limit`` entries behind the name ``after``, sorted by bytes; and the last one's name if there are more.

        Holds no more than that, however many the directory has. Names that vanish meanwhile are left out.
        """
        with (
            confine.found(self.root, parts, directory=True) as handle,
            confine.scanning(handle) as directory,
            os.scandir(directory) as names,
        ):
            kept = heapq.nsmallest(limit + 1, (name for each in names if (name := os.fsencode(each.name)) > after))
            entries = []
            for name in kept[:limit]:
                with contextlib.suppress(FileNotFoundError):
                    entries.append(_entry(name, os.stat(name, dir_fd=directory, follow_symlinks=False)))
        return entries, kept[limit - 1] if len(kept) > limit else None

    def find(
        self,
        parts: Parts,
        *,
        limit: int,
        after: bytes = b"",
        meant: Callable[[tuple[bytes, ...]], bool],
        names: int = MAX_NAMES,
    ) -> tuple[list[Entry], bytes | None]:
        """Return up to ``limit`` entries in and below a directory whose path from there is ``meant``, behind the path ``after``,
        in the order of paths; and, if there may be more, the path behind which. Names are such paths. names: see ``Budget``."""
        entries: list[Entry] = []
        budget, last = Budget(names), None
        for found in self.walk(parts, after=after.split(b"/") if after else (), budget=budget):
            if meant(found.path):
                if len(entries) == limit:
                    return entries, last
                entries.append(_entry(b"/".join(found.path), found.state))
            last = b"/".join(found.path)
        return entries, last if budget.spent else None

    def walk(self, parts: Parts, *, after: Parts = (), budget: Budget) -> Iterator[Found]:
        """Yield what is in a directory and below it, see ``walking.walk``."""
        with confine.found(self.root, parts, directory=True) as handle, confine.scanning(handle) as directory:
            yield from walk(directory, budget, after=after)

    # --- making -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def upload(self, parts: Parts, *, limit: int) -> Iterator[Upload]:
        """Yield where the bytes of a new file go; without its ``commit`` nothing stays. limit: in bytes."""
        if not parts:
            raise InvalidRequest("The root is no file.")
        name = secrets.token_hex(16).encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=self.staging)
        upload = Upload(self, parts, name, descriptor, limit)
        try:
            yield upload
        finally:
            upload.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.staging)

    def mkdir(self, parts: Parts) -> None:
        """Make a directory, and its parents. Raises FileExists."""
        with self.parent(parts, make=True) as parent:
            if not self._make(parent, parts[-1]):
                raise FileExists("There is something of this name already.")

    def copy(self, source: Parts, target: Parts, *, limit: int, overwrite: bool = False) -> None:
        """Copy a plain file, or a directory with all that is in it, of at most ``limit`` bytes; parents are made.

        It appears whole. Raises FileExists, BodyTooLarge.
        """
        with confine.found(self.root, source) as handle:
            if stat.S_ISDIR(os.fstat(handle).st_mode):
                if tuple(target[: len(source)]) == tuple(source):
                    raise InvalidRequest("A directory cannot be copied to itself or below itself.")
                self._copy_directory(handle, target, limit, overwrite)
            else:
                self._copy_file(handle, target, limit, overwrite)

    def _copy_file(self, handle: int, target: Parts, limit: int, overwrite: bool) -> None:
        with confine.reading(handle) as descriptor, self.upload(target, limit=limit) as upload:
            left = os.fstat(descriptor).st_size
            if left > limit:
                raise _too_large(limit)
            while left and (chunk := os.read(descriptor, min(left, COPY_BYTES))):
                upload.write(chunk)
                left -= len(chunk)
            upload.commit(overwrite=overwrite)

    def _copy_directory(self, handle: int, target: Parts, limit: int, overwrite: bool) -> None:
        staged = secrets.token_hex(16).encode()
        with self.parent(target, make=True) as parent, confine.scanning(handle) as source:
            os.mkdir(staged, 0o700, dir_fd=self.staging)
            try:
                made = os.open(staged, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.staging)
                try:
                    Copying(limit, self._give, self.uid, self.gid).directory(source, made)
                    self._give(made, stat.S_IMODE(os.fstat(source).st_mode) & 0o777)
                finally:
                    os.close(made)
                self._rename(self.staging, staged, parent, target[-1], overwrite=overwrite)
                sync(parent)
            except BaseException:
                self.dispose(staged)
                raise

    # --- changing ---------------------------------------------------------------------------------------------------

    def move(self, source: Parts, target: Parts, *, overwrite: bool = False) -> None:
        """Rename an entry itself, a link as a link. Raises FileExists, also for a directory that is not empty."""
        if tuple(target[: len(source)]) == tuple(source):
            raise InvalidRequest("A file or directory cannot be moved to itself or below itself.")
        with self.parent(source) as old, self.parent(target, make=True) as new:
            self._rename(old, source[-1], new, target[-1], overwrite=overwrite)
            sync(new)
            sync(old)

    def chmod(self, parts: Parts, mode: int) -> None:
        """Set the mode of a plain file or directory, without setuid, setgid or sticky."""
        if mode & ~0o777:
            raise InvalidRequest("The mode has more than permissions.")
        with confine.found(self.root, parts) as handle, confine.translated():
            if not _plain(os.fstat(handle).st_mode):
                raise NotARegularFile("The path names no plain file and no directory.")
            os.chmod(f"/proc/self/fd/{handle}", mode)

    def take_away(self, parts: Parts) -> bytes:
        """Move an entry itself out of sight, a directory with all that is in it; return what ``dispose`` takes."""
        holder = secrets.token_hex(16).encode()
        with self.parent(parts) as parent:
            try:
                os.mkdir(holder, 0o700, dir_fd=self.staging)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._take_away_without_room(parent, parts[-1], holder)
                return holder
            place = os.open(holder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.staging)
            try:
                with confine.translated():
                    if os.geteuid():
                        make_usable(parent, os.fsdecode(parts[-1]))  # moving a directory needs rights on it
                    os.rename(parts[-1], b"x", src_dir_fd=parent, dst_dir_fd=place)
            except BaseException:
                os.rmdir(holder, dir_fd=self.staging)
                raise
            finally:
                os.close(place)
        return holder

    def _take_away_without_room(self, parent: int, name: bytes, holder: bytes) -> None:
        """Do the same where no directory can be made any more: a directory becomes its own holder, all else goes at once."""
        with confine.translated():
            if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                make_usable(parent, os.fsdecode(name))
                os.rename(name, holder, src_dir_fd=parent, dst_dir_fd=self.staging)
            else:
                os.unlink(name, dir_fd=parent)

    def dispose(self, holder: bytes, *, within_s: float = WITHIN_S) -> bool:
        """Remove what was taken away, however deep; False if some is left, as of a writer that goes on, or after that time."""
        try:
            place = os.open(holder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.staging)
        except FileNotFoundError:
            return True  # it went at once
        try:
            gone = empty(place, within_s=within_s)
        finally:
            os.close(place)
        if gone:
            os.rmdir(holder, dir_fd=self.staging)
        return gone

    # --- parts ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def parent(self, parts: Parts, *, make: bool = False, made: list[Parts] | None = None) -> Iterator[int]:
        """Yield a handle on the directory that has, or shall have, the entry ``parts``. make: with its parents, of which those
        that were not there are added to ``made``."""
        if not parts:
            raise InvalidRequest("The root cannot be made, moved or removed here.")
        if make:
            self._make_parents(parts[:-1], [] if made is None else made)
        with confine.found(self.root, parts[:-1], directory=True) as parent:
            yield parent

    def unmake(self, made: Sequence[Parts]) -> None:
        """Remove directories that were made, the last one first, if nothing is in them."""
        for parts in reversed(made):
            with contextlib.suppress(ServiceError, OSError), self.parent(parts) as parent:
                os.rmdir(parts[-1], dir_fd=parent)

    def _make_parents(self, parts: Parts, made: list[Parts]) -> None:
        for count in range(len(parts), 0, -1):
            with contextlib.suppress(NoSuchFile), confine.found(self.root, parts[:count]) as handle:
                if not stat.S_ISDIR(os.fstat(handle).st_mode):
                    raise FileExists("A parent of the path is no directory.")
                break
        else:
            count = 0
        for depth in range(count, len(parts)):
            with confine.found(self.root, parts[:depth], directory=True) as parent:
                if self._make(parent, parts[depth]):
                    made.append(parts[: depth + 1])

    def _make(self, parent: int, name: bytes) -> bool:
        """Make a directory; False if there is something of its name. It has its owner before it can be seen."""
        staged = secrets.token_hex(16).encode()
        os.mkdir(staged, 0o700, dir_fd=self.staging)
        try:
            made = os.open(staged, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.staging)
            try:
                self._give(made, DIRECTORY_MODE)
            finally:
                os.close(made)
            rename_new_at(self.staging, staged, parent, name)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(staged, dir_fd=self.staging)
        sync(parent)
        return True

    def _give(self, descriptor: int, mode: int) -> None:
        if self.uid is not None and self.gid is not None:
            os.fchown(descriptor, self.uid, self.gid)
        os.fchmod(descriptor, mode)

    def _rename(self, old: int, source: bytes, new: int, target: bytes, *, overwrite: bool) -> None:
        try:
            with confine.translated():
                if overwrite:
                    os.rename(source, target, src_dir_fd=old, dst_dir_fd=new)
                else:
                    rename_new_at(old, source, new, target)
        except ServiceError as error:
            if isinstance(error.__cause__, NotADirectoryError):
                raise FileExists("There is something of another kind of this name.") from error
            raise
        except OSError as error:
            if isinstance(error, FileExistsError | IsADirectoryError) or error.errno == errno.ENOTEMPTY:
                raise FileExists("There is something of this name already.") from error
            if error.errno == errno.EINVAL:
                raise InvalidRequest("A directory cannot be moved below itself.") from error
            raise


@dataclass(slots=True)
class Upload:
    """A file on its way. ``write`` and ``commit`` are called one after the other, on any thread."""

    tree: Tree
    parts: Parts
    name: bytes
    descriptor: int
    limit: int
    size: int = 0
    _sum: hashlib._Hash = field(default_factory=hashlib.sha256)

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Add bytes. Raises BodyTooLarge, OSError."""
        self.size += len(chunk)
        if self.size > self.limit:
            raise _too_large(self.limit)
        self._sum.update(chunk)
        left = memoryview(chunk)
        while left:
            left = left[os.write(self.descriptor, left) :]

    def commit(self, *, overwrite: bool = True, check: Check | None = None) -> Stored:
        """Make it the file of its name, with parents; in the place of anything but a directory, if ``overwrite``.

        check: told the state of what has the name (None: nothing), it raises to refuse; one at a time, so of two uploads that
        want the same old file only one is stored. Returns once it is on the disk. Raises FileExists.
        """
        leaf = self.parts[-1]
        self.complete()
        if check is not None:
            with _checking:
                with contextlib.suppress(NoSuchFile), self.tree.parent(self.parts) as parent:
                    check(_state(parent, leaf))
                    check = None
                if check is not None:
                    check(None)
                return self._place(leaf, overwrite=overwrite)
        return self._place(leaf, overwrite=overwrite)

    def complete(self) -> Stored:
        """Have it on the disk, and its owner's; what is left is its name. Return what is stored, as if it was new.

        Nothing can be written afterwards: the descriptor is closed. May be called twice.
        """
        if self.descriptor >= 0:
            self.tree._give(self.descriptor, FILE_MODE)
            os.fsync(self.descriptor)
            self.close()
        return Stored(self.size, self._sum.hexdigest(), new=True)

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _place(self, leaf: bytes, *, overwrite: bool) -> Stored:
        tree = self.tree
        with tree.parent(self.parts, make=True) as parent:
            try:
                tree._rename(tree.staging, self.name, parent, leaf, overwrite=False)
                new = True
            except FileExists:
                if not overwrite:
                    raise
                tree._rename(tree.staging, self.name, parent, leaf, overwrite=True)
                new = False
            sync(parent)
        return Stored(self.size, self._sum.hexdigest(), new)


def sync(handle: int) -> None:
    """Have the names of the directory behind ``handle`` on the disk."""
    with confine.scanning(handle) as directory:
        os.fsync(directory)


def _state(parent: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _entry(name: bytes, state: os.stat_result) -> Entry:
    size = state.st_size if stat.S_ISREG(state.st_mode) else 0
    return Entry(name, state.st_mode, size, state.st_mtime_ns)


def _plain(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The file is over {limit} bytes.")
