"""What a bubblewrap sandbox sees and how ``bwrap`` is called for it. Pure.

Promises: the same arguments give the same command; no value of a caller starts an argument; no destination of a mount
lies inside a place that a tenant can write; every writable place that is not the scope's data has a size.
Leaves to supervisor.py: staging the sources, dropping the uid, running it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from interpreter.backends.base import SandboxSpec
from interpreter.backends.environment import INSIDE, INSIDE_PYTHON, INSIDE_VENV, Environment
from interpreter.backends.inside import LINK, USER, WORKSPACE, Room

UID_INSIDE = 1000
STAGE = "/src"
"""Where the supervisor shows bwrap its sources: ``/src/0``, ``/src/1``, ... in the order of ``binds``."""

ROOM = "/room"
"""Where the supervisor shows bwrap the writable places that it has made itself, likewise."""


@dataclass(frozen=True, slots=True)
class Bind:
    """A part of the host shown inside. tenant: its parents are searched for planted links right before the start."""

    source: Path
    target: str
    writable: bool = False
    tenant: bool = False


def binds(spec: SandboxSpec, environment: Environment, top: Sequence[str] = ()) -> list[Bind]:
    """Return what of the host is shown, parents before children, ``/usr`` first.

    top: names at the top of the host that are directories of their own, as ``lib`` where it is not ``/usr/lib``.
    """
    shown = [
        Bind(Path("/usr"), "/usr"),
        *(Bind(Path("/") / name, f"/{name}") for name in top),
        Bind(environment.tree / "etc", "/etc"),
        *(Bind(place, str(place)) for place in environment.etc),
        Bind(environment.tree / "cellbox", str(INSIDE)),
        Bind(environment.venv / "lib", str(INSIDE_VENV / "lib")),
    ]
    if (share := environment.venv / "share").is_dir():
        shown.append(Bind(share, str(INSIDE_VENV / "share")))
    if not environment.base_under_usr:
        shown.append(Bind(environment.base, str(INSIDE_PYTHON)))
    shown += [Bind(environment.tree / "cellbox" / "empty", place) for place in environment.masked]
    if environment.libpython is not None:
        shown.append(Bind(environment.libpython, str(environment.libpython)))
    return [
        *shown,
        Bind(spec.link_dir, str(LINK), tenant=True),
        Bind(spec.user, str(USER), writable=True, tenant=True),
        Bind(spec.workspace, str(WORKSPACE), writable=True, tenant=True),
    ]


def arguments(
    shown: Sequence[Bind],
    *,
    sources: Sequence[str],
    roots: Mapping[str, str],
    writable: Sequence[Room],
    made: Sequence[str] = (),
    environment: Mapping[str, str],
    command: Sequence[str],
    seccomp_fd: int,
    info_fd: int,
) -> list[str]:
    """Return the arguments of ``bwrap``, without its name.

    sources: where bwrap finds each of ``shown``. roots: links at the top, as ``{"bin": "usr/bin"}``. made: where bwrap
    finds each of ``writable``, made already; empty: bwrap makes them, without a limit of files. environment: of
    the command, complete. seccomp_fd: open for reading, at the start of the filter. info_fd: for writing, gets the pid.
    """
    words = ["--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup"]
    words += ["--disable-userns", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--as-pid-1"]
    words += ["--uid", str(UID_INSIDE), "--gid", str(UID_INSIDE), "--hostname", "sandbox"]
    words += ["--seccomp", str(seccomp_fd), "--info-fd", str(info_fd)]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for number, room in enumerate(writable):
        if made:
            words += ["--bind", made[number], room.target]
        else:
            words += ["--perms", room.mode, "--size", str(room.bytes), "--tmpfs", room.target]
    for bind, source in zip(shown, sources, strict=True):
        words += ["--bind" if bind.writable else "--ro-bind", source, bind.target]
    for name, target in sorted(roots.items()):
        words += ["--symlink", target, f"/{name}"]
    words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    for name, value in sorted(environment.items()):
        words += ["--setenv", name, value]
    return [*words, "--", *command]


def staged(count: int, place: str = STAGE) -> list[str]:
    """Return where the supervisor shows bwrap that many sources, or that many writable places."""
    return [f"{place}/{number}" for number in range(count)]
