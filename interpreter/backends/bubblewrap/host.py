"""What this host has for bubblewrap sandboxes: the program, the top of its file system, the limits of a process. Blocking."""

from __future__ import annotations

import os
import re
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from interpreter.backends import inside
from interpreter.backends.base import BackendUnavailable, Limits

_OLDEST = (0, 8, 0)
"""The first with --disable-userns."""


def find_bwrap() -> str:
    """Return the path of ``bwrap``. Raises BackendUnavailable: missing, too old, or setuid."""
    if sys.platform != "linux":
        raise BackendUnavailable(
            "bubblewrap needs Linux: use Docker, or SANDBOX_RUNTIME_BACKEND=process (no isolation)"
        )
    found = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")
    if found is None:
        raise BackendUnavailable("bubblewrap is missing: install the package `bubblewrap`")
    if Path(found).stat().st_mode & stat.S_ISUID:
        raise BackendUnavailable(f"{found} is setuid root, which only weakens it: `chmod u-s {found}`")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False, timeout=10).stdout
    version = tuple(int(part) for part in re.findall(r"\d+", said)[:3])
    if version < _OLDEST:
        raise BackendUnavailable(f"bubblewrap is too old ({said.strip()}): 0.8.0 or newer is needed")
    return found


def top_level() -> tuple[dict[str, str], list[str]]:
    """Return the links at the top of the host (``bin`` -> ``usr/bin``), and the directories where there is no link."""
    links, directories = {}, []
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        place = Path("/") / name
        if place.is_symlink():
            links[name] = os.readlink(place).lstrip("/")
        elif place.is_dir():
            directories.append(name)
    return links, directories


def rlimits(limits: Limits, *, limited: bool) -> list[tuple[int, int]]:
    """Return the resource limits. Without cgroups the processes are the tenant's number beside what its uid has now."""
    processes = inside.PROCESSES if limited else limits.pids + inside.OWN_PIDS + _tasks_of(os.geteuid())
    return [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, inside.OPEN_FILES),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_FSIZE, inside.FILE_BYTES),
    ]


def _tasks_of(uid: int) -> int:
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                count += len(os.listdir(entry / "task")) if entry.stat().st_uid == uid else 0
            except OSError:
                continue
    return count
