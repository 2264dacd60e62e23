"""The rows of scale: neighbours, many callers, and a session that has been used for long."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from tests.bench import measure
from tests.bench.rows import Caller, fresh
from tests.e2e import callers
from tests.e2e.conftest import Cellbox, running

NEIGHBOURS = 50
CALLERS = 32
SESSIONS = 8
AGE = 10_000


def neighbours(service: Cellbox, caller: Caller) -> list[measure.Row]:
    """A cell in a service with 50 idle kernels of other sessions beside a cell in a service with no other session."""
    with tempfile.TemporaryDirectory(prefix="cellbox-bench-") as directory:
        Path(directory).chmod(0o755)
        with running(Path(directory)) as lonely:
            other = Caller(lonely)
            scope = fresh("neighbours")
            for number in range(NEIGHBOURS):
                caller.cell("1", scope=scope, session=f"idle{number}")
            try:
                return [
                    measure.against(
                        f"stateful exec beside {NEIGHBOURS} idle sessions",
                        lambda: caller.cell("40 + 2", scope=scope, session="one"),
                        "without any other",
                        lambda: other.cell("40 + 2", scope=scope, session="one"),
                        n=500,
                        warm_up=50,
                        limit=1.15,
                    )
                ]
            finally:
                other.close()
                caller.call("DELETE", f"/v1/scopes/{scope}?purge=true")


def throughput(service: Cellbox, caller: Caller) -> list[measure.Row]:
    """Time for each call while 32 callers call as quickly as they can, on 8 sessions: seconds by calls answered, in turns."""
    scope = fresh("many")
    for number in range(SESSIONS):
        caller.cell("1", scope=scope, session=f"s{number}")
    rows = []
    for stateful in (True, False):
        per_call = asyncio.run(_per_call_ms(service, scope, stateful=stateful))
        calls_s = 1000 * len(per_call) / sum(per_call)
        kind = "stateful" if stateful else "stateless"
        name = f"{CALLERS} callers, {kind} Python: time for each ({calls_s:.0f} calls/s)"
        rows.append(measure.of(name, per_call, limit=10 if stateful else 25, unit="ms"))
    return rows


async def _per_call_ms(service: Cellbox, scope: str, *, stateful: bool) -> list[float]:
    """Milliseconds by calls, in each of ten periods of a second after one that does not count."""
    ended = 0
    stop = asyncio.Event()

    async def until_stopped(one: callers.Caller, session: str) -> None:
        nonlocal ended
        while not stop.is_set():
            await one.exec("40 + 2", scope=scope, session=session, stateful=stateful)
            ended += 1

    found = []
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(callers.calling(service)) for _ in range(CALLERS)]
        async with asyncio.TaskGroup() as group:
            for number, one in enumerate(clients):
                group.create_task(until_stopped(one, f"s{number % SESSIONS}"))
            for period in range(11):
                began, before = time.perf_counter(), ended
                await asyncio.sleep(1)
                if period and ended > before:
                    found.append((time.perf_counter() - began) * 1000 / (ended - before))
            stop.set()
    return found


def age(service: Cellbox, caller: Caller) -> list[measure.Row]:
    """A cell in a session that has had 10,000 beside one in a session that has had a few."""
    scope = fresh("age")
    numbers = itertools.count()
    for _ in range(AGE):
        caller.cell(f"x = {next(numbers)}", scope=scope, session="old")
    return [
        measure.against(
            f"stateful exec after {AGE:,} others in the session",
            lambda: caller.cell(f"x = {next(numbers)}", scope=scope, session="old"),
            "after a few",
            lambda: caller.cell(f"x = {next(numbers)}", scope=scope, session="young"),
            n=500,
            warm_up=20,
            limit=1.1,
        )
    ]


ROWS: dict[str, Callable[[Cellbox, Caller], list[measure.Row]]] = {
    "neighbours": neighbours,
    "throughput": throughput,
    "age": age,
}
