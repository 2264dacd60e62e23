"""How kernels and times look in listings, as the wire contract has them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from interpreter.backends.base import Stats
from interpreter.sandboxes.kernels import Kernel
from interpreter.sandboxes.live import Live
from interpreter.scopes.images import Usage


def at(timestamp: float) -> str:
    """Return seconds since 1970 as RFC 3339 in UTC."""
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def scope(name: str, usage: Usage | None, egress: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entry of one scope. usage: None where it has no quota. egress: None where there is no way out."""
    return {"scope": name, "egress": egress} | (
        {} if usage is None else {"disk_used_bytes": usage.used, "disk_limit_bytes": usage.limit}
    )


def kernel(row: Kernel) -> dict[str, Any]:
    """Return the entry of one kernel. One that has not started yet has no times."""
    return {
        "language": row.name.language,
        "context": row.name.context,
        "state": "busy" if row.running is not None else "idle",
        "generation": row.generation or None,
        "execution_count": row.executions,
        "started_at": at(row.started_at) if row.generation else None,
        "last_used_at": at(row.used_at) if row.generation else None,
    }


def sandbox(
    live: Live,
    stats: Stats | None,
    kernels: Sequence[Kernel],
    *,
    backend: str,
    leased: bool,
    idle_s: float,
    expires_s: float | None,
) -> dict[str, Any]:
    """Return the entry of one sandbox. idle_s: since it was last used. expires_s: after that; None: it does not."""
    used_at = time.time() - idle_s
    return {
        "session": live.row.key.session,
        "state": "starting" if live.row.phase == "starting" else "busy" if leased else "idle",
        "backend": backend,
        "started_at": at(live.started_at.timestamp()),
        "last_used_at": at(used_at),
        "expires_at": None if expires_s is None else at(used_at + expires_s),
        "kernels": [kernel(each) for each in kernels],
        "memory_bytes": None if stats is None else stats.memory_bytes,
    }
