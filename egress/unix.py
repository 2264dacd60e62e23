"""Unix sockets to listen at: made beside and renamed, so that a path always leads to one that accepts.

Leaves to its users: accepting, and removing the file.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

_BACKLOG = 1024
"""Who connects to a socket whose backlog is full is refused at once, and many programs connect in bursts."""
_BESIDE = ".new"


def listen(path: Path, *, mode: int) -> socket.socket:
    """Return a socket that listens at ``path``, which it takes over in one step. Raises OSError.

    path: may be longer than the 107 bytes that such an address has; its directory is reached by descriptor then.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_BESIDE, dir_fd=folder)
        listening.bind(f"/proc/self/fd/{folder}/{_BESIDE}")
        os.chmod(_BESIDE, mode, dir_fd=folder)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        os.rename(_BESIDE, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        listening.close()
        with contextlib.suppress(OSError):
            os.unlink(_BESIDE, dir_fd=folder)
        raise
    finally:
        os.close(folder)
    return listening


def identity(path: Path) -> tuple[int, int] | None:
    """What tells the socket at ``path`` from another that took its place; None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None


def remove(path: Path) -> None:
    """Remove the file, if it can be removed."""
    with contextlib.suppress(OSError):
        path.unlink()
