"""What test processes that run side by side must not share: user ids and ports."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_EACH = 10_000
_FIRST = 1_000_000 + os.getpid() % 200_000 * _EACH
"""Below 2**31, where no tool takes it for negative."""

PROBE_UID = _FIRST
_uids = itertools.count(_FIRST + 1)
_bases = itertools.count(_FIRST + _EACH // 2, 100)


def uid() -> int:
    """A user id that no other test has."""
    return next(_uids)


def uid_base() -> int:
    """The first of a hundred user ids that no other service has."""
    return next(_bases)


@contextmanager
def port() -> Iterator[int]:
    """A port of 127.0.0.1 that is ours meanwhile, whether somebody listens on it or not.

    That it is bound keeps it from all who take any free port; who asks for it by number, with SO_REUSEADDR, can listen.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        number: int = bound.getsockname()[1]
        yield number
