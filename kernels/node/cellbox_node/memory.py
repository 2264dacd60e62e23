"""How much memory the Node process may use for its objects, so that it says so itself before the sandbox is at its end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_SHARE = 0.75
"""Of the limit. The rest is for buffers, which lie outside of the heap, and for other programs."""

_LEAST_MIB = 64


def heap_mib(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the limit for the heap, from the limits of memory on this process; None where none is known.

    root: of the file system with ``proc`` and ``sys``. environment: where those are not seen, its ``CELLBOX_MEMORY_MIB`` is the
    limit.
    """
    limits = [limit for file in _files(root) if (limit := _limit(file)) is not None]
    told = environment.get("CELLBOX_MEMORY_MIB", "")
    if told.isdecimal() and len(told) < 10:
        limits.append(int(told) * 2**20)
    if not limits:
        return None
    return max(int(min(limits) * _SHARE / 2**20), _LEAST_MIB)


def _files(root: Path) -> Iterator[Path]:
    """Yield where the limits of this control group and of those around it stand, in both versions of control groups."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base, name = root / "sys/fs/cgroup", "memory.max"
        if "memory" in controllers.split(","):
            base, name = base / "memory", "memory.limit_in_bytes"
        elif controllers:
            continue
        group = Path(path.lstrip("/"))
        for place in (group, *group.parents):
            yield base / place / name


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < 2**60 else None  # beyond: what version 1 calls no limit
