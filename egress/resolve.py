"""Names to addresses, in threads, since the system's resolver blocks.

Promises: one resolution of one host per call, by the system's resolver; a caller that is cancelled or has waited long enough
goes on at once, while its thread is busy until the resolver answers. ``Unresolved`` is raised, or addresses are returned.
Leaves to gate.py: how many lookups one sandbox may have at a time. Leaves to policy.py: which addresses may be used.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from egress.names import Host

_THREADS = 64
_MAX_ADDRESSES = 16


class Unresolved(Exception):
    """The host has no address, or its resolver cannot say."""


class Resolver(Protocol):
    """Where addresses come from."""

    async def resolve(self, host: Host) -> list[bytes]:
        """Return the addresses of a name, packed, in the order in which they are to be tried. Raises Unresolved."""


class SystemResolver:
    """``getaddrinfo`` of the host: its resolver, its hosts file."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolve")

    async def resolve(self, host: Host) -> list[bytes]:
        """See Resolver."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _lookup, host.text)

    def close(self) -> None:
        """Start no lookup that has not begun; do not wait for those that have."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _lookup(name: str) -> list[bytes]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except (OSError, UnicodeError) as error:
        raise Unresolved from error
    packed: list[bytes] = []
    for family, *_, address in found:
        if family in (socket.AF_INET, socket.AF_INET6) and "%" not in str(address[0]):
            each = socket.inet_pton(family, str(address[0]))
            if each not in packed:
                packed.append(each)
    if not packed:
        raise Unresolved
    return packed[:_MAX_ADDRESSES]
