"""Ending the processes of a sandbox from outside, by cgroup and by pidfd.

Promises: no process is signalled that was not seen to be in the sandbox after its pidfd was opened, so a reused pid is
never hit; every wait has a limit.
Shared by the service and the supervisor: built-in modules only, since each import costs every start milliseconds.
"""

from __future__ import annotations

import os
import time
from _signal import SIGKILL, pidfd_send_signal  # type: ignore[import-not-found]  # signal without enum, 7 ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SMALL = 64 * 1024
_SLEEP_S = 0.002
_LONGEST_SLEEP_S = 0.05


def start_time(pid: int) -> int | None:
    """Return when ``pid`` started, in clock ticks since boot; None: no such process. Tells a pid from its reuse."""
    stat = read(f"/proc/{pid}/stat")
    return int(stat.rpartition(")")[2].split()[19]) if stat else None


def boot_id() -> str:
    """Return what names the life of the host: start times count from its boot, and pids begin anew."""
    return read("/proc/sys/kernel/random/boot_id").strip()


def parent(pid: int) -> int | None:
    """Return the parent of ``pid``; None: no such process."""
    stat = read(f"/proc/{pid}/stat")
    return int(stat.rpartition(")")[2].split()[1]) if stat else None


def kill(pidfd: int) -> None:
    """Send SIGKILL; nothing happens if it has ended."""
    try:  # noqa: SIM105 - contextlib is an import too much
        pidfd_send_signal(pidfd, SIGKILL)
    except ProcessLookupError:
        pass


def kill_if_started_at(pid: int, started: int) -> bool:
    """Kill ``pid`` if it is the process that started at ``started``; return whether it was."""
    pidfd = _open(pid)
    if pidfd is None:
        return False
    try:
        if start_time(pid) != started:
            return False
        kill(pidfd)
        return True
    finally:
        os.close(pidfd)


def members(groups: Sequence[str]) -> set[int]:
    """Return the pids in ``groups``, absolute directories of cgroups."""
    return {int(pid) for group in groups for pid in read(f"{group}/cgroup.procs").split()}


def end_groups(groups: Sequence[str], *, within_s: float) -> bool:
    """Kill all that is in ``groups`` until nothing is, then remove them; return whether both succeeded in time.

    New processes are forbidden first, so that a fork bomb cannot outrun it. Groups that are gone count as ended.
    """
    deadline = time.monotonic() + within_s
    for group in groups:
        _write(f"{group}/pids.max", "0")
        _write(f"{group}/cgroup.kill", "1")
    sleep_s = _SLEEP_S
    while (left := members(groups)) or not _remove(groups):
        for pid in left:
            _kill_member(pid, groups)
        if time.monotonic() > deadline:
            return False
        time.sleep(sleep_s)
        sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)
    return True


def oom_kills(groups: Sequence[str]) -> int:
    """Return how many processes the memory limit of ``groups`` has killed."""
    for group in groups:
        for name in ("memory.events", "memory.oom_control"):
            for line in read(f"{group}/{name}").splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    return 0


def read(path: str) -> str:
    """Return the text of a small file of the kernel, or nothing where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # before each execution: `open` takes five times as long
        try:
            return os.read(descriptor, _SMALL).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
    except OSError:
        return ""


def _kill_member(pid: int, groups: Sequence[str]) -> None:
    pidfd = _open(pid)
    if pidfd is None:
        return
    try:
        names = {group.rpartition("/")[2] for group in groups}
        if any(line.rpartition("/")[2] in names for line in read(f"/proc/{pid}/cgroup").splitlines()):
            kill(pidfd)
    finally:
        os.close(pidfd)


def _remove(groups: Sequence[str]) -> bool:
    done = True
    for group in groups:
        try:
            os.rmdir(group)
        except FileNotFoundError:
            pass
        except OSError:
            done = False  # busy until the last zombie is reaped
    return done


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        pass  # no such controller here
