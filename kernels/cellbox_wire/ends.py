"""Noticing that a child process has ended. It is not reaped: its number and that of its group stay its own until then."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable


def watch(pid: int, ended: Callable[[], None]) -> None:
    """Call ``ended`` in the running loop, once, when the child ``pid`` has ended. Raises OSError if that cannot be."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.ENOSYS:  # gVisor before 2023 has no such call
            raise
        threading.Thread(target=_wait, args=(pid, loop, ended), name=f"end of {pid}", daemon=True).start()
        return

    def readable() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        ended()

    loop.add_reader(descriptor, readable)


def _wait(pid: int, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
    with contextlib.suppress(ChildProcessError):  # reaped by somebody else: it has ended all the same
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(ended)
