"""Which processes there are below one, and what they ignore."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def ticks() -> int:
    """Return the present time as /proc tells start times: clock ticks since boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def ignores(pid: int, number: int) -> bool:
    """Whether the process ignores the signal of that number; False if it is gone."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def below(pid: int) -> list[int]:
    """Return what lives below ``pid`` now, parents first."""
    children, found = _children(), [pid]
    for parent in found:
        found += children(parent)
    return found[1:]


def kill_below(pid: int, since: int) -> None:
    """SIGKILL what lives below ``pid`` and was started from ``since`` on, in ``ticks``.

    All are found before the first is killed: the children of one that has ended are nobody's here. Each is stopped before it
    is asked for its children, so that it starts no other meanwhile.
    """
    children, parents, found = _children(), [pid], []
    for parent in parents:
        for child in children(parent):
            parents.append(child)
            stat = _stat(child)
            if stat is not None and int(stat[19]) >= since:
                found.append(child)
                _send(child, signal.SIGSTOP)
    for child in found:
        _send(child, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _children() -> Callable[[int], list[int]]:
    """Return what tells the children of a process."""
    if Path("/proc/thread-self/children").exists():
        return _children_of
    return partial(_looked_up, _all_children())


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it, or a thread of it, has gone
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def _looked_up(table: dict[int, list[int]], pid: int) -> list[int]:
    return table.get(pid, [])


def _all_children() -> dict[int, list[int]]:
    """Return the children of each process: the slow way, for systems whose /proc does not tell those of one."""
    table: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (stat := _stat(int(name))) is not None:
            table.setdefault(int(stat[1]), []).append(int(name))
    return table


def _stat(pid: int) -> list[str] | None:
    """Return the fields of a process after its name: state, parent, …; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
