"""Accepting connections, also when the process has no descriptor left.

Promises: a caller whose connection cannot be kept is told so and goes; nothing spins while none can even be told; accepting goes
on by itself once there are descriptors again.
Leaves to server.py: what is done with a connection, and what a refused caller is told.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

log = logging.getLogger("cellbox.http")

BATCH = 128
"""Connections that are taken before anything else has its turn."""
PAUSE_S = 0.2
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts on ``listening`` until closed. Does not own it.

    take: gets each connection and its address. refuse: gets one that is closed after it.

    One descriptor is held in reserve. Without it a connection for which there is none could not even be refused: it would stay in
    the queue of the kernel, which wakes us at once for it, again and again.
    """

    def __init__(
        self,
        listening: socket.socket,
        *,
        take: Callable[[socket.socket, Any], None],
        refuse: Callable[[socket.socket], None],
    ) -> None:
        self._listening = listening
        self._take = take
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._reserve: int | None = _reserve()
        self._refused = 0
        """Since a connection was last taken."""
        self._closed = False
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept no more. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        if self._reserve is not None:
            os.close(self._reserve)

    def _accept(self) -> None:
        for _ in range(BATCH):
            if self._closed:
                return
            try:
                connection, address = self._listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                if not self._refuse_one():
                    return
                continue
            if self._refused:
                log.info("connections are taken again", extra={"refused": self._refused})
                self._refused = 0
            self._take(connection, address)

    def _refuse_one(self) -> bool:
        """Take a connection with the reserve and refuse it; False where there was none, or no way to."""
        if self._reserve is None:
            self._wait()
            return False
        os.close(self._reserve)
        self._reserve = None
        refused = False
        try:
            connection, _ = self._listening.accept()
            with connection:
                self._refuse(connection)
            refused = True
        except OSError:
            pass  # It has gone, or another thread was quicker to take the descriptor: then the next round waits.
        if refused:
            if not self._refused:
                log.error("no descriptor is left for a connection: the limit of open files is reached")
            self._refused += 1
        self._reserve = _reserve()
        return refused

    def _wait(self) -> None:
        """Look again in a moment: the listening socket stays readable, and would not let anything else run."""
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._reserve = _reserve()
        self._loop.add_reader(self._listening, self._accept)


def _reserve() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
