"""What the operating system knows about processes and lets one change: /proc, prctl, scores.

Linux only, like the sandbox. Nothing here waits.
"""

from __future__ import annotations

import array
import ctypes
import os
import signal
import socket
from collections.abc import Iterator
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_PR_SET_NO_NEW_PRIVS = 38

_OOM_SCORE = 500
"""High enough that the system takes any tenant program before sandboxd, even a much smaller one."""

libc = ctypes.PyDLL(None, use_errno=True)
"""Keeps the interpreter lock while it calls, which calls that never wait may."""


class Entry(NamedTuple):
    """A row of the process table. started: ticks since boot, so (pid, started) names a process for good."""

    pid: int
    parent: int
    state: str
    started: int


def table() -> Iterator[Entry]:
    """Yield every process there is, dead ones that nobody has reaped included. About 20 µs each."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and (entry := find(int(name))) is not None:
            yield entry


def find(pid: int) -> Entry | None:
    """Return the row of ``pid``, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(4096)
    except OSError:
        return None
    # The name stands in parentheses and may hold anything, parentheses and spaces too.
    fields = text[text.rindex(b")") + 2 :].split()
    return Entry(pid, int(fields[1]), fields[0].decode(), int(fields[19]))


def below(root: int) -> list[Entry]:
    """Return the live descendants of ``root``, which is not among them, parents before their children."""
    children: dict[int, list[Entry]] = {}
    for entry in table():
        children.setdefault(entry.parent, []).append(entry)
    found = list(children.get(root, ()))
    for entry in found:  # grows while it is walked
        found.extend(children.get(entry.pid, ()))
    return [entry for entry in found if entry.state not in "ZX"]


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to one process; nothing happens if there is none or it is not ours."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def kill_below(root: int) -> int:
    """SIGKILL the live descendants of ``root`` as they are seen; return how many were seen."""
    found = below(root)
    for entry in found:
        kill(entry.pid)
    return len(found)


def receive_with_descriptors(source: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Return the next message of at most ``size`` bytes and its descriptors, at most ``most``. Blocks.

    ``socket.recv_fds`` ignores its flags in Python 3.11, so descriptors would be inherited by every program.
    """
    item = array.array("i").itemsize
    data, ancillary, _, _ = source.recvmsg(size, socket.CMSG_SPACE(most * item), socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % item])
    return data, descriptors.tolist()


def has_subreapers() -> bool:
    """Whether this system has child subreapers."""
    return bool(libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(ctypes.c_int()), 0, 0, 0) == 0)


def become_subreaper() -> None:
    """Let orphaned descendants of this process become its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have the system SIGKILL this process when the process that forked it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def forbid_new_privileges() -> None:
    """No program started from here on gains rights by setuid bits or file capabilities."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def set_dumpable(*, dumpable: bool) -> None:
    """Whether processes of the same user may look into this one: its memory, descriptors and environment."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def make_first_to_go(pid: int | None = None) -> None:
    """Make a process (this one if None), and what it starts, the first choice of the system when memory runs out.

    It must be one that others of the same user may look into: the files of any other are root's, its own as well.
    """
    try:
        with open(f"/proc/{pid or 'self'}/oom_score_adj", "r+b", buffering=0) as file:
            if int(file.read(16)) < _OOM_SCORE:
                file.write(b"%d" % _OOM_SCORE)
    except OSError:
        return  # ended already, or /proc is not writable here: the score is a preference, not a barrier


def _prctl(option: int, value: int) -> None:
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")
