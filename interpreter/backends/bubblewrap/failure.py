"""Why a sandbox could not be started, as the caller is told: the cause and the remedy. Pure.

Promises: the texts are ours, whatever the supervisor or bubblewrap said; that goes into the log.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from interpreter import shortage
from interpreter.backends.base import BackendError, BackendUnavailable

NO_CGROUPS = (
    "no cgroups to limit sandboxes with: the memory, pids and cpu controllers must be writable (in a container, mount"
    " /sys/fs/cgroup writable; with systemd, set Delegate=yes)"
)
_FEW_CGROUPS = (
    "the host has no cgroup left: remove unused ones, or raise cgroup.max.descendants above the service's own"
)
_NAMESPACES = (
    "the host has no namespace left: raise user.max_user_namespaces and its like, or lower SANDBOX_MAX_SESSIONS"
)
_UNKNOWN = "the log of the service has the reason"


class HostIsShort(BackendError):
    """The host lacks something for one more sandbox; it may have it again at any moment."""


def of_error(error: OSError) -> BackendError:
    """Return what to raise for an error of the service's own calls."""
    return _error(shortage.told(error.errno))


def of_report(report: Mapping[str, Any] | None) -> BackendError:
    """Return what to raise for a supervisor's report; None: there was none in time; empty: it ended without one."""
    if report is None:
        return HostIsShort(
            "the sandbox could not be started in time: the host is overloaded; lower SANDBOX_MAX_SESSIONS"
        )
    if not report:
        return _error("its supervisor ended at once, which it does where memory has run out; " + _UNKNOWN)
    step, number = report.get("step"), report.get("errno")
    if step == "cgroups" and number is not None:
        return _of_cgroups(number)
    if step == "namespaces":
        return _error(_of_namespaces(number, report.get("said", b"").decode(errors="replace")))
    return _error(shortage.told(number))


def _of_cgroups(number: int) -> BackendError:
    if number in (errno.ENOSPC, errno.EAGAIN):
        return _error(_FEW_CGROUPS)
    if number == errno.ENOMEM:
        return _error(shortage.MEMORY)
    return BackendUnavailable(NO_CGROUPS)


def _of_namespaces(number: int | None, said: str) -> str | None:
    """Read the number, or what bubblewrap said in the system's own words."""
    if number is None:
        return _NAMESPACES if "max_*_namespaces" in said else shortage.told_by(said)
    if number == errno.ENOSPC:
        return _NAMESPACES
    if number == errno.EBADF:  # a number for the descriptor that is over the limit
        return shortage.DESCRIPTORS
    return shortage.told(number)


def _error(cause: str | None) -> BackendError:
    if cause is None:
        return BackendError("the sandbox could not be started: " + _UNKNOWN)
    return HostIsShort("the sandbox could not be started: " + cause)
