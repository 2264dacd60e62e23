"""The events of one execution: numbered without gaps, readable from any point on, bounded.

Promises: ``finished`` is the last event and there is exactly one; a reader that asks again with the number of the last event
it has seen loses nothing.
Leaves to http: how events travel.
"""

from __future__ import annotations

import asyncio
from typing import Any

MAX_EVENTS = 10_000
"""Of one execution. Past it only ``finished`` is added."""


class EventLog:
    """The events of one execution, in order. Each is a dict with ``seq``, ``type`` and ``execution_id``."""

    def __init__(self, execution_id: str) -> None:
        self._execution_id = execution_id
        self._events: list[dict[str, Any]] = []
        self._more = asyncio.Event()
        self.closed = False
        """Whether ``finished`` is there."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._events)

    def add(self, kind: str, **fields: Any) -> None:
        """Append an event of type ``kind``. After ``finished`` nothing is added."""
        if self.closed or (len(self._events) >= MAX_EVENTS and kind != "finished"):
            return
        self._events.append({"seq": len(self._events), "type": kind, "execution_id": self._execution_id, **fields})
        self.closed = kind == "finished"
        self._more.set()
        self._more = asyncio.Event()

    def after(self, seq: int = -1) -> list[dict[str, Any]]:
        """Return the events numbered above ``seq``, in order; -1 asks for all."""
        return self._events[max(seq + 1, 0) :]

    async def wait(self, seq: int = -1, *, wait_s: float) -> list[dict[str, Any]]:
        """Return the events numbered above ``seq``; an empty list when none came within ``wait_s``, or none will."""
        more = self._more
        if not (events := self.after(seq)) and not self.closed:
            try:
                async with asyncio.timeout(wait_s):
                    await more.wait()
            except TimeoutError:
                return []
            events = self.after(seq)
        return events
