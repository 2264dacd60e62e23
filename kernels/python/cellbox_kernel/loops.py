"""Event loops inside cells: ``asyncio.run(main())`` works as in a script, though the kernel's own loop is running.

The patch that makes asyncio nest replaces its tasks by slower ones, so it is applied at the first need and not before.
"""

from __future__ import annotations

import asyncio
from asyncio import base_events, events
from typing import Any

import nest_asyncio2


def allow_nesting() -> None:
    """From now on loops may be run while another runs in the same thread."""
    run = asyncio.run
    run_until_complete = base_events.BaseEventLoop.run_until_complete

    def nest() -> None:
        asyncio.run = run
        base_events.BaseEventLoop.run_until_complete = run_until_complete
        nest_asyncio2.apply()

    def nesting_run(main: Any, **options: Any) -> Any:
        if events._get_running_loop() is None:
            return run(main, **options)
        nest()
        return asyncio.run(main, **options)

    def nesting_run_until_complete(self: base_events.BaseEventLoop, future: Any) -> Any:
        if events._get_running_loop() is None:
            return run_until_complete(self, future)
        nest()
        return self.run_until_complete(future)

    asyncio.run = nesting_run
    base_events.BaseEventLoop.run_until_complete = nesting_run_until_complete
