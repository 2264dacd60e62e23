"""What a host can run out of, in the words of answers and logs: the cause, and what the operator can do about it. Pure."""

from __future__ import annotations

import errno
import os

DISK = "the disk of the data root is full: make room on it, or purge what is not needed any more"
MEMORY = "the host is out of memory: end other programs, or lower SANDBOX_MAX_SESSIONS or SANDBOX_MEMORY_MB"
PROCESSES = (
    "no further process is allowed: raise the limit that holds for the service (pids.max of its cgroup, TasksMax= of"
    " systemd, `ulimit -u`), or lower SANDBOX_MAX_SESSIONS"
)
DESCRIPTORS = (
    "the service is out of descriptors: raise its limit of open files (`ulimit -n`, LimitNOFILE= of systemd), or lower"
    " SANDBOX_MAX_SESSIONS"
)

_BY_NUMBER = {
    errno.ENOSPC: DISK,
    errno.EDQUOT: "the disk quota of the service is used up: raise it, or purge what is not needed any more",
    errno.EROFS: "the disk of the data root is read-only: the log of the host says why",
    errno.EIO: "the disk of the data root fails: the log of the host says how",
    errno.ENOMEM: MEMORY,
    errno.EAGAIN: PROCESSES,
    errno.EMFILE: DESCRIPTORS,
    errno.ENFILE: "the host is out of descriptors: raise fs.file-max, or end other programs",
}


def told(number: int | None) -> str | None:
    """Return the part of a sentence for an error number; None: it is not about a shortage."""
    return _BY_NUMBER.get(number or 0)


def told_by(text: str) -> str | None:
    """Return the same for what a program said when it failed, in the words of the system or of Python."""
    if "can't start new thread" in text:
        return PROCESSES
    words = {os.strerror(number): number for number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)}
    return next((told(number) for word, number in words.items() if word in text), None)
