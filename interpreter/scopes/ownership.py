"""Giving a directory and all in it to another uid.

Promises: links are never followed, neither at the end of a path nor on the way; one descriptor at a time, any depth; the
top directory changes hands last, so a takeover that was cut short is seen and done again.
Blocks: call it in a thread.
"""

from __future__ import annotations

import contextlib
import os
import stat

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def take_over(top: int, uid: int, gid: int) -> None:
    """Make ``uid`` and ``gid`` own everything under the directory open as ``top``, if they do not own ``top`` itself.

    Entries that vanish meanwhile are passed over. Raises OSError where it cannot be done.
    """
    state = os.fstat(top)
    if (state.st_uid, state.st_gid) == (uid, gid):
        return
    current = os.dup(top)
    try:
        waiting = [os.listdir(current)]
        places = [_place(current)]
        while waiting:
            if not waiting[-1]:
                waiting.pop()
                places.pop()
                if places:
                    current = _step(current, "..")
                    if _place(current) != places[-1]:
                        raise OSError("a directory was moved while it was taken over")
                continue
            name = waiting[-1].pop()
            with contextlib.suppress(FileNotFoundError):
                entry = os.stat(name, dir_fd=current, follow_symlinks=False)
                if (entry.st_uid, entry.st_gid) != (uid, gid):
                    os.chown(name, uid, gid, dir_fd=current, follow_symlinks=False)
                if stat.S_ISDIR(entry.st_mode):
                    current = _step(current, name)
                    waiting.append(os.listdir(current))
                    places.append(_place(current))
    finally:
        os.close(current)
    os.fchown(top, uid, gid)


def _step(current: int, name: str) -> int:
    """Return the directory ``name`` as seen from ``current``, which is closed; on an error it stays open."""
    following = os.open(name, _DIRECTORY, dir_fd=current)
    os.close(current)
    return following


def _place(directory: int) -> tuple[int, int]:
    state = os.fstat(directory)
    return state.st_dev, state.st_ino
