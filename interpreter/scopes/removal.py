"""Removing a directory that hostile code has filled.

Promises: nothing outside the directory is touched, whatever links are in it and whoever still writes to it; depth, modes and
numbers do not matter; two descriptors at a time are enough; the passes and their time are bounded, and what is left after them
is said.
Leaves to root.py: moving the directory out of reach first. Blocks: call it in a thread.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from itertools import count

MAX_PASSES = 20
"""Over one directory, which somebody may be filling while we empty it."""

WITHIN_S = 300.0
"""For one call. A pass over a directory that is filled as fast as it is emptied would have no end."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def empty(trash: int, *, within_s: float = WITHIN_S) -> bool:
    """Remove everything in the service-owned directory open as ``trash``; whether it is empty now.

    Stops after ``within_s`` seconds. Directories found deeper are first moved up into ``trash``, so nothing ever has to descend.
    """
    numbers, deadline = count(), time.monotonic() + within_s
    for _ in range(MAX_PASSES):
        names = os.listdir(trash)
        if not names:
            return True
        done = 0
        while names and time.monotonic() < deadline:
            name = names.pop()
            with contextlib.suppress(OSError):
                _remove(trash, name, names, numbers, deadline)
                done += 1
        if not done:
            return False
    return not os.listdir(trash)


def make_usable(parent: int, name: str) -> None:
    """Give ourselves all rights on a directory; on the very inode, so a link put in its place is not followed."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)


def _remove(trash: int, name: str, names: list[str], numbers: count[int], deadline: float) -> None:
    """Remove one entry of ``trash``, adding to ``names`` what was moved up out of it."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=trash, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=trash)
        return
    make_usable(trash, name)
    directory = os.open(name, _DIRECTORY, dir_fd=trash)
    try:
        for _ in range(MAX_PASSES):
            with os.scandir(directory) as entries:
                for entry in entries:
                    if time.monotonic() > deadline:
                        break
                    with contextlib.suppress(OSError):
                        _take_out(trash, directory, entry.name, names, numbers)
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=trash)
                return
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=trash)


def _take_out(trash: int, directory: int, name: str, names: list[str], numbers: count[int]) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except (IsADirectoryError, PermissionError):
        make_usable(directory, name)
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=directory)
            return
        while True:
            moved = f"+{next(numbers)}"
            try:
                os.stat(moved, dir_fd=trash, follow_symlinks=False)
            except FileNotFoundError:
                break
        os.rename(name, moved, src_dir_fd=directory, dst_dir_fd=trash)
        names.append(moved)
