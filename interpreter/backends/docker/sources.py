"""What of the host a container is shown, looked at right before its start.

Promises: no link is followed on the way to a source, and every directory on the way below ``root`` is the service's own and
written by nobody else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from .spec import Bind


class Planted(Exception):
    """Something on the way to a source is not what the service has made there. Text: for our log only."""


def check(shown: Sequence[Bind], root: Path) -> None:
    """Return if all of ``shown`` is as the service has made it. Blocking, microseconds. Raises Planted."""
    for bind in shown:
        try:
            _check(bind, root)
        except OSError as error:
            raise Planted(f"{bind.target}: {error.strerror}") from error


def _check(bind: Bind, root: Path) -> None:
    base = root if bind.source.is_relative_to(root) else Path("/")
    *way, last = bind.source.relative_to(base).parts
    directory = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in way:
            _refuse_foreign(directory, bind)
            inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            os.close(directory)
            directory = inner
        _refuse_foreign(directory, bind)
        kind = os.stat(last, dir_fd=directory, follow_symlinks=False).st_mode
        if not (stat.S_ISDIR(kind) or (stat.S_ISREG(kind) and not bind.tenant)):
            raise Planted(f"{bind.target}: neither a directory nor a file")
    finally:
        os.close(directory)


def _refuse_foreign(directory: int, bind: Bind) -> None:
    about = os.fstat(directory)
    sticky = about.st_mode & stat.S_ISVTX  # as /tmp: others may add to it, and not rename what is ours
    if about.st_uid not in (0, os.geteuid()) or (about.st_mode & 0o022 and not sticky):
        raise Planted(f"{bind.target}: lies in a directory that somebody else can write")
