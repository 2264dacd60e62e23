"""The long forms: floods, many sandboxes, many runs. What the service holds does not grow with them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.attempts import in_time
from tests.e2e.conftest import Cellbox

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


def resident_mb(cellbox: Cellbox) -> float:
    status = Path(f"/proc/{cellbox.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1000


def descriptors(cellbox: Cellbox) -> int:
    return len(list(Path(f"/proc/{cellbox.process.pid}/fd").iterdir()))


@pytest.mark.alone
@pytest.mark.parametrize(
    ("language", "code", "stateful"),
    [
        ("bash", "yes", False),
        ("python", "import subprocess\nsubprocess.run(['yes'])", True),
        ("python", "while True: print('x' * 1000)", True),
    ],
)
def test_a_flood_of_a_minute_costs_the_service_nothing(
    cellbox: Cellbox, scope: str, language: str, code: str, stateful: bool
) -> None:
    """C5: memory within 100 MB, and neighbours are answered meanwhile."""
    cellbox.cell("1", scope=f"{scope}n", session="neighbour")
    before = resident_mb(cellbox)
    most, times = before, []
    with ThreadPoolExecutor(1) as pool:
        flood = pool.submit(
            cellbox.exec, code, language=language, scope=scope, session="flood", stateful=stateful, timeout=60
        )
        while not flood.done():
            began = time.monotonic()
            answer = cellbox.cell("1 + 1", scope=f"{scope}n", session="neighbour")
            times.append(time.monotonic() - began)
            assert answer["results"][0]["data"]["text/plain"] == "2"
            most = max(most, resident_mb(cellbox))
            time.sleep(0.05)
        answer = flood.result()
    assert (answer["status"], answer["truncated"]) == ("timeout", True)
    assert answer["output_bytes"]["stdout"] > 50_000_000
    assert most - before < 100
    in_time(statistics.median(times), 0.2)


def test_a_hundred_sandboxes_one_after_the_other_leave_nothing(cellbox: Cellbox, scope: str) -> None:
    def round_trip(n: int) -> None:
        assert cellbox.cell("6 * 7", scope=scope, session=f"s{n}")["results"][0]["data"]["text/plain"] == "42"
        assert cellbox.client.delete(f"/v1/scopes/{scope}/sessions/s{n}?purge=true").json()["removed"] == 1

    for n in range(10):
        round_trip(n)
    before, open_before = resident_mb(cellbox), descriptors(cellbox)
    for n in range(100):
        round_trip(n)
    assert resident_mb(cellbox) - before < 10
    assert descriptors(cellbox) <= open_before + 2
    assert not [line for line in cellbox.processes().values() if scope in line]
    assert not list((cellbox.root / scope / "sessions").iterdir())


def test_five_thousand_runs_in_a_session(cellbox: Cellbox, scope: str) -> None:
    def run(n: int) -> bool:
        stateful = n % 2 == 0
        answer = cellbox.exec(f"print({n})", scope=scope, session="s", stateful=stateful)
        return bool(answer["stdout"] == f"{n}\n")

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(500)))
        processes, before = len(cellbox.processes()), resident_mb(cellbox)
        assert all(pool.map(run, range(5000)))
    assert len(cellbox.processes()) <= processes + 3
    assert resident_mb(cellbox) - before < 60  # kept answers, bounded in number


def test_a_hundred_calls_around_the_reapers_moment(serve: Callable[..., Cellbox], scope: str) -> None:
    service = serve(idle_ttl="1")
    for n in range(100):
        assert service.exec(f"print({n})", scope=scope, session="s")["stdout"] == f"{n}\n"
        time.sleep(0.9 + 0.004 * n)
