"""Opening what a path names below a directory, and nothing else.

Promises: whatever tenants exchange meanwhile, what is returned lies below the directory and on its file system. Nothing is
opened for reading before it is known to be a plain file, so a FIFO, device or socket is never touched and never waited for.
Each refusal has closed what it opened. Relative links that stay inside are followed by the kernel, in the call that opens;
where the kernel has no openat2, no link is.
Leaves to tree.py: what is done with what was opened. Blocks: call it in a thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import time
from collections.abc import Iterator, Sequence

from interpreter.errors import ServiceError
from interpreter.files.errors import FileBusy, NoSuchFile, NotARegularFile, NotPermitted, OutsideDirectory

_OPENAT2 = 437  # the same on all architectures but one that Python does not run on
_NO_XDEV, _NO_MAGICLINKS, _BENEATH = 0x01, 0x02, 0x08
_ATTEMPTS = 128
"""A rename anywhere on the host may make one fail (EAGAIN); a tenant that renames without end must not keep a thread."""
_LEASE_S = 1.0
"""For which a holder of a lease may give it up; the kernel alone would let it keep a reader waiting for 45 s."""

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@contextlib.contextmanager
def found(root: int, parts: Sequence[bytes], *, directory: bool = False) -> Iterator[int]:
    """Yield a handle (O_PATH) on what ``parts`` name below ``root``; ``root`` itself for none.

    directory: anything else is refused. Raises NoSuchFile, OutsideDirectory, NotARegularFile, NotPermitted, FileBusy, OSError.
    """
    flags = os.O_PATH | os.O_CLOEXEC | (os.O_DIRECTORY if directory else 0)
    with translated():
        handle = (_open if has_openat2() else walk)(root, parts, flags) if parts else os.dup(root)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def reading(handle: int) -> Iterator[int]:
    """Yield a descriptor that reads the plain file behind ``handle``. Raises as ``found``, and at once for all else."""
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        raise NotARegularFile("The path names no plain file.")
    descriptor = _reopened(handle)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def scanning(handle: int) -> Iterator[int]:
    """Yield a descriptor that lists the directory behind ``handle``."""
    with translated():
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise what a caller is told for an OSError that its path has caused; others pass, for they are the host's."""
    try:
        yield
    except OSError as error:
        if (kind := _KINDS.get(error.errno or 0)) is None:
            raise
        raise kind[0](kind[1]) from error


_KINDS: dict[int, tuple[type[ServiceError], str]] = {
    errno.ENOENT: (NoSuchFile, "There is no such file or directory."),
    errno.ENOTDIR: (NoSuchFile, "A part of the path is no directory."),
    errno.ENAMETOOLONG: (NoSuchFile, "There is no such file or directory."),
    errno.EXDEV: (OutsideDirectory, "The path leaves its directory."),
    errno.ELOOP: (OutsideDirectory, "The path has a link that is not followed."),
    errno.EACCES: (NotPermitted, "The mode of a file or directory does not allow this."),
    errno.EPERM: (NotPermitted, "The mode of a file or directory does not allow this."),
    errno.EAGAIN: (FileBusy, "The path is being changed all the time, or is locked."),
    errno.ETXTBSY: (FileBusy, "The path is being changed all the time, or is locked."),
}


def has_openat2() -> bool:
    """Whether the kernel confines paths for us. Looked at once."""
    global _has_openat2  # noqa: PLW0603 - what a kernel can is a fact of the process
    if _has_openat2 is None:
        here = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            os.close(_openat2(here, b".", os.O_PATH | os.O_CLOEXEC))
            _has_openat2 = True
        except OSError:
            _has_openat2 = False
        finally:
            os.close(here)
    return _has_openat2


_has_openat2: bool | None = None


def _open(root: int, parts: Sequence[bytes], flags: int) -> int:
    path = b"/".join(parts)
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(BlockingIOError, InterruptedError):
            return _openat2(root, path, flags)
    return _openat2(root, path, flags)


def _openat2(root: int, path: bytes, flags: int) -> int:
    how = _How(flags, 0, _BENEATH | _NO_MAGICLINKS | _NO_XDEV)
    handle: int = _libc.syscall(_OPENAT2, root, ctypes.c_char_p(path), ctypes.byref(how), ctypes.c_size_t(24))
    if handle < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return handle


def walk(root: int, parts: Sequence[bytes], flags: int) -> int:
    """Open without openat2: part by part, refusing every link (ELOOP) and every other file system (EXDEV)."""
    device = os.fstat(root).st_dev
    current = os.dup(root)
    try:
        for number, part in enumerate(parts, 1):
            following = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            os.close(current)
            current = following
            state = os.fstat(current)
            if stat.S_ISLNK(state.st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if state.st_dev != device:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            if (number < len(parts) or flags & os.O_DIRECTORY) and not stat.S_ISDIR(state.st_mode):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except BaseException:
        os.close(current)
        raise
    return current


def _reopened(handle: int) -> int:
    deadline = time.monotonic() + _LEASE_S
    while True:
        try:
            return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise FileBusy("The file has a lease, which its holder does not give up.") from error
            time.sleep(0.01)  # until the holder has given it up: nothing tells us when
        except PermissionError as error:
            raise NotPermitted("The mode of the file does not allow this.") from error
