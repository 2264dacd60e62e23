"""How much a sandbox may have and how long anything may take, in one place, so that tests can shrink it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and connections.

    per_sandbox: served at a time. waiting: of one sandbox, beyond those; past ``waiting_s`` they get 503. in_all: served at
    a time, of all sandboxes. lookups: of one sandbox at a time. head_s: from the first byte of a head to its last, and from
    a connection to its first head. idle_s: without a byte in either direction, which is also how long an origin has until
    it begins its answer, since a model or a query may think for minutes.
    """

    per_sandbox: int = 64
    waiting: int = 256
    waiting_s: float = 10.0
    in_all: int = 2_000
    lookups: int = 8
    head_s: float = 10.0
    connect_s: float = 10.0
    hello_s: float = 5.0
    idle_s: float = 300.0
