"""Directories of the data root, opened without following a link."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield the directory at ``path``, whose parents are the service's own."""
    handle = os.open(path, DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def made(parent: int, name: str) -> Iterator[int]:
    """Yield the directory ``name`` of ``parent``, made at need; a link in its place is refused."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    handle = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        yield handle
    finally:
        os.close(handle)
