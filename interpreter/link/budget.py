"""How much a sandbox may send that nobody waits for, before the service reads it more slowly.

Plain code that is told the time.
"""

from __future__ import annotations

BYTES_PER_UNIT = 16 * 1024


class Budget:
    """A bucket of units that fills at ``per_s`` units a second up to ``burst``. A frame costs one, and one per 16 KiB."""

    def __init__(self, *, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._units = burst
        self._at = now

    def charge(self, size: int, now: float) -> float:
        """Take the cost of a frame of ``size`` bytes; return the seconds to stop reading for, 0 within the budget."""
        self._units = min(self._burst, self._units + (now - self._at) * self._per_s) - 1 - size / BYTES_PER_UNIT
        self._at = now
        return max(0.0, -self._units / self._per_s)
