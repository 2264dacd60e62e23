"""Which processes there are below one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def ticks() -> int:
    """Return the present time as /proc tells start times: clock ticks since boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def kill_below(pid: int, since: int) -> None:
    """SIGKILL what lives below ``pid`` and was started from ``since`` on, in ``ticks``."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError):  # it has gone
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append((int(entry.name), int(fields[19])))
    waiting = [pid]
    while waiting:
        for child, started in children.get(waiting.pop(), []):
            waiting.append(child)
            if started >= since:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
