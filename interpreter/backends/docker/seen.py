"""What the host shows of a container, where this process can see it: its first process and its cgroups.

A service that runs in a container of its own sees neither and does with what the engine tells.
Promises: a process is held by a descriptor, and it is the container's: a pid that was reused is never taken for it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_ASK_S = 2.0
_CREDENTIALS = struct.Struct("3i")
_CONTROLLERS = ("memory", "pids", "cpu")


@dataclass(frozen=True, slots=True)
class Seen:
    """process: pidfd of the container's first one, or -1. groups: directories of its cgroups; empty where not visible."""

    process: int = -1
    groups: tuple[str, ...] = ()


NOTHING = Seen()


def has_our_mounts(address: str) -> bool:
    """Whether whoever listens at the ``unix:`` address of an engine has the mount namespace of this process."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.settimeout(_ASK_S)
            asked.connect(address.removeprefix("unix://"))
            told = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(told)  # 0: of a namespace that we do not see
        return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


def look(container: str, pid: int) -> Seen:
    """Return what is to be seen of the container, whose first process the engine says to be ``pid``. Blocking."""
    if pid <= 0:
        return NOTHING
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return NOTHING
    own = Path(f"/proc/{pid}/cgroup")
    try:
        groups = tuple(_groups(own.read_text(), Path("/proc/self/mountinfo").read_text(), container))
    except OSError:
        groups = ()
    if not groups:
        os.close(process)
        return NOTHING
    return Seen(process, groups)


def wrong_limits(groups: tuple[str, ...], wanted: Mapping[str, str]) -> list[str]:
    """Return the names of the files in ``groups`` that do not say what is ``wanted``. Blocking."""
    wrong = []
    for group in groups:
        for name, value in wanted.items():
            with contextlib.suppress(OSError):
                if Path(group, name).read_text().strip() != value:
                    wrong.append(name)
    return wrong


def _groups(own: str, mounts: str, container: str) -> Iterator[str]:
    """Yield the directories of the groups in ``own``, the text of a process's file, if they are the container's."""
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if container not in path:
            continue
        wanted = [name for name in controllers.split(",") if name in _CONTROLLERS]
        if controllers and not wanted:
            continue
        for mount in mounts.splitlines():
            before, _, after = mount.partition(" - ")
            root, point = before.split()[3:5]
            kind, _, options = after.split(" ", 2)
            fits = kind == "cgroup2" if not controllers else kind == "cgroup" and wanted[0] in options.split(",")
            if not fits or not (path + "/").startswith(root.rstrip("/") + "/"):
                continue
            group = Path(point) / path[len(root.rstrip("/")) :].lstrip("/")
            if (group / "cgroup.procs").exists():
                yield str(group)
                break
