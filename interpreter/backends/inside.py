"""What every confined sandbox has inside, whichever backend makes it: places, writable rooms, the limits around them. Pure.

Promises: no place of ours lies inside one that a tenant can write; every writable place that is not the scope's data has a
size.
Leaves to the backends: making all of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import PurePosixPath

from sandboxd.protocol import EGRESS_SOCKET, LINK_SOCKET

from interpreter.backends.base import SandboxSpec
from interpreter.backends.boot import command, encode_config
from interpreter.backends.tenant_environment import tenant_environment

WORKSPACE = PurePosixPath("/opt/workspace")
USER = PurePosixPath("/opt/user")
LINK = PurePosixPath("/run/cellbox")
KERNEL_FILES = PurePosixPath("/run/kernels")

OURS = PurePosixPath("/opt/cellbox")
VENV = OURS / "venv"
LIB = OURS / "lib"
KERNELS = OURS / "kernels"

OWN_MEMORY_MIB = 64
"""Added to the tenant's memory for our part: boot process and sandboxd measure some 40 MiB together."""

OWN_PIDS = 48
"""Added to the tenant's processes for our part: boot process, sandboxd with its threads, and a supervisor for each kernel
and each run that goes on at the same time."""

OPEN_FILES = 4096
FILE_BYTES = 16 * 2**30
PROCESSES = 8192
"""A backstop only: the kernel counts it per uid over all sandboxes of a scope. The limit that holds is the cgroup's."""

CPU_PERIOD_US = 100_000
OOM_SCORE = 200
"""Of the first process: anything of the host's own is to be killed later."""

_KERNEL_FILES_BYTES = 16 * 2**20
_MIB = 2**20
_BYTES_PER_FILE = 4096


@dataclass(frozen=True, slots=True)
class Room:
    """A writable place in memory. mode: octal. bytes, files: how much and how many fit."""

    target: str
    mode: str
    bytes: int
    files: int


def rooms(tmp_mib: int) -> list[Room]:
    """Return the writable places beside the scope's data."""
    size = tmp_mib * _MIB
    return [
        Room("/dev/shm", "1777", size, size // _BYTES_PER_FILE),  # noqa: S108 - inside the sandbox
        Room("/tmp", "1777", size, size // _BYTES_PER_FILE),  # noqa: S108 - inside the sandbox
        Room(str(KERNEL_FILES), "0700", _KERNEL_FILES_BYTES, _KERNEL_FILES_BYTES // _BYTES_PER_FILE),
    ]


def cpu_quota_us(cpus: float) -> int:
    """Return the processor time that a sandbox gets in each ``CPU_PERIOD_US``."""
    return max(1000, math.ceil(cpus * CPU_PERIOD_US))


def boot_config(spec: SandboxSpec, *, orphan_s: float = 0.0) -> str:
    """Return the one argument of the boot process. orphan_s: see ``BootConfig``."""
    environment = tenant_environment(user=USER, venv=VENV, cpus=spec.limits.cpus, memory_mib=spec.limits.memory_mib)
    return encode_config(
        link=str(LINK / LINK_SOCKET),
        workspace=str(WORKSPACE),
        user=str(USER),
        kernels=str(KERNELS),
        runtime=str(KERNEL_FILES),
        environment={**spec.environment, **environment},
        orphan_s=orphan_s,
        egress=str(LINK / EGRESS_SOCKET) if spec.network == "proxy" else "",
    )


def boot_command(config: str) -> list[str]:
    """Return the command of the boot process."""
    return command(VENV / "bin" / "python", LIB, config)
