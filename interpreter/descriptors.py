"""Every descriptor that the service may hold at once: who holds them, how many each, and how many of those there can be.

Promises: what ``shares`` allows never takes more than may be open, so that a newcomer is refused (429) before anybody meets a
limit of the host; sandboxes come before connections, and a few connections before sandboxes. Whoever makes something that holds
a descriptor adds it to ``holders``; ``cellbox doctor`` counts by the same table.
Leaves to http/accept.py, shortage.py: what is told where the host takes descriptors away later.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass

from interpreter import threads
from interpreter.files import service as files
from interpreter.http.files import MAX_FILES
from interpreter.http.server import FEWEST_CONNECTIONS, ConnectionLimits
from interpreter.sandboxes.starting import STARTS
from interpreter.wording import counted

SANDBOX = 3
"""Its link, its supervisor's pidfd and the pipe of its reports; whatever runs in it. An execution takes none: what it writes is
kept in files that are open while something is added or read, one of all at a time (executions/spool.py)."""

CONNECTION = 3
"""Itself, and while a file is sent, the file and a second one of itself."""

OPEN_FILES = 65_536
"""As many as a start asks for where it needs fewer and the host allows them."""

_AT_START = 8
"""Open before anything of ours is; more was inherited, and is somebody else's."""

_OF_DARWIN = 10_240
"""What it lets a process have, though it says that there is no limit."""

_ENGINE_CALLS = 48
"""At once, see backends/docker/engine.py."""


class TooFewDescriptors(Exception):
    """The service cannot work with so few. Text: a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class Holder:
    """each: descriptors of one, those in passing included. most: how many of them there are at once."""

    who: str
    each: int
    most: int = 1


@dataclass(frozen=True, slots=True)
class Shares:
    """How many there may be. needed: descriptors for all that was asked for. reduced: what was not granted, in a sentence."""

    sandboxes: int
    connections: int
    needed: int
    reduced: str = ""

    def limits(self) -> ConnectionLimits:
        """Return the limits of connections."""
        usual = ConnectionLimits()
        return ConnectionLimits(
            max_connections=self.connections, max_per_address=min(usual.max_per_address, self.connections)
        )


def holders(*, sandboxes: int, connections: int, backend: str) -> Iterator[Holder]:
    """Yield all who hold descriptors."""
    yield Holder("standard streams, event loop, lock, records, listeners and their reserves", 20)
    yield Holder("the event loop, in passing: long output, a kept answer, a caller who is refused", 4)
    yield Holder("threads that start and end sandboxes, write answers and look at the host", 8, threads.COUNT)
    yield Holder("threads that work on files of tenants", 12, files.THREADS + 1)
    yield Holder("uploads", 3, files.MAX_UPLOADS)
    yield Holder("the directories of one form's files, while they get their names", 1, MAX_FILES)
    yield Holder("archives that are sent", 9, files.MAX_ARCHIVES)
    yield Holder("sandboxes that are started, the one that proves the backend among them", 8, STARTS + 1)
    yield Holder("the way out: the egress process and the link to it, its policies, the sandbox that is asked", 16)
    if backend == "docker":
        yield Holder("calls of the engine, and the one that follows its events", 2, _ENGINE_CALLS + 1)
    yield Holder("sandboxes", SANDBOX, sandboxes)
    yield Holder("connections", CONNECTION, connections)


def needed(*, sandboxes: int, connections: int, backend: str) -> int:
    """Return how many descriptors that takes in all."""
    every = holders(sandboxes=sandboxes, connections=connections, backend=backend)
    return sum(holder.each * holder.most for holder in every)


def shares(allowed: int, *, sandboxes: int, backend: str) -> Shares:
    """Return how many sandboxes, of so many that are wanted, and connections there may be with ``allowed`` descriptors.

    Raises TooFewDescriptors where not even one sandbox and a few connections fit.
    """
    wanted = ConnectionLimits().max_connections
    all_of_it = needed(sandboxes=sandboxes, connections=wanted, backend=backend)
    remedy = f"Allow {all_of_it} (`ulimit -Hn`, LimitNOFILE= of the unit), or lower SANDBOX_MAX_SESSIONS."
    room = allowed - needed(sandboxes=0, connections=FEWEST_CONNECTIONS, backend=backend)
    if room < SANDBOX:
        least = needed(sandboxes=1, connections=FEWEST_CONNECTIONS, backend=backend)
        raise TooFewDescriptors(
            f"Only {allowed} files may be open here, and the least to serve with is {least}. {remedy}"
        )
    fit = min(sandboxes, room // SANDBOX)
    connections = min(wanted, FEWEST_CONNECTIONS + (room - fit * SANDBOX) // CONNECTION)
    given = []
    if fit < sandboxes:
        given.append(f"{counted(fit, 'sandbox')} instead of SANDBOX_MAX_SESSIONS={sandboxes}")
    if connections < wanted:
        given.append(f"{connections} connections instead of {wanted}")
    reduced = f"only {allowed} files may be open here, so there are {' and '.join(given)}. {remedy}" if given else ""
    return Shares(fit, connections, all_of_it, reduced)


def allow(wanted: int) -> int:
    """Have this process allowed ``wanted`` descriptors, or as many as the host lets it; return how many are ours to use."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(wanted, OPEN_FILES)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    for limit in (most, _OF_DARWIN):
        if limit > soft:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                soft = limit
    return soft - max(0, _open_now() - _AT_START)


def _open_now() -> int:
    return len(os.listdir("/dev/fd")) - 1  # the one that lists them
