"""What the engine is told to make: the JSON of a container. Pure.

Promises: the same arguments give the same JSON; no destination of a mount lies inside a place that a tenant can write; a bind
is a structured object with private propagation; no name of a scope or session is in it.
Leaves to backend.py: checking the sources, starting, reading back what the engine made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interpreter.backends import inside
from interpreter.backends.base import Limits, SandboxId, SandboxSpec
from interpreter.backends.boot import environment_of_boot

from . import gvisor

INSTANCE = "org.cellbox.instance"
SANDBOX = "org.cellbox.sandbox"
SCOPE_UID = "org.cellbox.scope-uid"

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Place:
    """What is the same for all sandboxes of a service.

    instance: of the service, hexadecimal. runtime: of the engine; empty for its default. network: ``none`` or a network of
    the engine.
    """

    instance: str
    image: str
    runtime: str = ""
    network: str = "none"


@dataclass(frozen=True, slots=True)
class Bind:
    """A part of the host shown inside. tenant: the scope owns it; else the service does."""

    source: Path
    target: str
    writable: bool = False
    tenant: bool = False


def name(place: Place, sandbox: SandboxId) -> str:
    """Return the name of the container of a sandbox."""
    return f"cellbox-{place.instance}-{sandbox}"


def binds(spec: SandboxSpec, accounts: Accounts) -> list[Bind]:
    """Return what of the host is shown."""
    return [
        Bind(accounts.passwd, "/etc/passwd"),
        Bind(accounts.group, "/etc/group"),
        Bind(spec.link_dir, str(inside.LINK)),
        Bind(spec.user, str(inside.USER), writable=True, tenant=True),
        Bind(spec.workspace, str(inside.WORKSPACE), writable=True, tenant=True),
    ]


def container(
    spec: SandboxSpec, place: Place, shown: Sequence[Bind], command: Sequence[str], *, uid: int, gid: int
) -> dict[str, Any]:
    """Return the body of the engine's call that creates the container."""
    return {
        "Image": place.image,
        # As entry point, so that nothing of the image's own is called or added.
        "Entrypoint": list(command),
        "Cmd": [],
        "Env": [f"{key}={value}" for key, value in sorted(environment_of_boot().items())],
        "User": f"{uid}:{gid}",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "StopSignal": "SIGKILL",  # an engine that stops need not wait for a first process that listens to no other
        "Tty": False,
        "OpenStdin": False,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "Healthcheck": {"Test": ["NONE"]},  # one of the image would be run by the engine beside the tenant's programs
        "Labels": {INSTANCE: place.instance, SANDBOX: str(spec.id), SCOPE_UID: str(uid)},
        "HostConfig": _host(spec.limits, place, shown, uid=uid, gid=gid),
    }


def _host(limits: Limits, place: Place, shown: Sequence[Bind], *, uid: int, gid: int) -> dict[str, Any]:
    host: dict[str, Any] = {
        "AutoRemove": False,
        "Binds": [],
        "CapAdd": [],
        "CapDrop": ["ALL"],
        "CgroupnsMode": "private",
        "Devices": [],
        "Init": False,
        "IpcMode": "private",
        "LogConfig": {"Type": "none", "Config": {}},
        "Mounts": [_mount(bind) for bind in shown],
        "NetworkMode": place.network,
        "OomScoreAdj": inside.OOM_SCORE,
        "Privileged": False,
        "PublishAllPorts": False,
        "ReadonlyRootfs": True,
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "SecurityOpt": ["no-new-privileges:true"],
        "Tmpfs": {room.target: _tmpfs(room, uid, gid) for room in inside.rooms(limits.tmp_mib)},
        **limits_of(limits, place.runtime),
    }
    if place.runtime:
        host["Runtime"] = place.runtime
    if place.network == "none":
        host["Dns"] = ["127.0.0.1"]  # else a copy of the host's is shown
        host["DnsSearch"] = ["."]
    return host


def limits_of(limits: Limits, runtime: str = "") -> dict[str, Any]:
    """Return the part of the JSON that limits a sandbox; the engine has to say the same when it is asked."""
    memory = (limits.memory_mib + inside.OWN_MEMORY_MIB) * _MIB
    pids, nproc = limits.pids + inside.OWN_PIDS, inside.PROCESSES
    if runtime == gvisor.NAME:
        pids, nproc = gvisor.host_pids(pids), pids
    return {
        "CpuPeriod": inside.CPU_PERIOD_US,
        "CpuQuota": inside.cpu_quota_us(limits.cpus),
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": pids,
        "Ulimits": [
            _ulimit("core", 0),
            _ulimit("fsize", inside.FILE_BYTES),
            _ulimit("nofile", inside.OPEN_FILES),
            _ulimit("nproc", nproc),
        ],
    }


def ignored(wanted: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    """Return the names of what ``wanted`` of a container and is not so in ``made``, the engine's answer about it.

    Both are a ``HostConfig``. Of a list the order does not count; what the engine adds by itself does not either, but for
    privileges.
    """
    names = [key for key, value in wanted.items() if _plain(made.get(key)) != _plain(value)]
    added = ("Binds", "CapAdd", "Devices", "DeviceRequests", "PidMode", "UTSMode", "VolumesFrom", "PortBindings")
    names += [key for key in added if made.get(key) and made[key] != wanted.get(key)]
    return sorted(dict.fromkeys(names))


def kernel_limits(limits: Limits, runtime: str = "") -> dict[str, str]:
    """Return what the files of the container's cgroups have to say, of either version, where they are."""
    wanted = limits_of(limits, runtime)
    memory, pids = str(wanted["Memory"]), str(wanted["PidsLimit"])
    quota, period = str(wanted["CpuQuota"]), str(wanted["CpuPeriod"])
    return {
        "memory.limit_in_bytes": memory,
        "memory.memsw.limit_in_bytes": memory,
        "memory.max": memory,
        "memory.swap.max": "0",
        "pids.max": pids,
        "cpu.cfs_quota_us": quota,
        "cpu.cfs_period_us": period,
        "cpu.max": f"{quota} {period}",
    }


def _mount(bind: Bind) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": str(bind.source),
        "Target": bind.target,
        "ReadOnly": not bind.writable,
        "BindOptions": {"Propagation": "rprivate"},
    }


def _tmpfs(room: inside.Room, uid: int, gid: int) -> str:
    words = ["rw", "nosuid", "nodev", "exec", f"size={room.bytes}", f"nr_inodes={room.files}", f"mode={room.mode}"]
    if room.mode == "0700":
        words += [f"uid={uid}", f"gid={gid}"]
    return ",".join(words)


def _ulimit(what: str, most: int) -> dict[str, Any]:
    return {"Name": what, "Soft": most, "Hard": most}


def _plain(value: Any) -> Any:
    """Return ``value`` in a form in which what means the same is the same."""
    if isinstance(value, dict):
        return {key: plain for key, each in value.items() if (plain := _plain(each))} or None
    if isinstance(value, list):
        return sorted((_plain(each) for each in value), key=repr) or None
    return value or None


@dataclass(frozen=True, slots=True)
class Accounts:
    """Files that a container has as ``/etc/passwd`` and ``/etc/group``: the names of its ids."""

    passwd: Path
    group: Path


def passwd(uid: int, gid: int) -> str:
    """Return the text of ``/etc/passwd`` for a sandbox whose programs have these ids."""
    return (
        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
        f"sandbox:x:{uid}:{gid}:sandbox:{inside.USER}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )


def group(gid: int) -> str:
    """Return the text of ``/etc/group`` for it."""
    return f"root:x:0:\nsandbox:x:{gid}:\nnogroup:x:65534:\n"
