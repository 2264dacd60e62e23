"""What an execution was refused on its way out: counted, and bounded whatever it tries. Pure."""

from __future__ import annotations

from typing import Any

MOST = 100
"""Different hosts, ports and reasons; further ones are counted as one, without a name."""


class Denials:
    """The refusals of one execution."""

    __slots__ = ("_counts", "_further")

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, str], int] = {}
        self._further = 0

    def add(self, host: str, port: int, reason: str) -> None:
        """Count one."""
        key = (host, port, reason)
        if key in self._counts or len(self._counts) < MOST:
            self._counts[key] = self._counts.get(key, 0) + 1
        else:
            self._further += 1

    def listed(self) -> list[dict[str, Any]]:
        """Return them as an answer has them, in the order of their first coming."""
        found: list[dict[str, Any]] = [
            {"host": host, "port": port, "reason": reason, "count": count}
            for (host, port, reason), count in self._counts.items()
        ]
        if self._further:
            found.append({"host": "", "port": 0, "reason": "further", "count": self._further})
        return found
