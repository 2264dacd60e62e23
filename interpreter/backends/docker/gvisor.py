"""gVisor as the runtime of containers: how the engine has to know it, and which limit of processes is whose. Pure.

A container of gVisor has a kernel of its own, a program on the host that takes threads for what runs inside. At the limit of
its cgroup that kernel crashes, so the limit there is a backstop; the one that holds is the inner kernel's, which counts the
processes of one sandbox only.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from typing import Any

NAME = "runsc"
ARGUMENTS = ("--host-uds=open", "--network=none")
"""The first lets sandboxes connect to their link, without which nothing runs; the second keeps them from the host's network."""

_LET_CONNECT = ("host-uds=open", "host-uds=all", "fsgofer-host-uds", "fsgofer-host-uds=true")
"""The last two: as releases before 2022-12 call it."""

_FILE = "/etc/docker/daemon.json"
_RELOAD = "systemctl reload docker"
_LEAST_THREADS = 2048
_THREADS_EACH = 4
"""Of the host for each inside: what runs it, and up to three of the inner kernel's, which waits for the host in threads."""


def host_pids(processes: int) -> int:
    """Return the limit on the host for a sandbox that may have so many processes inside."""
    return _LEAST_THREADS + _THREADS_EACH * processes


def wrong(info: Mapping[str, Any], *, network: str) -> str | None:
    """Return what is wrong with its registration, from the engine's information about itself; None: nothing."""
    known = info.get("Runtimes") or {}
    if NAME not in known:
        return f"the engine does not know the runtime {NAME} (SANDBOX_RUNTIME)"
    arguments = [str(each).lstrip("-") for each in (known[NAME] or {}).get("runtimeArgs") or []]
    if not any(each in _LET_CONNECT for each in arguments):
        return f"{NAME} is registered without {ARGUMENTS[0]}, so that sandboxes cannot reach the service"
    if network != "none" and "network=none" in arguments:
        return f"{NAME} is registered with {ARGUMENTS[1]}, so that SANDBOX_NETWORK={network} would lead nowhere"
    return None


def how_to_register(*, network: str) -> list[str]:
    """Return what to do, line by line, exactly. network: as the setting says."""
    path = shutil.which(NAME)
    install = [] if path else [f"install gVisor's program {NAME} (Debian: `apt-get install {NAME}`), then"]
    arguments = [each for each in ARGUMENTS if network == "none" or each != "--network=none"]
    registration = {"runtimes": {NAME: {"path": path or f"/usr/bin/{NAME}", "runtimeArgs": arguments}}}
    return [*install, f"put into {_FILE}:", json.dumps(registration), _RELOAD]


def refusal(cause: str, *, network: str) -> str:
    """Return a sentence for whoever starts the service."""
    *lines, reload = how_to_register(network=network)
    return f"{cause}: {' '.join(lines)} and then: {reload}"


def connects(socket: str) -> list[str]:
    """Return a command that succeeds inside a sandbox if it can connect to ``socket``."""
    return ["/usr/bin/python3", "-I", "-c", f"import socket; socket.socket(socket.AF_UNIX).connect({socket!r})"]
