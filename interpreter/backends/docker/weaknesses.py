"""What is wrong or weak about an engine, from what it says of itself: its version and information.

A runtime of a distribution is judged by its package: its version number stays while holes are closed in it, and its list of
changes names them.
"""

from __future__ import annotations

import contextlib
import gzip
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import gvisor

Answer = Mapping[str, Any]
Changes = Callable[[str], str]
"""Returns the list of changes of an installed package, or nothing."""

_OLDEST_API = (1, 41)
"""The first with private cgroup namespaces: Docker 20.10."""
_OLDEST_KERNEL = (5, 10)
_OLDEST_ENGINE = (25, 0)

_RUNC_CVES = ("CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881")
_RUNC_FIXED = {(1, 2): 8, (1, 3): 3}
_CONTAINERD_CVES = ("CVE-2024-25621",)
_CONTAINERD_FIXED = {(1, 7): 29, (2, 0): 7, (2, 1): 5}

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


def found(version: Answer, info: Answer, *, changes: Changes | None = None) -> list[str]:
    """Return a sentence for each weakness, for the operator."""
    return list(_found(version, info, changes or _changes))


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
    if _of_distribution(version):
        packages = (name, f"{name}-app")  # the second as Ubuntu calls it
        if any(all(cve in text for cve in cves) for text in map(changes, packages)):
            return None
    newer = ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in fixed.items())
    return (
        f"{name} {version[:60]} has known holes ({', '.join(cves)}): upgrade to {newer} or newer, or to a package of the"
        " distribution whose list of changes names them"
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
