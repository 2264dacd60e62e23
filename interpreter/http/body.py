"""The body of one request while it arrives, within its own limit and a budget that all large bodies share.

Promises: what is kept is at most ``limit`` bytes for a request and ``BodyBudget.limit`` for all together, small bodies aside;
what was taken from the budget is given back once, whatever happens to the request.
"""

from __future__ import annotations

from dataclasses import dataclass

from interpreter.errors import BodyTooLarge
from interpreter.http.errors import TooManyBodies

SMALL_BYTES = 64 * 1024
"""Bodies up to here are outside the budget: one caller's large bodies must not shut out everybody's small ones, and the
number of connections bounds these."""


@dataclass(slots=True)
class BodyBudget:
    """Bytes of large bodies that may be held at once, until their requests have been answered."""

    limit: int = 256 * 2**20
    used: int = 0


class Body:
    """The body of one request. limit: in bytes."""

    def __init__(self, limit: int, budget: BodyBudget) -> None:
        self._limit = limit
        self._budget = budget
        self._taken = 0
        self._dropped = False
        self.received = 0
        """Bytes that have arrived, kept or not."""
        self.data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Keep ``chunk``. Raises BodyTooLarge, TooManyBodies."""
        self.received += len(chunk)
        if self._dropped:
            return
        if self.received > self._limit:
            raise too_large(self._limit)
        wanted = self.received if self.received > SMALL_BYTES else 0
        if self._budget.used + wanted - self._taken > self._budget.limit:
            raise TooManyBodies("As many large bodies as there is room for are being served.", retry_after_s=1.0)
        self._budget.used += wanted - self._taken
        self._taken = wanted
        self.data += chunk

    def drop(self) -> None:
        """Keep nothing of it, and nothing of what may still come. May be called twice."""
        self._dropped = True
        self.data = bytearray()
        self._budget.used -= self._taken
        self._taken = 0


def too_large(limit: int) -> BodyTooLarge:
    """Return the error for a body over ``limit`` bytes."""
    return BodyTooLarge(f"The body is over {limit} bytes.")
