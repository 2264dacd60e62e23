"""All processes of a sandbox without cgroup and namespace: by group, by descent, and by a mark in the environment.

Promises: no process is killed that was not found so, nor one that took over its pid since.
Does not find (where there is no isolation, nothing can): a daemon that left the group, lost its parents and wiped its
environment. Hosts without ``/proc`` find the group only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from interpreter.backends.bubblewrap import ending

_SLEEP_S = 0.01


def end(leader: int, mark: str, *, within_s: float) -> bool:
    """Kill the tree of ``leader`` (dead or alive) and all that carry ``mark`` until there are none; whether so in time.

    mark: ``NAME=value`` as it stands in the environment.
    """
    deadline = time.monotonic() + within_s
    while True:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
        found = list(_found(leader, mark.encode()))
        if not found:
            return True
        for pid, started in found:
            with contextlib.suppress(PermissionError):
                ending.kill_if_started_at(pid, started)
        if time.monotonic() > deadline:
            return False
        time.sleep(_SLEEP_S)


def marked(prefix: str) -> dict[str, list[tuple[int, int]]]:
    """Return (pid, start time) of the processes by the mark that they carry, of those that begin with ``prefix``."""
    found: dict[str, list[tuple[int, int]]] = {}
    for pid in _pids():
        for entry in _environ(pid):
            if entry.startswith(prefix.encode()) and (started := ending.start_time(pid)) is not None:
                found.setdefault(entry.decode(errors="replace"), []).append((pid, started))
    return found


def count(leader: int, mark: str) -> int:
    """Return how many processes there are now."""
    return len(list(_found(leader, mark.encode())))


def _found(leader: int, mark: bytes) -> Iterator[tuple[int, int]]:
    parents: dict[int, int] = {}
    seen: dict[int, tuple[int, bool]] = {}
    for pid in _pids():
        stat = ending.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if not stat or stat[0] in ("Z", "X"):
            continue
        parents[pid] = int(stat[1])
        seen[pid] = int(stat[19]), int(stat[2]) == leader or mark in _environ(pid)
    for pid, (started, ours) in seen.items():
        if ours or _descends(pid, leader, parents):
            yield pid, started


def _descends(pid: int, leader: int, parents: dict[int, int]) -> bool:
    for _ in range(len(parents)):
        if pid == leader:
            return True
        if pid not in parents:
            return False
        pid = parents[pid]
    return False


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []
