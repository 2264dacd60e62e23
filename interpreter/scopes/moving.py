"""Copying a directory that nobody uses any more to another file system, as it is.

Promises: owners, modes and times stay; links are copied as links, holes as holes; depth does not matter, and one descriptor of
each side is enough. Hard links become files of their own; FIFOs and sockets, which nobody has open, are left out.
Blocks: call it in a thread.
"""

from __future__ import annotations

import errno
import os
import stat

from interpreter.scopes.opening import DIRECTORY

_BLOCK_BYTES = 2**20


def copy_tree(source: int, target: int) -> None:
    """Copy all that is in the directory open as ``source`` into the empty one open as ``target``. Raises OSError."""
    old, new = os.dup(source), os.dup(target)
    try:
        waiting = [os.listdir(old)]
        while waiting:
            if waiting[-1]:
                name = waiting[-1].pop()
                state = os.stat(name, dir_fd=old, follow_symlinks=False)
                if stat.S_ISDIR(state.st_mode):
                    os.mkdir(name, 0o700, dir_fd=new)
                    old = _step(old, name)
                    new = _step(new, name)
                    waiting.append(os.listdir(old))
                else:
                    _copy(old, new, name, state)
                continue
            waiting.pop()
            _take_after(new, os.fstat(old))
            if waiting:
                old = _step(old, "..")
                new = _step(new, "..")
    finally:
        os.close(old)
        os.close(new)


def _copy(old: int, new: int, name: str, state: os.stat_result) -> None:
    if stat.S_ISLNK(state.st_mode):
        os.symlink(os.readlink(name, dir_fd=old), name, dir_fd=new)
        os.chown(name, state.st_uid, state.st_gid, dir_fd=new, follow_symlinks=False)
        os.utime(name, ns=(state.st_atime_ns, state.st_mtime_ns), dir_fd=new, follow_symlinks=False)
    elif stat.S_ISREG(state.st_mode):
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=old)
        try:
            target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=new)
            try:
                _content(source, target, state.st_size)
                _take_after(target, state)
            finally:
                os.close(target)
        finally:
            os.close(source)


def _content(source: int, target: int, size: int) -> None:
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
            end = os.lseek(source, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # a hole to its end
        os.lseek(target, at, os.SEEK_SET)
        while at < end and (block := os.pread(source, min(end - at, _BLOCK_BYTES), at)):
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(target, rest) :]
            at += len(block)
        if at < end:
            break
    os.ftruncate(target, size)


def _take_after(target: int, state: os.stat_result) -> None:
    os.fchown(target, state.st_uid, state.st_gid)
    os.fchmod(target, stat.S_IMODE(state.st_mode) & 0o777)
    os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))


def _step(current: int, name: str) -> int:
    """Return the directory ``name`` as seen from ``current``, which is closed; on an error it stays open."""
    following = os.open(name, DIRECTORY, dir_fd=current)
    os.close(current)
    return following
