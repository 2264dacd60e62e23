"""Whose parents have ended: who becomes the parent of such processes, and which of them came out of a program.

Linux gives them to the next child subreaper above, so each supervisor gets what its program leaves behind. gVisor before
2023 has no child subreapers and gives them to pid 1. There pid 1 is an init of ours (``keep_apart``): its only other child is
the zygote, so that every child besides is an orphan.

Promises: where there are child subreapers, nothing that came out of a program is missed. Where there are none, an orphan counts
as a program's if it was started after that began, so that what another program of the same sandbox orphans in that time goes
too; and one that forks and ends without a pause may hide from the process table.
"""

from __future__ import annotations

import os
import time
from typing import NoReturn

from . import osproc

_TICKS = os.sysconf("SC_CLK_TCK")


def keep_apart() -> None:
    """Have the orphans of this process's descendants come to it, or where that cannot be, to an init of ours.

    For the boot process. May return in a fork of it, which is to go on; what was pid 1 then ends as that fork does.
    """
    if os.getpid() != 1:
        osproc.become_subreaper()
    elif not osproc.has_subreapers():
        zygote = os.fork()
        if zygote:
            _be_init(zygote)


def _be_init(zygote: int) -> NoReturn:
    """Reap until ``zygote`` ends, and end as it did. Whatever is left then dies with pid 1."""
    while True:
        pid, status = os.wait()
        if pid == zygote:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


class Kin:
    """What came out of one program, for the supervisor that is to be its parent. Made in the supervisor."""

    def __init__(self) -> None:
        self._zygote = 0
        self._since = 0
        if osproc.has_subreapers():
            osproc.become_subreaper()
        else:
            self._zygote = os.getppid()

    def begin(self) -> None:
        """Note that the program begins now."""
        if self._zygote:
            self._since = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)

    def orphaned(self) -> bool:
        """Whether there is any that is no child of the supervisor."""
        return bool(self._zygote) and bool(self._orphans())

    def kill(self) -> None:
        """SIGKILL all that are seen. What they start meanwhile takes another call."""
        osproc.kill_below(os.getpid())
        for pid in self._orphans() if self._zygote else ():
            osproc.kill_below(pid)
            osproc.kill(pid)

    def _orphans(self) -> list[int]:
        """Return the live children of init that were started since the program began."""
        return [
            entry.pid
            for entry in osproc.table()
            if entry.parent == 1
            and entry.pid != self._zygote
            and entry.started >= self._since
            and entry.state not in "ZX"
        ]
