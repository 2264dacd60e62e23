"""Which cgroups this host lets us make, and what a sandbox's limits are in them.

Version 1 as root (memory, pids and cpu hierarchies) and version 2 where it is delegated to us or as root. Sandboxes get
groups beside the service's own, so that limits set on the service as a whole hold for all of it.
Leaves to supervisor.py: making the groups, entering and removing them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from interpreter.backends import inside
from interpreter.backends.base import Limits, Stats

from . import ending

_CONTROLLERS = ("memory", "pids", "cpu")

Group = tuple[str, list[tuple[str, str]]]
"""Directory of a group and the limits to write into it: (file, value)."""


@dataclass(frozen=True, slots=True)
class Cgroups:
    """bases: directory by controller in which we may make groups. version: 1 or 2."""

    version: int
    bases: Mapping[str, Path]

    def groups(self, name: str, limits: Limits) -> list[Group]:
        """Return the groups of the sandbox called ``name``, and what to write into each in order."""
        memory = str((limits.memory_mib + inside.OWN_MEMORY_MIB) * 2**20)
        pids = str(limits.pids + inside.OWN_PIDS)
        quota = str(inside.cpu_quota_us(limits.cpus))
        if self.version == 2:
            wanted = [("memory.max", memory), ("pids.max", pids), ("cpu.max", f"{quota} {inside.CPU_PERIOD_US}")]
            if (self.bases["memory"] / "memory.swap.max").exists():
                wanted.insert(1, ("memory.swap.max", "0"))
            return [(str(self.bases["memory"] / name), wanted)]
        by_path: dict[str, list[tuple[str, str]]] = {}
        wanted_of = {
            "memory": [("memory.limit_in_bytes", memory)],
            "pids": [("pids.max", pids)],
            "cpu": [("cpu.cfs_period_us", str(inside.CPU_PERIOD_US)), ("cpu.cfs_quota_us", quota)],
        }
        if (self.bases["memory"] / "memory.memsw.limit_in_bytes").exists():
            wanted_of["memory"].append(("memory.memsw.limit_in_bytes", memory))
        for controller, wanted in wanted_of.items():
            by_path.setdefault(str(self.bases[controller] / name), []).extend(wanted)
        return list(by_path.items())

    def names(self, prefix: str) -> dict[str, list[str]]:
        """Return the groups there are whose name starts with ``prefix``: directories by name."""
        found: dict[str, list[str]] = {}
        for base in set(self.bases.values()):
            for entry in base.iterdir():
                if entry.name.startswith(prefix):
                    found.setdefault(entry.name, []).append(str(entry))
        return found


def detect(proc: Path = Path("/proc/self")) -> Cgroups | None:
    """Return the cgroups that we can really make and limit here; None: none of use.

    On version 2 this may move our processes into a leaf of our own group, since only a group without processes can hand
    its controllers on.
    """
    own = dict(_own_paths((proc / "cgroup").read_text()))
    mounts = (proc / "mountinfo").read_text().splitlines()
    first = {name: base for name in _CONTROLLERS if (base := _base(mounts, name, own.get(name))) is not None}
    if len(first) == len(_CONTROLLERS):
        return Cgroups(1, first) if all(_can_make(base) for base in set(first.values())) else None
    base = _base(mounts, "", own.get(""))
    if base is None or not set(_CONTROLLERS) <= set(ending.read(f"{base}/cgroup.controllers").split()):
        return None
    parent = _with_controllers(base, _top(mounts))
    if parent is None or not _can_make(parent):
        return None
    return Cgroups(2, dict.fromkeys(_CONTROLLERS, parent))


def stats(groups: list[str]) -> Stats:
    """Read the counters of a sandbox's groups. Memory without the file pages that the kernel would drop first."""
    memory: int | None = None
    processes: int | None = None
    for group in groups:
        used = ending.read(f"{group}/memory.current") or ending.read(f"{group}/memory.usage_in_bytes")
        if used:
            inactive = 0
            for line in ending.read(f"{group}/memory.stat").splitlines():
                key, _, value = line.partition(" ")
                if key in ("inactive_file", "total_inactive_file"):
                    inactive = int(value)
            memory = max(0, int(used) - inactive)
        if count := ending.read(f"{group}/pids.current"):
            processes = int(count)
    return Stats(memory, ending.oom_kills(groups), processes)


def _own_paths(text: str) -> list[tuple[str, str]]:
    """Return (controller, path) of each line; the controller of version 2 is the empty one."""
    return [
        (controller, path)
        for line in text.splitlines()
        for _, controllers, path in [line.split(":", 2)]
        for controller in controllers.split(",")
    ]


def _base(mounts: list[str], controller: str, path: str | None) -> Path | None:
    """Return the directory of our own group in the hierarchy of ``controller``."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        root, mount_point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        fits = kind == "cgroup2" if not controller else kind == "cgroup" and controller in options.split(",")
        if fits and path is not None and (path + "/").startswith(root.rstrip("/") + "/"):
            base = Path(mount_point) / path[len(root.rstrip("/")) :].lstrip("/")
            return base if base.is_dir() else None
    return None


def _top(mounts: list[str]) -> Path:
    """Return the mount point of version 2. There is one: our own group was found in it."""
    return next(Path(line.split()[4]) for line in mounts if line.partition(" - ")[2].startswith("cgroup2 "))


def _can_make(base: Path) -> bool:
    probe = base / f"cellbox-probe-{secrets.token_hex(4)}"
    try:
        probe.mkdir()
    except OSError:
        return False
    probe.rmdir()
    return True


def _with_controllers(base: Path, top: Path) -> Path | None:
    """Return a group of version 2 whose controllers reach the groups below it, made at need.

    base: our own group. top: of the hierarchy as we see it. A group that also holds processes of others (a login session)
    is left alone, except at the top of a container: there everything is the container's, and nobody else will do it.
    """
    if _hand_on(base):
        return base
    if base == top or all(_is_kin(int(pid)) for pid in ending.read(f"{base}/cgroup.procs").split()):
        return base if _move_to_leaf(base) and _hand_on(base) else None
    if (top / "cgroup.type").exists():
        return None
    ours = top / "cellbox"  # the true top of the host, which may hold processes and has handed its controllers on
    with contextlib.suppress(OSError):
        ours.mkdir(exist_ok=True)
        return ours if _hand_on(ours) else None
    return None


def _hand_on(group: Path) -> bool:
    """Give the controllers to the groups below; return whether they have them."""
    control = group / "cgroup.subtree_control"
    if not set(_CONTROLLERS) <= set(ending.read(str(control)).split()):
        with contextlib.suppress(OSError):
            control.write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
    return {name.lstrip("+") for name in ending.read(str(control)).split()} >= set(_CONTROLLERS)


def _move_to_leaf(group: Path) -> bool:
    leaf = group / "cellbox-service"
    try:
        leaf.mkdir(exist_ok=True)
        for pid in ending.read(f"{group}/cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(pid)
    except OSError:
        return False
    return True


def _is_kin(pid: int) -> bool:
    """Whether ``pid`` is us, one that started us, or one that we started; or has ended."""
    us = os.getpid()
    return ending.parent(pid) is None or us in _line(pid) or pid in _line(us)


def _line(pid: int | None) -> list[int]:
    """Return ``pid`` and its forebears."""
    line: list[int] = []
    while pid and pid not in line:
        line.append(pid)
        pid = ending.parent(pid)
    return line
