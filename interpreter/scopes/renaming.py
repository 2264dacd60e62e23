"""Renaming to a name that must be free.

``os.rename`` puts an empty directory in the place of another, which somebody may have opened meanwhile to write into it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


def rename_new(old: Path, new: Path) -> None:
    """Rename, or raise FileExistsError if there is anything at ``new``. Other OSErrors where the file system or the host cannot.

    The parents must be the service's own: links in them would be followed.
    """
    rename_new_at(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new))


def rename_new_at(old_directory: int, old: bytes, new_directory: int, new: bytes) -> None:
    """The same for names in directories that are open."""
    _rename(old_directory, old, new_directory, new, _RENAME_NOREPLACE)


def exchange_at(one_directory: int, one: bytes, other_directory: int, other: bytes) -> None:
    """Give each of two entries the other's name. Raises OSError, FileNotFoundError where there is only one."""
    _rename(one_directory, one, other_directory, other, _RENAME_EXCHANGE)


def _rename(old_directory: int, old: bytes, new_directory: int, new: bytes, flags: int) -> None:
    call = getattr(_libc, "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if call(old_directory, old, new_directory, new, flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def can_rename_new(directory: Path) -> bool:
    """Whether ``rename_new`` works in a directory of the service's own. Blocking."""
    old, new = directory / ".renamed-old", directory / ".renamed-new"
    try:
        old.mkdir(exist_ok=True)
        rename_new(old, new)
    except OSError:
        return False
    finally:
        for name in (old, new):
            if name.exists():
                name.rmdir()
    return True
