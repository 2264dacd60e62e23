"""What was deleted and is out of sight already: its data goes here, in a thread of its own.

Promises: one that somebody fills as fast as it is emptied keeps the others waiting for one round, and has its turn again, later
and later, until it is empty or the service ends; then the next start removes it. Bounded in number.
Leaves to tree.py: how something is removed that goes on changing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from interpreter.files.errors import NoSuchFile
from interpreter.files.tree import Tree
from interpreter.keys import Key

log = logging.getLogger(__name__)

MAX_WAITING = 64
"""Deletes whose data is still being removed; who deletes more waits for a round of his."""
MAX_LEFT = 1_000
"""That have their turn again. What is more goes with the next start."""
ROUND_S = 5.0
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0


class Disposals:
    """All of them. opened: opens the directory of a key; raises NoSuchFile where that is gone, and all in it."""

    def __init__(self, opened: Callable[[Key], Tree]) -> None:
        self._opened = opened
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="disposing")
        self._timers: set[asyncio.TimerHandle] = set()
        self._first = 0
        self._closed = False

    @property
    def left(self) -> int:
        """How many will have their turn again."""
        return len(self._timers)

    async def add(self, scope: str, holder: bytes) -> None:
        """Remove what was taken away as ``holder``; returns at once, unless many are being removed."""
        self._first += 1
        round_ = self._begin(scope, holder, FIRST_PAUSE_S)
        round_.add_done_callback(self._began)
        if self._first > MAX_WAITING:
            await asyncio.wait([round_])

    async def aclose(self) -> None:
        """Wait for the round that goes on. May be called twice."""
        self._closed = True
        while self._timers:
            self._timers.pop().cancel()
        await asyncio.to_thread(self._thread.shutdown)

    def _began(self, _round: asyncio.Future[bool]) -> None:
        self._first -= 1

    def _begin(self, scope: str, holder: bytes, pause_s: float) -> asyncio.Future[bool]:
        round_ = asyncio.wrap_future(self._thread.submit(self._round, scope, holder))
        round_.add_done_callback(lambda done: self._ended(scope, holder, pause_s, done))
        return round_

    def _round(self, scope: str, holder: bytes) -> bool:
        """Remove what can be removed now; whether that is all. Those that wait hold no descriptor."""
        if self._closed:
            return True
        try:
            with contextlib.closing(self._opened(Key(scope, None))) as tree:  # its session may have gone
                return tree.dispose(holder, within_s=ROUND_S)
        except (FileNotFoundError, NoSuchFile):
            return True  # purged meanwhile, with all the rest

    def _ended(self, scope: str, holder: bytes, pause_s: float, round_: asyncio.Future[bool]) -> None:
        if round_.cancelled() or self._closed:
            return
        error = round_.exception()
        if error is not None:
            log.error("what was deleted could not be removed; it is tried again", exc_info=error)
        elif round_.result():
            return
        if len(self._timers) >= MAX_LEFT:
            log.warning("what was deleted is left for the next start", extra={"scope": scope})
            return

        def again() -> None:
            self._timers.discard(timer)
            self._begin(scope, holder, min(2 * pause_s, LAST_PAUSE_S))

        timer = asyncio.get_running_loop().call_later(pause_s, again)
        self._timers.add(timer)
