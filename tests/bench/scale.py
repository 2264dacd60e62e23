"""The rows of scale: neighbours, many callers, and a session that has been used for long."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from tests import waiting
from tests.bench import measure
from tests.bench.rows import Caller, fresh, pss_mb, sandbox_trees, serving
from tests.e2e import callers
from tests.e2e.conftest import Cellbox

NEIGHBOURS = 200
CALLERS = 64
SESSIONS = 16
THROUGHPUT_S = 30
AGE = 10_000


def neighbours(_service: Cellbox, _caller: Caller) -> measure.Rows:
    """A cell beside 200 idle sessions and beside none; what each of them weighs; and what it takes until one has gone."""
    with serving(max_sessions=f"{NEIGHBOURS + 2}", runtime_backend="bubblewrap") as (busy, caller):
        scope = fresh("idle")
        for number in range(NEIGHBOURS):
            measure.show("sandboxes", number, NEIGHBOURS)
            caller.cell("1", scope=scope, session=f"s{number}")
        time.sleep(3)  # what a start leaves to do is done by then; there is no event to wait for
        sizes = [sum(map(pss_mb, tree)) for tree in sandbox_trees(busy.process.pid)]
        assert len(sizes) == NEIGHBOURS, f"{len(sizes)} sandboxes on the host"
        with serving(runtime_backend="bubblewrap") as (_, other):
            beside = measure.against(
                f"stateful exec beside {NEIGHBOURS} idle sessions",
                lambda: caller.cell("40 + 2", scope=scope),
                "without any other",
                lambda: other.cell("40 + 2", scope=scope),
                n=500,
                warm_up=50,
                limit=1.1,
            )
        answered, gone = [], []
        for _ in range(20):
            caller.cell("1", scope=(ends := fresh("ends")))
            was = busy.processes(ends)
            begun = time.perf_counter()
            caller.call("DELETE", f"/v1/scopes/{ends}?purge=true")
            answered.append((time.perf_counter() - begun) * 1000)
            while not all(map(waiting.gone, was)):
                time.sleep(0.001)
            gone.append((time.perf_counter() - begun) * 1000)
    weight = measure.of(f"memory of an idle session, of {NEIGHBOURS} (mean)", sizes, limit=40, unit="MB", key="memory")
    return [
        beside,
        weight,
        measure.alone("a session's end, answered", iter(answered).__next__, n=len(answered), warm_up=0, limit=20),
        measure.alone("a session's end, all of it gone", iter(gone).__next__, n=len(gone), warm_up=0, limit=1000),
    ]


def throughput(service: Cellbox, caller: Caller) -> measure.Rows:
    """64 callers that call as quickly as they can for 30 s, on 16 sessions, half of them stateful Python and half stateless."""
    scope = fresh("many")
    for number in range(SESSIONS):
        caller.cell("1", scope=scope, session=f"s{number}")
    taken, elapsed_s = asyncio.run(_mixed(service, scope))
    calls_s = len(taken) / elapsed_s
    what = f"{CALLERS} callers, mixed stateful and stateless Python"
    return [
        measure.of(f"{what}: time for each ({calls_s:.0f} calls/s)", [1000 / calls_s], limit=2.5, unit="ms"),
        measure.alone(
            f"{what}: the slowest of a hundred (p99)", iter(_chunks_p99(taken)).__next__, n=10, warm_up=0, limit=210
        ),
    ]


def _chunks_p99(taken: list[float]) -> list[float]:
    """Return the 99th percentile of each tenth of the calls, in the order of their ends."""
    size = len(taken) // 10
    return [sorted(taken[at * size : (at + 1) * size])[int(size * 0.99)] for at in range(10)]


async def _mixed(service: Cellbox, scope: str) -> tuple[list[float], float]:
    """Milliseconds of each call in the order of their ends, after a second that does not count, and how long all took."""
    taken: list[float] = []
    stop, count = asyncio.Event(), asyncio.Event()

    async def until_stopped(one: callers.Caller, session: str, *, stateful: bool) -> None:
        while not stop.is_set():
            begun = time.perf_counter()
            await one.exec("40 + 2", scope=scope, session=session, stateful=stateful)
            if count.is_set():
                taken.append((time.perf_counter() - begun) * 1000)

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(callers.calling(service)) for _ in range(CALLERS)]
        async with asyncio.TaskGroup() as group:
            for number, one in enumerate(clients):
                group.create_task(until_stopped(one, f"s{number % SESSIONS}", stateful=number // SESSIONS % 2 == 0))
            await asyncio.sleep(1)
            count.set()
            begun = time.perf_counter()
            for second in range(THROUGHPUT_S):
                measure.show("calls", second, THROUGHPUT_S)
                await asyncio.sleep(1)
            elapsed_s = time.perf_counter() - begun
            count.clear()
            stop.set()
    return taken, elapsed_s


def age(service: Cellbox, caller: Caller) -> measure.Rows:
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


ROWS: dict[str, Callable[[Cellbox, Caller], measure.Rows]] = {
    "neighbours": neighbours,
    "throughput": throughput,
    "age": age,
}
