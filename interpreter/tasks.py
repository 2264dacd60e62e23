"""Tasks that somebody owns, and cleanups that run to their end.

Promises: a task started here is named, referenced until it ends, and its failure is logged once;
``Tasks.aclose`` leaves none running.
Leaves to callers: what to do about a failure, and every limit of time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Tasks:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(
        self,
        work: Coroutine[Any, Any, _T],
        *,
        name: str,
        expected: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> asyncio.Task[_T]:
        """Start ``work`` now and keep it until it ends. A failure is logged, also if nobody awaits the task.

        expected: failures that are an answer to whoever awaits the task, and no fault.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(lambda ended: self._ended(ended, expected))
        return task

    def __len__(self) -> int:
        """How many have not ended."""
        return len(self._running)

    async def idle(self, *, within_s: float) -> None:
        """Wait until those that are running now have ended, and cancel those that have not after ``within_s`` seconds. Those that
        are started meanwhile go on."""
        if self._running:
            _, late = await asyncio.wait(set(self._running), timeout=within_s)
            await _cancelled(late, within_s)

    async def aclose(self, *, within_s: float) -> None:
        """Cancel all and wait until they have ended, at most ``within_s`` seconds. May be called twice."""
        await _cancelled(set(self._running), within_s)

    def _ended(self, task: asyncio.Task[Any], expected: type[Exception] | tuple[type[Exception], ...]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, expected):
            log.error("a task failed", extra={"task": task.get_name()}, exc_info=error)


async def _cancelled(tasks: set[asyncio.Task[Any]], within_s: float) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        _, left = await asyncio.wait(tasks, timeout=within_s)
        for task in left:
            log.error("a task did not end", extra={"task": task.get_name()})


async def finish(cleanup: Coroutine[Any, Any, _T], *, within_s: float) -> _T:
    """Run ``cleanup`` to its end even while being cancelled, then re-raise; else return its result.

    Raises TimeoutError past ``within_s`` seconds.
    """
    task = asyncio.get_running_loop().create_task(asyncio.wait_for(cleanup, within_s), name="cleanup")
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted from (None if task.cancelled() else task.exception())
    return task.result()
