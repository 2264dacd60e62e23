"""How kernels and times look in listings, as the wire contract has them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from interpreter.sandboxes.kernels import Kernel


def at(timestamp: float) -> str:
    """Return seconds since 1970 as RFC 3339 in UTC."""
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
