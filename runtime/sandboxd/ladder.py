"""The way an execution is ended against its will: asked at once, its children ended at half the grace, its kernel at the end.

The kernel is interrupted first: by SIGINT, together with its process group, or by the message that it wants instead. A cell that
waits for a child which ignores that goes on when the child is gone, so at half the grace all that the execution started is
killed and the kernel asked once more. Only after that is the kernel ended, and with it all of its state. What an execution
started and what outlives the interrupt, though the cell did not, is for ``kill_started`` too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable

from .processes import Process

_TO_CLEAN_S = 0.2
"""Of the grace, at most: what it takes to end the kernel's processes, so that the answer comes within the grace."""

_TICKS = os.sysconf("SC_CLK_TCK")


def ticks() -> int:
    """Return the present time as /proc tells start times: clock ticks since boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


async def climb(
    process: Process,
    ended: asyncio.Future[None],
    interrupt: Callable[[], None],
    *,
    since: int,
    grace_s: float,
    in_child: bool = False,
) -> bool:
    """End the execution that ``process`` runs; return whether it ended without ending the process.

    ended: done when the execution is over. interrupt: asks it to end. since: when it began, in ``ticks``. in_child: as in
    ``kill_started``. When this returns False the process has been killed. Takes at most ``grace_s``; cancelling stops climbing.
    """
    last_s = max(grace_s - min(_TO_CLEAN_S, grace_s / 5), 0)
    interrupt()
    if await _done(ended, last_s / 2):
        return True
    kill_started(process, since, ticks() + 1, in_child=in_child)
    interrupt()
    if await _done(ended, last_s - last_s / 2):
        return True
    process.kill()
    return False


def kill_started(process: Process, since: int, until: int, *, in_child: bool) -> None:
    """SIGKILL what lives below ``process`` and was started from ``since`` on and before ``until``, in ``ticks``.

    in_child: executions run in a child of it, which is spared: one that has ended is replaced at any time, also by then.
    """
    for pid, started in process.descendants(in_child=in_child):
        if since <= started < until:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


async def _done(ended: asyncio.Future[None], within_s: float) -> bool:
    await asyncio.wait([ended], timeout=within_s)
    return ended.done()
