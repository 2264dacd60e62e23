"""What one stateful call costs, all the way from HTTP to the kernel and back.

Times tell of the machine as well, so there is one, and it is generous. How often processes wait, and how many system calls they
make, tells of the code alone: a thread, a socket or a message more on the way is some of them more in each call.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attempts import in_time
from tests.bench.rows import Caller
from tests.e2e.conftest import Cellbox

CALLS = 60
CELLS = {"python": "40 + 2", "node": "1 + 1", "bash": "true"}

MOST_WAITS = {
    "python": {"service": 3, "sandbox": 6},
    "node": {"service": 3, "sandbox": 8},
    "bash": {"service": 3, "sandbox": 13},
}
"""Of one call: half as many again as were counted, at least. Where processes have to share a core there are fewer."""

MOST_SYSTEM_CALLS = {
    "python": {"service": 130, "sandbox": 65},
    "node": {"service": 130, "sandbox": 60},
    "bash": {"service": 130, "sandbox": 600},
}
"""The same of system calls. Most of those of Bash save its state: a write for each line, since it buffers no more."""


@pytest.fixture
def caller(cellbox: Cellbox) -> Iterator[Caller]:
    made = Caller(cellbox)
    yield made
    made.close()


@pytest.fixture(params=CELLS)
def language(request: pytest.FixtureRequest, caller: Caller, scope: str) -> str:
    """One whose kernel is warm. It is the only one in its sandbox."""
    for _ in range(20):
        caller.cell(CELLS[request.param], scope=scope, language=request.param)
    return str(request.param)


@pytest.mark.alone
def test_a_call_takes_less_than_a_delayed_acknowledgement(caller: Caller, scope: str, language: str) -> None:
    """Which takes 40 ms, and is what a forgotten TCP_NODELAY looks like."""
    taken = []
    for _ in range(50):
        began = time.perf_counter()
        caller.cell(CELLS[language], scope=scope, language=language)
        taken.append((time.perf_counter() - began) * 1000)
    in_time(statistics.median(taken), 25, sorted(taken))


@pytest.mark.alone
def test_processes_wait_no_more_often_than_they_have_to(
    cellbox: Cellbox, caller: Caller, scope: str, language: str
) -> None:
    processes = processes_of(cellbox, scope)
    before = {name: waits(pids) for name, pids in processes.items()}
    for _ in range(CALLS):
        caller.cell(CELLS[language], scope=scope, language=language)
    found = {name: (waits(pids) - before[name]) / CALLS for name, pids in processes.items()}
    assert all(found[name] <= most for name, most in MOST_WAITS[language].items()), found


@pytest.mark.alone
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: apt-get install strace")
def test_processes_make_no_more_system_calls_than_they_have_to(
    cellbox: Cellbox, caller: Caller, scope: str, language: str, tmp_path: Path
) -> None:
    found = {}
    for name, pids in processes_of(cellbox, scope).items():
        with counted(pids, tmp_path / name) as count:
            for _ in range(CALLS):
                caller.cell(CELLS[language], scope=scope, language=language)
        found[name] = count() / CALLS
    assert all(found[name] <= most for name, most in MOST_SYSTEM_CALLS[language].items()), found


def test_a_flood_is_sent_in_memory_that_the_service_has(cellbox: Cellbox, scope: str) -> None:
    """20 MB in pieces of 256 KiB. One copy of all of it in memory that is new each time would be 5,000 faults."""

    body = {"scope": scope, "language": "python", "code": "print('x' * 20_000_000)", "stateful": True}

    def flood() -> None:
        with cellbox.client.stream("POST", "/v1/exec", json=body, headers={"Accept": "text/event-stream"}) as response:
            for _ in response.iter_raw():
                pass

    flood()
    before = faults(cellbox.process.pid)
    flood()
    assert faults(cellbox.process.pid) - before < 5_000


def faults(pid: int) -> int:
    """How often the process touched memory that was not there yet."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[7])


def processes_of(cellbox: Cellbox, scope: str) -> dict[str, list[int]]:
    return {"service": [cellbox.process.pid], "sandbox": sorted(cellbox.processes(scope))}


def waits(pids: list[int]) -> int:
    """How often threads of the processes have given up the processor because they had nothing to do."""
    found = 0
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            found += int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return found


@contextlib.contextmanager
def counted(pids: list[int], file: Path) -> Iterator[Callable[[], int]]:
    """What is yielded tells afterwards how many system calls the processes have made in here."""
    command = ["strace", "-f", "-c", "-U", "calls,name", "-o", str(file), *(f"-p{pid}" for pid in pids)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        for _ in pids:
            line = strace.stderr.readline()
            assert "attached" in line, line
        yield lambda: int(file.read_text().split()[-2])  # before "total"
        strace.send_signal(signal.SIGINT)
        strace.stderr.read()
