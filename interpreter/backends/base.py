"""The contract of a backend: what a sandbox needs from the host, and nothing about what runs in it.

A backend makes the confinement, starts the boot process (``sandboxd``) in it, and can end all of it from outside
without any help from inside. It knows nothing of links, kernels or executions.

What each call means at every moment:
- ``Backend.start`` returns once the boot process exists; that it works is only known when it dials the link: wait for
  that and for ``Sandbox.wait``, whichever comes first. A cancelled or failed ``start`` has left no process, cgroup or
  mount behind.
- ``Sandbox.stop`` may be called any number of times, also while another call of it runs and after the sandbox has
  ended by itself. When it returns, no process of the sandbox is left on the host.
- ``Sandbox.wait`` may be waited for by many, any number of times.
- ``Backend.adoptable`` and then ``Backend.remove_leftovers`` are called once each, after ``check`` and before the first
  ``start``, by a service that holds the lock of the data root. What was adopted is as what was started; it may end at any
  moment, and may have ended already: ``wait`` tells.
- A service may be killed at any moment. What it had started is found by the next one on its data root: each sandbox either
  whole, and adoptable, or as a leftover to be removed. What nobody adopts ends by itself after the idle time.
- ``Backend.aclose`` lets go of what runs: sandboxes that were not stopped before go on for the next service to adopt, where
  the backend can do that, and end where it cannot. Nobody is told of their end any more: a ``wait`` must be cancelled.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NewType

SandboxId = NewType("SandboxId", str)
"""16 hexadecimal digits, unguessable; names directories and cgroups, so socket paths stay under 108 bytes."""

Network = Literal["none", "proxy"]
"""``proxy``: no network either, but sandboxd carries connections to the socket ``egress`` in the link directory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the tenant gets, per sandbox. cpus: cores, fractions allowed. tmp_mib: of each writable tmpfs."""

    memory_mib: int = 1024
    cpus: float = 1.0
    pids: int = 256
    tmp_mib: int = 512


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to start.

    uid, gid: kernel ids of the scope, already the owner of ``workspace`` and ``user``; None: the service's own.
    workspace, user: host directories to be ``/opt/workspace`` and ``/opt/user`` inside (may be the same one). They
    exist, and no tenant can write their parents. link_dir: service-owned host directory, mode 755, seen read-only at
    ``/run/cellbox``; the sockets of link and proxy lie in it and nothing else.
    environment: of the tenant's programs, beyond what every sandbox has; what the backend itself sets (paths, threads)
    wins.
    """

    id: SandboxId
    uid: int | None
    gid: int | None
    workspace: Path
    user: Path
    link_dir: Path
    limits: Limits = field(default_factory=Limits)
    environment: Mapping[str, str] = field(default_factory=dict)
    network: Network = "none"


@dataclass(frozen=True, slots=True)
class Stats:
    """memory_bytes: in use now, None where the host does not count. oom_kills: since the start. processes: now."""

    memory_bytes: int | None
    oom_kills: int
    processes: int | None


@dataclass(frozen=True, slots=True)
class SandboxExit:
    """How a sandbox ended. oom: its memory limit killed something in it. status: exit code, 128+n for signal n.

    said: the first of what the boot process wrote to its stdout and stderr, for our log only. The tenant may have
    written it: escape and cut.
    """

    status: int | None
    oom: bool = False
    said: str = ""


class BackendError(Exception):
    """The backend could not do it. The text is for the caller: one sentence, without host paths."""


class BackendUnavailable(BackendError):
    """This host cannot serve with this backend now. The text says what is wrong and what to do or type."""


class Sandbox(abc.ABC):
    """A started sandbox."""

    id: SandboxId

    @abc.abstractmethod
    async def stop(self) -> None:
        """End all of it; return when no process is left. Raises BackendError if one is still there after 5 s."""

    @abc.abstractmethod
    async def wait(self) -> SandboxExit:
        """Return how it ended, once it has."""

    @abc.abstractmethod
    def stats(self) -> Stats:
        """Read the counters. Cheap (a few small files), never raises: an ended sandbox gives its last numbers."""

    def oom_kills(self) -> int:
        """Read that one counter, which each execution asks for; otherwise as ``stats``."""
        return self.stats().oom_kills


class Backend(abc.ABC):
    """Makes sandboxes."""

    name: ClassVar[Literal["docker", "bubblewrap", "process", "fake"]]
    single_tenant: bool = False
    """True where only one scope may be served, since scopes could not be kept apart."""
    limits_hold: bool = True
    """False where memory, processes and CPU of a sandbox as a whole are not limited. Known after ``check``."""

    spares: bool = True
    """False where a sandbox that runs does not keep its directories when they are renamed on the host."""

    adopts: bool = True
    """False where sandboxes end with the service."""

    def is_apart(self) -> bool:
        """Whether what this process mounts is seen by sandboxes only below a mount that is shared with the host."""
        return False

    @abc.abstractmethod
    async def check(self) -> list[str]:
        """Prove that sandboxes can be made here; return warnings for the operator. Raises BackendUnavailable."""

    @abc.abstractmethod
    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox. Raises BackendError or BackendUnavailable."""

    @abc.abstractmethod
    async def adoptable(self) -> list[Sandbox]:
        """Return the running sandboxes that an earlier service on this data root left, and those that ended since it did.

        Of the latter only those whose end was noted, until they are stopped or removed. Raises BackendError where they could
        not be looked for.
        """

    @abc.abstractmethod
    async def remove_leftovers(self, keep: frozenset[SandboxId] = frozenset()) -> int:
        """End and remove what an earlier service on this data root left behind; return how many sandboxes that were.

        keep: adopted ones, which are left alone.
        """

    def notices(self) -> list[str]:
        """Return what the operator should know and is no weakness, as ``check`` found it."""
        return []

    def hanging(self) -> int:
        """Return how many sandboxes have ended, and what ran them does not remove what is left of them."""
        return 0

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Let go of what runs, and free what the backend holds. May be called twice."""
