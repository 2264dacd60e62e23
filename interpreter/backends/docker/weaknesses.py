"""What is wrong or weak about an engine and its runtime: from what it says of itself, its version and information, and from
what the runtime's program says, which the engine does not ask.

A runtime of a distribution is judged by its package: its version number stays while holes are closed in it, and its list of
changes names them. Both are looked for on this machine, so a service in a container has to be shown them.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import gvisor

Answer = Mapping[str, Any]
Changes = Callable[[str], str]
"""Returns the list of changes of an installed package; nothing where it is not to be seen."""
Version = Callable[[str], str]
"""Returns what a program says of its version; nothing where it is not to be seen."""

_OLDEST_API = (1, 41)
"""The first with private cgroup namespaces: Docker 20.10."""
_OLDEST_KERNEL = (5, 10)
_OLDEST_ENGINE = (25, 0)

_RUNC_CVES = ("CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881")
_RUNC_FIXED = {(1, 2): 8, (1, 3): 3}
_CONTAINERD_CVES = ("CVE-2024-25621",)
_CONTAINERD_FIXED = {(1, 7): 29, (2, 0): 7, (2, 1): 5}
_GVISOR_FIXED = {
    "CVE-2024-10026": 20241028,
    "CVE-2024-10603": 20241028,
    "CVE-2025-2713": 20250319,
    # Its record, of 2026-09-25, names a commit and no release: the first one made after that day.
    "CVE-2026-96812": 20260928,
}
"""Hole -> the first release without it, a day, as the record of the hole names it. CVE-2023-7258 is not one here: it takes root
and mounts in the sandbox, and ends nothing but that sandbox."""
_ASK_S = 5.0

_LIMITS = {
    "MemoryLimit": "memory",
    "SwapLimit": "swap (where cgroups are of version 1, the kernel's option `swapaccount=1` switches that on)",
    "PidsLimit": "processes",
    "CpuCfsQuota": "processor time",
}


def refusal(version: Answer, info: Answer, *, runtime: str, network: str = "none") -> str | None:
    """Return why sandboxes cannot be made with this engine, and what to do; None: they can."""
    if info.get("OSType", "linux") != "linux":
        return "the container engine does not run Linux containers"
    if _numbers(str(version.get("ApiVersion"))) < _OLDEST_API:
        return "the container engine is too old: Docker 20.10 or newer is needed"
    options = [str(option).partition(",")[0] for option in info.get("SecurityOptions") or []]
    if "name=rootless" in options or "name=userns" in options:
        return (
            "the container engine gives containers other user ids than the host's (rootless, or userns-remap), so that the"
            " scopes' files would not be theirs: use an engine that does not"
        )
    if missing := [what for key, what in _LIMITS.items() if not info.get(key)]:
        return f"the container engine cannot limit {', '.join(missing)} on this host"
    return _runtime(info, runtime, network)


def _runtime(info: Answer, name: str, network: str) -> str | None:
    """Return why the engine cannot use the runtime of that name."""
    if name == gvisor.NAME:
        cause = gvisor.wrong(info, network=network)
        return cause and gvisor.refusal(cause, network=network)
    if name and name not in (info.get("Runtimes") or {}):
        return (
            f"the container engine does not know the runtime {name} (SANDBOX_RUNTIME): register it under `runtimes` in"
            " /etc/docker/daemon.json, then: systemctl reload docker"
        )
    return None


def found(
    version: Answer,
    info: Answer,
    *,
    runtime: str = "",
    here: bool = True,
    changes: Changes | None = None,
    program: Version | None = None,
) -> list[str]:
    """Return a sentence for each weakness, for the operator. runtime: of the sandboxes; empty for the engine's default. here:
    whether the engine is on this machine; the programs and packages of another one are not to be seen.

    Blocking, as long as a program takes to tell its version.
    """
    changes = changes or (_changes if here else _unseen)
    program = program or (_program if here else _unseen)
    sentences = list(_found(version, info, changes))
    if (runtime or info.get("DefaultRuntime")) == gvisor.NAME:
        path = str(((info.get("Runtimes") or {}).get(gvisor.NAME) or {}).get("path") or gvisor.NAME)
        if sentence := _holes_of_gvisor(path, program(path), changes):
            sentences.append(sentence)
    return sentences


def _found(version: Answer, info: Answer, changes: Changes) -> Iterator[str]:
    parts = {part.get("Name"): part for part in version.get("Components") or []}
    for name, cves, fixed in (
        ("runc", _RUNC_CVES, _RUNC_FIXED),
        ("containerd", _CONTAINERD_CVES, _CONTAINERD_FIXED),
    ):
        if name == "runc" and info.get("DefaultRuntime", "runc") != "runc":
            continue
        if name not in parts:
            yield f"the container engine does not say which version of {name} it uses"
        elif sentence := _hole(name, parts[name], cves, fixed, changes):
            yield sentence
    engine = str(version.get("Version", ""))
    if not _of_distribution(engine) and _numbers(engine) < _OLDEST_ENGINE:
        yield f"the container engine {engine} gets no fixes any more: upgrade it to {_OLDEST_ENGINE[0]} or newer"
    kernel = str(version.get("KernelVersion", ""))
    if _numbers(kernel) < _OLDEST_KERNEL:
        yield f"the kernel {kernel} is old: upgrade to {_OLDEST_KERNEL[0]}.{_OLDEST_KERNEL[1]} or newer"
    seccomp = [str(option) for option in info.get("SecurityOptions") or [] if str(option).startswith("name=seccomp")]
    if not seccomp or "unconfined" in seccomp[0]:
        yield "the container engine has no system call filter of its own (seccomp); that of the sandboxes stays"


def _hole(
    name: str, part: Answer, cves: tuple[str, ...], fixed: Mapping[tuple[int, int], int], changes: Changes
) -> str | None:
    said = str(part.get("Version", ""))
    package = str((part.get("Details") or {}).get("GitCommit") or "")
    version = package if _of_distribution(package) else said
    major, minor, patch, *_ = (*_numbers(said), 0, 0, 0)
    if (major, minor) > max(fixed) or patch >= fixed.get((major, minor), patch + 1):
        return None
    # The second as Ubuntu calls it.
    listed = _listed((name, f"{name}-app"), changes) if _of_distribution(version) else None
    newer = ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in fixed.items())
    return _sentence(f"{name} {version[:60]}", cves, listed, newer)


def _holes_of_gvisor(path: str, said: str, changes: Changes) -> str | None:
    """Return what is weak about gVisor's program. said: its version, as ``release-20250319.0`` or ``0.0~20221219.0``."""
    newest = max(_GVISOR_FIXED.values())
    made = re.search(r"\b(20\d{6})(?:\.\d+)?", said)
    if made is None:
        return (
            f"the version of the runtime {gvisor.NAME} is not to be seen here: see that `{path} --version` on the engine's"
            f" host says {newest} or newer, and show the service that program"
        )
    version = int(made[1])
    cves = tuple(cve for cve, fixed in _GVISOR_FIXED.items() if version < fixed)
    is_package = f"~{made[0]}" in said
    return _sentence(f"gVisor {made[0]}", cves, _listed((gvisor.NAME,), changes) if is_package else None, f"{newest}.0")


def _listed(packages: tuple[str, ...], changes: Changes) -> str:
    """Return the lists of changes of what is installed of these packages."""
    return "\n".join(filter(None, map(changes, packages)))


def _sentence(what: str, cves: tuple[str, ...], listed: str | None, newer: str) -> str | None:
    """Return the sentence for holes that are not closed. listed: changes of the package, if it is of a distribution."""
    if listed:
        cves = tuple(cve for cve in cves if cve not in listed)
    if not cves:
        return None
    if listed == "":
        return (
            f"{what} may have known holes ({', '.join(cves)}); whether its distribution has closed them is in the package's list"
            f" of changes, which is not to be seen here: upgrade to {newer} or newer, or show the service that list"
        )
    return (
        f"{what} has known holes ({', '.join(cves)}): upgrade to {newer} or newer, or to a package of the distribution whose"
        " list of changes names them"
    )


def _of_distribution(version: str) -> bool:
    """Whether a version is that of a distribution's package, as ``1.1.5+ds1-1+deb12u1``."""
    return re.search(r"\+ds|\+dfsg|~ds|ubuntu|\+deb|~deb|\.(el|fc|amzn)\d", version) is not None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _changes(package: str) -> str:
    """Read the list of changes of a package of Debian's kind. Blocking, milliseconds."""
    for name in ("changelog.Debian.gz", "changelog.gz"):
        with contextlib.suppress(OSError, EOFError):
            return gzip.decompress(Path("/usr/share/doc", package, name).read_bytes()).decode(errors="replace")
    return ""


def _program(path: str) -> str:
    """Ask a program for its version. Blocking, milliseconds."""
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return told.stdout.partition("\n")[0]


def _unseen(_name: str) -> str:
    return ""
