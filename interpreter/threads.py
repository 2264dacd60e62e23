"""The threads on which blocking work is done.

Promises: all of them are there from the start, since a host may allow no further one later, and ending a sandbox must not
depend on that.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

COUNT = min(32, (os.cpu_count() or 1) + 4)


def started(count: int = COUNT) -> ThreadPoolExecutor:
    """Return an executor whose threads run. Raises RuntimeError where the host does not allow so many."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="blocking")
    together = threading.Barrier(count + 1)
    try:
        for _ in range(count):  # none is idle before all are there, so each task makes a thread
            pool.submit(together.wait)
    except RuntimeError:
        together.abort()
        pool.shutdown()
        raise
    together.wait()
    return pool
