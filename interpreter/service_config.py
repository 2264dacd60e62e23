"""What the service is made with: small values, of which each part gets its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from interpreter.backends.base import Limits
from interpreter.egress.ways import EgressConfig


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """What the service needs to know. Seconds and bytes as named.

    egress: None: there is no way out.
    uid, gid: of every scope, or None for one per scope from ``uid_base`` up. environment: of the tenant's programs, beyond
    what the backend gives them. network: whether sandboxes have one. quota_mib: disk of a scope; None: no limit.
    """

    data_root: Path
    link_dir: Path | None = None
    limits: Limits = field(default_factory=Limits)
    environment: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    uid: int | None = None
    gid: int | None = None
    uid_base: int = 200_000
    quota_mib: int | None = None
    idle_ttl_s: float = 600.0
    max_sessions: int = 100
    pool: int = 0
    max_concurrent: int = 200
    max_queue: int = 32
    max_kernels: int = 8
    grace_s: float = 2.0
    output_bytes: int = 1024 * 1024
    result_bytes: int = 16 * 1024 * 1024
    spill_bytes: int = 64 * 1024 * 1024
    result_ttl_s: float = 600.0
    drain_timeout_s: float = 30.0
    start_timeout_s: float = 30.0
    egress: EgressConfig | None = None
