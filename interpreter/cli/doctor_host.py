"""What ``cellbox doctor`` says of this machine: bubblewrap, cgroups, namespaces, clock, disk, data root, descriptors.

Promises: only reads, but for a quota, which is tried for a moment; what the backend does not need is no error.
"""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from interpreter.backends import environment
from interpreter.backends.base import BackendUnavailable
from interpreter.backends.bubblewrap import host
from interpreter.backends.docker import engine
from interpreter.backends.docker.seen import has_our_mounts
from interpreter.cli.findings import Finding, error, ok, warning
from interpreter.descriptors import TooFewDescriptors, needed, shares
from interpreter.http.server import ConnectionLimits
from interpreter.scopes import images
from interpreter.settings import Settings
from interpreter.wording import counted

_MIB = 2**20
_LITTLE_BYTES = 2**30
_NOTHING_BYTES = 64 * _MIB
_FEW_FILES = 10_000
_CONTROLLERS = frozenset({"memory", "pids", "cpu"})
_MANY_TERMINALS = 2**20
"""The most that the kernel takes. Each costs 3 KiB of the memory of the sandbox that has it."""
_TRY_S = 10.0


def examine(found: Settings, backend: str, engine_directory: Path | None) -> Iterator[Finding]:
    """Yield what there is to say. engine_directory: where an engine keeps its images, if on this machine."""
    if backend == "bubblewrap":
        yield from bubblewrap()
        yield cgroups(is_root=os.geteuid() == 0)
        yield namespaces()
    else:
        yield ok("bubblewrap", "there" if shutil.which("bwrap") else "not there; not needed")
    if backend in ("bubblewrap", "docker"):
        yield terminals()
    yield clock(time.time(), Path(__file__).stat().st_mtime)
    yield from disk("disk", found.data_root)
    if backend == "docker" and engine_directory is not None and engine_directory.exists():
        yield from disk("disk", engine_directory)
    yield from data_root(found.data_root, euid=os.geteuid())
    if found.scope_quota_mb is not None:
        apart = backend == "docker" and not has_our_mounts(engine.host())
        yield quota(found.data_root, found.scope_quota_mb, apart=apart)
    yield descriptors(found.max_sessions, resource.getrlimit(resource.RLIMIT_NOFILE)[1], backend)


def bubblewrap() -> Iterator[Finding]:
    """Yield whether the program is there, and what sandboxes show of Python."""
    try:
        yield ok("bubblewrap", host.find_bwrap())
    except BackendUnavailable as wrong:
        text, _, remedy = str(wrong).partition(": ")
        yield error("bubblewrap", text, remedy or "apt-get install bubblewrap")
    if not (environment.default_venv() / "bin" / "python3").exists():
        yield error("environment", "the Python of the sandboxes has not been made", "make install")


def cgroups(proc: Path = Path("/proc/self"), *, is_root: bool) -> Finding:
    """Return whether groups with limits can be made. Without root a service runs without, and says so."""
    what, make = "cgroups", error if is_root else warning
    remedy = (
        "mount /sys/fs/cgroup writable (in a container), or Delegate=yes (in a unit of systemd)"
        if is_root
        else "systemd-run --user --scope -p Delegate=yes cellbox serve"
    )
    mounts: dict[str, Path] = {}
    version = 2
    for line in (proc / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup":
            mounts |= dict.fromkeys(_CONTROLLERS & set(options.split(",")), Path(before.split()[4]))
        elif kind == "cgroup2":
            mounts.setdefault("", Path(before.split()[4]))
    unified = mounts.pop("", None)
    if mounts:
        version = 1
        missing = _CONTROLLERS - mounts.keys()
        places = list(mounts.values())
    elif unified is not None:
        missing = _CONTROLLERS - set((unified / "cgroup.controllers").read_text().split())
        places = [_own(proc, unified)]
    else:
        return make(what, "no cgroups are mounted: sandboxes would have no limits", remedy)
    if missing:
        return make(what, f"the controllers {', '.join(sorted(missing))} are not there: no limits", remedy)
    if not all(os.access(place, os.W_OK) for place in places):
        return make(what, "no groups can be made: sandboxes would have no limits", remedy)
    return ok(what, f"version {version}, with memory, pids and cpu")


def namespaces() -> Finding:
    """Return whether bubblewrap may make a namespace of users, by making one."""
    what = "namespaces"
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return ok(what, "cannot be tried without bubblewrap")
    command = [bwrap, "--unshare-user", "--ro-bind", "/", "/", "--", "/usr/bin/true"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=_TRY_S, check=False)
    except (OSError, subprocess.SubprocessError) as wrong:
        return error(what, f"could not be tried: {wrong}", "see whether the machine can start programs at all")
    if tried.returncode == 0:
        return ok(what, "user namespaces can be made")
    said = (tried.stderr.strip().splitlines() or ["bubblewrap said nothing"])[-1][:200]
    return error(what, f"no user namespace can be made ({said})", remedy_of_namespaces())


def remedy_of_namespaces(proc: Path = Path("/proc")) -> str:
    """Return what to type where no namespace of users can be made: what this kernel is set to tells."""
    for name, wrong, command in (
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=65536"),
    ):
        try:
            if (proc / "sys" / name).read_text().strip() == wrong:
                return command
        except OSError:
            continue
    return "in a container, let it make namespaces (its system call filter refuses), or use the docker backend"


def terminals(file: Path = Path("/proc/sys/kernel/pty/max")) -> Finding:
    """Return whether one scope can take all pseudo terminals of the machine: they are counted for all, whatever limits it has."""
    what = "terminals"
    try:
        most = int(file.read_text())
    except (OSError, ValueError):
        return ok(what, "this kernel does not say how many it allows")
    if most < _MANY_TERMINALS:
        return warning(
            what,
            f"the machine has {most} pseudo terminals, and one scope can take them all from the others",
            f"sysctl -w kernel.pty.max={_MANY_TERMINALS}        (and in /etc/sysctl.d, for the next boot)",
        )
    return ok(what, f"{most} pseudo terminals, more than fit into the memory of a sandbox")


def clock(now: float, installed: float) -> Finding:
    """Return whether it is later than our own files say."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - 60:
        return error("clock", f"{shown}, which is before this program was installed", "timedatectl set-ntp true")
    return ok("clock", shown)


def disk(what: str, path: Path) -> Iterator[Finding]:
    """Yield how much room there is where ``path`` is or would be."""
    place = nearest(path)
    try:
        room = os.statvfs(place)
    except OSError as wrong:
        yield error(what, f"{path}: {wrong.strerror}", "see that this user may look there")
        return
    free = room.f_bavail * room.f_frsize
    text = f"{free / _MIB / 1024:.1f} GiB free for {path}"
    remedy = f"make room: df -h {place}" + ("; docker system df" if path.name == "docker" else "")
    if free < _NOTHING_BYTES:
        yield error(what, text, remedy)
    elif free < _LITTLE_BYTES:
        yield warning(what, text, remedy)
    else:
        yield ok(what, text)
    if room.f_files and room.f_favail < _FEW_FILES:
        yield warning(what, f"{room.f_favail} further files fit where {path} is", f"df -i {place}")


def data_root(path: Path, *, euid: int) -> Iterator[Finding]:
    """Yield whether the service can have ``path``, and has it for itself."""
    what = "data root"
    place = nearest(path)
    if place != path:
        if os.access(place, os.W_OK | os.X_OK):
            yield ok(what, f"{path} is made at the first start")
        else:
            yield error(what, f"{path} is not there, and this user cannot make it", f"mkdir -m 700 {path}, as root")
        return
    about = path.stat()
    if not stat.S_ISDIR(about.st_mode):
        yield error(what, f"{path} is no directory", "name another place with SANDBOX_DATA_ROOT")
        return
    if about.st_uid != euid:
        yield error(
            what,
            f"{path} belongs to the user {about.st_uid}, and this is {euid}",
            f"type this as that user, or: chown {euid} {path}",
        )
    elif about.st_mode & 0o077:
        yield warning(what, f"{path} is open to others until the next start", f"chmod 700 {path}")
    else:
        yield ok(what, f"{path}, of this user alone")
    if sys.platform == "linux" and euid == 0 and not os.statvfs(path).f_flag & os.ST_NOSUID:
        yield warning(
            what,
            "its file system honours set-user-id files, which programs in sandboxes can leave there",
            "give it a file system of its own, mounted with nosuid,nodev",
        )


def quota(root: Path, mib: int, *, apart: bool) -> Finding:
    """Return whether scopes can have file systems of their own, by making one and mounting it for a moment."""
    what = "quota"
    place = nearest(root)
    if (why := images.trouble(place, shared=apart)) is not None:
        text, _, remedy = why.rpartition(": ")
        return error(what, text or why, remedy)
    room = os.statvfs(place)
    free = room.f_bavail * room.f_frsize // _MIB
    if free < mib:
        return warning(
            what,
            f"{free} MiB are free, less than SANDBOX_SCOPE_QUOTA_MB={mib} promises to one scope",
            f"make room, since scopes lose what they write when the disk is full: df -h {place}",
        )
    return ok(what, f"{mib} MiB for each scope; the disk has room for {free // mib} full ones")


def descriptors(max_sessions: int, allowed: int, backend: str) -> Finding:
    """Return whether so many files may be open as ``max_sessions`` sandboxes and their callers need."""
    what = "descriptors"
    if allowed == resource.RLIM_INFINITY:
        return ok(what, "as many as are wanted")
    wanted = ConnectionLimits().max_connections
    all_of_it = needed(sandboxes=max_sessions, connections=wanted, backend=backend)
    remedy = f"ulimit -Hn {all_of_it}        (LimitNOFILE= in a unit of systemd; or lower SANDBOX_MAX_SESSIONS)"
    try:
        share = shares(allowed, sandboxes=max_sessions, backend=backend)
    except TooFewDescriptors:
        return error(what, f"{allowed} may be open, which is too few to start with", remedy)
    found = f"{allowed} may be open: {counted(share.sandboxes, 'sandbox')} and {share.connections} connections"
    if share.sandboxes < max_sessions:
        return error(what, f"{found}, which is fewer than SANDBOX_MAX_SESSIONS={max_sessions}", remedy)
    return ok(what, found)


def nearest(path: Path) -> Path:
    """Return ``path``, or the nearest directory above it that there is."""
    return next((each for each in (path, *path.parents) if os.path.lexists(each)), Path("/"))


def _own(proc: Path, mount: Path) -> Path:
    """Return our own group; the top, where we do not see it."""
    for line in (proc / "cgroup").read_text().splitlines():
        if line.startswith("0::"):
            own = mount / line.removeprefix("0::").lstrip("/")
            return own if own.is_dir() else mount
    return mount
