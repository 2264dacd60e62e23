"""Many sessions and many callers at once: every answer is its caller's own, and what the service holds does not grow.

Each fact has a short form, and a long one with the figures that are promised (``make soak``).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from interpreter import descriptors as table
from tests.attempts import in_time
from tests.e2e.callers import Caller, Reply, calling
from tests.e2e.conftest import Cellbox
from tests.e2e.test_soak import descriptors, resident_mb

Serve = Callable[..., Cellbox]


def long(*values: object) -> object:
    return pytest.param(*values, marks=[pytest.mark.soak, pytest.mark.timeout(900)])


# --- every answer is its caller's own ---------------------------------------------------------------------------------


@dataclass
class Hammer:
    """Callers that call until ``stop``. Each call prints a word that was never printed before."""

    sessions: list[dict[str, str]]
    random: random.Random = field(default_factory=lambda: random.Random(7))
    words: itertools.count[int] = field(default_factory=itertools.count)
    calls: int = 0
    stop: bool = False

    async def until_stopped(self, caller: Caller) -> None:
        while not self.stop:
            await self._call(caller, self.random.choice(self.sessions), f"word {next(self.words)}")
            self.calls += 1

    async def _call(self, caller: Caller, session: dict[str, str], word: str) -> None:
        kind = self.random.choices(["cell", "python", "bash"], [6, 3, 1])[0]
        if kind == "cell":
            answer = await caller.cell(f"print(me, {word!r})", **session)
            assert (answer["state"], answer["generation"]) == ("kept", 1)
            word = f"{session['session']} {word}"
        elif kind == "python":
            answer = await caller.exec(f"print({word!r})", **session)
        else:
            answer = await caller.exec(f"echo '{word}'", language="bash", **session)
        assert (answer["stdout"], answer["stderr"], answer["exit_code"]) == (f"{word}\n", "", 0)


@pytest.mark.parametrize(
    ("sessions", "callers", "seconds"), [(6, 8, 2.0), long(50, 32, 60.0)], ids=["short", "two minutes"]
)
async def test_many_callers_each_get_their_own_answer_and_memory_does_not_grow(
    serve: Serve, scope: str, sessions: int, callers: int, seconds: float
) -> None:
    """``seconds``: of each half. What is kept of finished executions has reached its bound in the first one."""
    service = serve(result_ttl="20")
    places = [{"scope": f"{scope}{n % 5}", "session": f"s{n}"} for n in range(sessions)]
    hammer = Hammer(places)
    async with AsyncExitStack() as stack:
        first_one = await stack.enter_async_context(calling(service))
        for place in places:
            await first_one.cell(f"me = {place['session']!r}", **place)
        assert len(await _listed(first_one, {place["scope"] for place in places})) == sessions
        # Not before: an idle connection is closed after a while, and that many starts may take longer.
        clients = [await stack.enter_async_context(calling(service)) for _ in range(callers)]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(hammer.until_stopped(client))
            await asyncio.sleep(seconds)
            after_one, first = resident_mb(service), hammer.calls
            await asyncio.sleep(seconds)
            after_two = resident_mb(service)
            hammer.stop = True
        assert len(await _listed(clients[0], {place["scope"] for place in places})) == sessions
    print(
        f"{first / seconds:.0f} and {(hammer.calls - first) / seconds:.0f} calls/s, {after_one:.1f} and {after_two:.1f} MB"
    )
    assert hammer.calls > callers
    assert after_two - after_one < 20


async def _listed(caller: Caller, scopes: set[str]) -> set[tuple[str, str]]:
    """Scope and session of every sandbox that the service lists."""
    replies = {scope: await caller.call("GET", f"/v1/scopes/{scope}/sessions") for scope in scopes}
    return {(scope, row["session"]) for scope, reply in replies.items() for row in reply.body["sessions"]}


def test_a_sandbox_takes_few_descriptors_of_the_service_whatever_runs_in_it(cellbox: Cellbox, scope: str) -> None:
    cellbox.cell("1", scope=scope, session="first")
    before = descriptors(cellbox)
    for number in range(4):
        session = {"scope": scope, "session": f"s{number}"}
        for context in ("a", "b", "c"):
            cellbox.cell("import subprocess; p = subprocess.Popen(['sleep', '60'])", context=context, **session)
        cellbox.exec("sleep 60 & echo $!", language="bash", **session)
        cellbox.cell("print('x' * 2_000_000)", context="a", **session)
    # The last answer may still be on its way to its file.
    cellbox.wait_for(lambda: descriptors(cellbox) - before <= 4 * table.SANDBOX, within_s=20)
    for number in range(4):
        cellbox.client.delete(f"/v1/scopes/{scope}/sessions/s{number}?force=true")
    cellbox.wait_for(lambda: descriptors(cellbox) <= before, within_s=20)


# --- a flood is its own ------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize("seconds", [4, long(60)])
def test_a_flood_costs_the_service_little_and_its_neighbours_nothing(
    cellbox: Cellbox, scope: str, seconds: int
) -> None:
    cellbox.cell("1", scope=f"{scope}n", session="neighbour")
    most = before = resident_mb(cellbox)
    times = []
    with ThreadPoolExecutor(1) as pool:
        flood = pool.submit(cellbox.exec, "yes", language="bash", scope=scope, session="flood", timeout=seconds)
        while not flood.done():
            began = time.monotonic()
            answer = cellbox.cell("1 + 1", scope=f"{scope}n", session="neighbour")
            times.append(time.monotonic() - began)
            assert answer["results"][0]["data"]["text/plain"] == "2"
            most = max(most, resident_mb(cellbox))
            time.sleep(0.02)
    assert flood.result()["status"] == "timeout"
    assert flood.result()["truncated"]
    print(f"{most - before:.1f} MB, median {statistics.median(times) * 1000:.1f} ms of {len(times)}")
    assert most - before < 50
    in_time(statistics.median(times), 0.2)


# --- a burst of first calls --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "max_sessions"),
    [(16, 5), (16, 20), long(200, 50), long(200, 220)],
    ids=["short, more than fit", "short, all fit", "more than fit", "all fit"],
)
async def test_a_burst_of_first_calls_is_answered_or_refused_with_a_time(
    serve: Serve, scope: str, calls: int, max_sessions: int
) -> None:
    """200 sandboxes that start at once take each other's time: none may be told that it was too slow."""
    service = serve(max_sessions=str(max_sessions))

    async def first_call(number: int) -> Reply:
        async with calling(service) as caller:
            body = {"scope": scope, "session": f"s{number}", "language": "python", "code": f"print({number})"}
            return await caller.call("POST", "/v1/exec", body | {"stateful": True})

    began = time.monotonic()
    replies = await asyncio.gather(*map(first_call, range(calls)))
    print(f"{calls} first calls in {time.monotonic() - began:.1f} s")
    answered = {number for number, reply in enumerate(replies) if reply.status == 200}
    for number, reply in enumerate(replies):
        if number in answered:
            assert (reply.body["status"], reply.body["stdout"]) == ("ok", f"{number}\n")
        else:
            assert (reply.status, reply.body["code"], reply.body["retryable"]) == (429, "too_many_sessions", True)
            assert int(reply.headers["retry-after"]) >= 1
    assert len(answered) == min(calls, max_sessions)
    async with calling(service) as caller:
        assert await _listed(caller, {scope}) == {(scope, f"s{number}") for number in answered}
    assert _on_the_host(service) == (len(answered), len(answered), len(answered))
    # One that goes makes room, and the next one is not refused.
    leaving = min(answered)
    async with calling(service) as caller:
        removed = await caller.call("DELETE", f"/v1/scopes/{scope}/sessions/s{leaving}")
        assert removed.body["removed"] == 1
        await caller.cell("1", scope=scope, session="another")
    assert _on_the_host(service) == (len(answered), len(answered), len(answered))


def _on_the_host(service: Cellbox) -> tuple[int, int, int]:
    """How many sandboxes of ``service`` there are by their state files, cgroups and link directories."""
    run = service.root / ".run"
    states = {path.name.removesuffix(".sandbox") for path in run.glob("*.sandbox")}
    groups = {
        path.name.rpartition("-")[2]
        for hierarchy in _hierarchies(service)
        for path in hierarchy.iterdir()
        if path.name.startswith("cellbox-") and path.name.rpartition("-")[2] in states
    }
    links = {path.name for path in run.iterdir() if path.is_dir()}
    return len(states), len(groups), len(links)


def _hierarchies(service: Cellbox) -> set[Path]:
    """Folders that hold the cgroups of the service's sandboxes: the parents of the groups that their processes are in."""
    found = set()
    for pid in service.processes():
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if "/cellbox-" in path:
                head = path[: path.index("/cellbox-")]
                for mount in (f"/sys/fs/cgroup/{controllers}", "/sys/fs/cgroup"):
                    if Path(mount + head).is_dir():
                        found.add(Path(mount + head))
                        break
    return found


@pytest.mark.soak
def test_large_answers_that_nobody_reads_are_let_go(serve: Serve) -> None:
    """Callers that leave after the head: what is kept is bounded, and the rest goes at once and to the host."""
    cellbox = serve()
    body = {"language": "python", "stateful": True, "code": "display({'text/html': s}, raw=True)"}
    prepare = "from IPython.display import display\ns = 'x' * 15_000_000"
    for number in range(4):
        cellbox.cell(prepare, scope=f"b{number}")
    highest = 0
    for number in range(80):
        scope = {"scope": f"b{number % 4}", "execution_id": f"n{number}"}
        with cellbox.client.stream("POST", "/v1/exec", json={**body, **scope}) as response:
            assert response.status_code == 200
        highest = max(highest, resident_mb(cellbox))
    assert highest < 700  # 256 of them are those that are kept
