"""TCP ports for kernels that can listen nowhere else.

Such a kernel is told its ports and binds them itself, some time later, so nothing can reserve them for it. They are taken at
random from below the range out of which connections get theirs: no connection of the tenant ever has one by chance, and none
of ours can meet itself on one. Who else takes one meanwhile has done so on purpose, or won a lottery; then the kernel ends, and
``taken`` tells why.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Sequence

LOOPBACK = "127.0.0.1"

_RANGE = range(10_000, 32_768)
"""Up to where Linux takes the ports of connections from, unless told otherwise."""

_MOST_PROBES = 1_000


def free(count: int) -> tuple[int, ...]:
    """Return that many ports of the loopback that nobody has. Raises OSError."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_RANGE, _MOST_PROBES):
        if not taken([port]):
            found.append(port)
            if len(found) == count:
                return tuple(found)
    raise OSError(errno.EADDRINUSE, "no port is free")


def taken(ports: Sequence[int]) -> bool:
    """Whether one of these cannot be had."""
    for port in ports:
        try:
            with socket.socket() as probe:
                probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False
