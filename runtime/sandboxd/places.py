"""The directories that executions begin in, or kernels have files in: kept usable, and judged before anything is started in them.

Promises: nothing here raises, whatever the tenant has made of its directories.
"""

from __future__ import annotations

import contextlib
import os
import stat


def keep_usable(*directories: str) -> None:
    """Give the owner all rights on its own directories: without them no program could begin, not even to repair that."""
    for directory in directories:
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(os.stat(directory).st_mode)
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(directory, mode | stat.S_IRWXU)


def enterable(directory: str) -> bool:
    """Return whether a program can have it as its working directory."""
    return os.path.isdir(directory) and os.access(directory, os.X_OK)
