"""The service goes, by ``kill -9`` or by SIGTERM, and the next one on its data root goes on where it was."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import waiting
from tests.e2e.conftest import CONFINED, Cellbox

RUNTIMES = CONFINED

Serve = Callable[..., Cellbox]


def send(cellbox: Cellbox, execution_id: str | None = None, **fields: Any) -> threading.Thread:
    """Send an exec whose answer nobody may get, since the service is about to go."""

    def call() -> None:
        with contextlib.suppress(httpx.TransportError):
            httpx.post(
                f"{cellbox.url}/v1/exec",
                headers=dict(cellbox.client.headers),
                json={"language": "python", "execution_id": execution_id, **fields},
                timeout=60,
            )

    thread = threading.Thread(target=call)
    thread.start()
    return thread


def answer_of(cellbox: Cellbox, execution_id: str, scope: str, *, within_s: float = 30) -> dict[str, Any]:
    deadline = time.monotonic() + within_s
    while True:
        response = cellbox.client.get(f"/v1/executions/{execution_id}", params={"scope": scope})
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        if found["phase"] == "finished":
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def until(file: Path, text: str = "", *, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not (file.exists() and text in file.read_text()):
        assert time.monotonic() < deadline, file
        time.sleep(0.01)


CELL = """
import pathlib, time
log = pathlib.Path('log')
with log.open('a') as file: file.write('begin {name}\\n')
while not pathlib.Path('go {name}').exists(): time.sleep(0.01)
x = '{name}'
total += 1
with log.open('a') as file: file.write('end {name}\\n')
print('printed by {name}')
total
"""


def rounds(cellbox: Cellbox, scope: str, count: int) -> None:
    """Kill the service ``count`` times in the middle of a cell, and look at everything each time."""
    cellbox.cell("total = 0", scope=scope, session="c")
    place = cellbox.root / scope / "sessions" / "c"
    for number in range(1, count + 1):
        name = f"n{number}"
        thread = send(cellbox, name, scope=scope, session="c", stateful=True, code=CELL.replace("{name}", name))
        until(place / "log", f"begin {name}\n")
        cellbox.end(signal.SIGKILL)
        thread.join()
        if number % 2:  # it ends while there is a service again, or while there is none
            cellbox.start()
        (place / f"go {name}").touch()
        until(place / "log", f"end {name}\n")
        if not number % 2:
            cellbox.start()
        found = answer_of(cellbox, name, scope)
        assert (found["status"], found["stdout"], found["generation"]) == ("ok", f"printed by {name}\n", 1)
        assert (found["state"], found["results"][0]["data"]["text/plain"]) == ("kept", str(number))
        again = cellbox.cell(CELL.replace("{name}", name), scope=scope, session="c", execution_id=name)
        assert again["results"] == found["results"]  # the kept one: it did not run again
    assert (
        cellbox.cell("x, total", scope=scope, session="c")["results"][0]["data"]["text/plain"] == f"('{name}', {count})"
    )
    assert (place / "log").read_text().splitlines() == [
        f"{what} n{number}" for number in range(1, count + 1) for what in ("begin", "end")
    ]
    assert len(cellbox.client.get(f"/v1/scopes/{scope}/sessions").json()["sessions"]) == 1


@pytest.mark.parametrize("count", [3, pytest.param(10, marks=pytest.mark.soak)])
def test_kill_9_so_many_times_in_a_row_loses_nothing(serve: Serve, scope: str, count: int) -> None:
    rounds(serve(), scope, count)


class Caller(threading.Thread):
    """Calls in one session, one after the other, each repeated under its id until it is answered.

    count: how many it made. wrong: what was not as it should be.
    """

    def __init__(self, cellbox: Cellbox, scope: str, session: str, over: threading.Event) -> None:
        super().__init__()
        self.session = session
        self.count = 0
        self.wrong: list[object] = []
        self._body = {"scope": scope, "session": session, "language": "python"}
        self._client = httpx.Client(base_url=cellbox.url, headers=dict(cellbox.client.headers), timeout=60)
        self._over = over

    def run(self) -> None:
        with self._client:
            while not (self._over.is_set() or self.wrong):
                self.count += 1
                code = f"ran = globals().get('ran', []); ran.append({self.count}); print(*ran)"
                self._expect(" ".join(map(str, range(1, self.count + 1))), code, "", stateful=True)
                self._expect(f"{self.count}", f"open('ran', 'a').write('{self.count}\\n'); print({self.count})", "s")

    def _expect(self, printed: str, code: str, name: str, **fields: Any) -> None:
        execution_id = f"{self.session}-{self.count}{name}"
        answer = self._call({**self._body, "code": code, "execution_id": execution_id, **fields})
        lives = 1 if fields else None
        if (answer.get("status"), answer.get("stdout"), answer.get("generation")) != ("ok", printed + "\n", lives):
            self.wrong.append(answer)

    def _call(self, body: dict[str, Any]) -> dict[str, Any]:
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer: dict[str, Any] = self._client.post("/v1/exec", json=body).json()
                if not answer.get("retryable"):
                    return answer
            time.sleep(0.02)


def storm(cellbox: Cellbox, scope: str, *, kills: int, seed: int) -> None:
    """The service is killed at any moment while callers go on: each call has run exactly once, in its order."""
    chance, over = random.Random(seed), threading.Event()
    callers = [Caller(cellbox, scope, f"c{number}", over) for number in range(4)]
    for caller in callers:
        cellbox.cell("1", scope=scope, session=caller.session)
        caller.start()
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0.0, 0.7))
            cellbox.end(signal.SIGKILL)
            cellbox.start()
        time.sleep(0.5)
    finally:
        over.set()
        for caller in callers:
            caller.join()
    for caller in callers:
        assert not caller.wrong
        ran = (cellbox.root / scope / "sessions" / caller.session / "ran").read_text().split()
        assert ran == [str(number) for number in range(1, caller.count + 1)]
    assert sum(caller.count for caller in callers) > kills


@pytest.mark.long_on_docker
@pytest.mark.parametrize("seed", [1])
def test_killed_at_any_moment_all_runs_exactly_once(serve: Serve, scope: str, seed: int) -> None:
    storm(serve(), scope, kills=3, seed=seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 14))
def test_killed_often_at_any_moment_all_runs_exactly_once(serve: Serve, scope: str, seed: int) -> None:
    storm(serve(), scope, kills=30, seed=seed)


@pytest.mark.long_on_docker
def test_what_waits_runs_once_and_in_order(serve: Serve, scope: str) -> None:
    cellbox = serve()
    cellbox.cell("seen = []", scope=scope)
    place = cellbox.root / scope / "workspace"
    first = (
        "import pathlib, time\npathlib.Path('begun').touch()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\nseen.append(0)"
    )
    threads = [send(cellbox, "e0", scope=scope, stateful=True, code=first)]
    until(place / "begun")
    for number in (1, 2, 3):
        threads.append(send(cellbox, f"e{number}", scope=scope, stateful=True, code=f"seen.append({number})"))
        cellbox.wait_for(
            lambda number=number: (
                cellbox.client.get(f"/v1/executions/e{number}", params={"scope": scope}).status_code == 200
            ),
            within_s=20,
        )
    unnamed = send(cellbox, scope=scope, stateful=True, code="seen.append('nobody can ask for it')")
    cellbox.end(signal.SIGKILL)
    for thread in [*threads, unnamed]:
        thread.join()
    (place / "go").touch()
    cellbox.start()
    for number in range(4):
        assert answer_of(cellbox, f"e{number}", scope)["status"] == "ok"
    assert cellbox.cell("seen", scope=scope)["results"][0]["data"]["text/plain"] == "[0, 1, 2, 3]"


@pytest.mark.long_on_docker
def test_a_stateless_run_goes_on(serve: Serve, scope: str) -> None:
    cellbox = serve()
    place = cellbox.root / scope / "workspace"
    code = "echo $$ >> pids; echo before; while [ ! -e go ]; do sleep 0.01; done; echo after; exit 7"
    thread = send(cellbox, "run", scope=scope, language="bash", code=code)
    until(place / "pids", "\n")
    cellbox.end(signal.SIGKILL)
    thread.join()
    cellbox.start()
    (place / "go").touch()
    found = answer_of(cellbox, "run", scope)
    assert (found["status"], found["exit_code"], found["stdout"]) == ("error", 7, "before\nafter\n")
    assert len((place / "pids").read_text().splitlines()) == 1


@pytest.mark.long_on_docker
def test_a_timeout_and_a_cancel_work_over_a_restart(serve: Serve, scope: str) -> None:
    cellbox = serve()
    place = cellbox.root / scope / "workspace"
    thread = send(
        cellbox, "slow", scope=scope, stateful=True, code="open('a', 'w').close()\nwhile True: pass", timeout=4
    )
    other = send(
        cellbox, "long", scope=scope, stateful=True, context="b", code="open('b', 'w').close()\nwhile True: pass"
    )
    until(place / "a")
    until(place / "b")
    cellbox.end(signal.SIGKILL)
    thread.join()
    other.join()
    cellbox.start()
    assert cellbox.client.delete("/v1/executions/long", params={"scope": scope}).status_code == 200
    assert answer_of(cellbox, "long", scope, within_s=20)["status"] == "interrupted"
    found = answer_of(cellbox, "slow", scope, within_s=20)
    assert (found["status"], found["exit_code"], found["state"]) == ("timeout", 124, "new")
    assert cellbox.cell("1", scope=scope)["state"] == "kept"


def noted(cellbox: Cellbox, execution_id: str) -> bool:
    """Return whether the next service would know the answer."""
    with contextlib.closing(sqlite3.connect(f"file:{cellbox.root / '.state.db'}?mode=ro", uri=True)) as database:
        known = "SELECT 1 FROM executions WHERE id = ? AND finished_at IS NOT NULL"
        return database.execute(known, (execution_id,)).fetchone() is not None


@pytest.mark.long_on_docker
def test_answers_are_kept_over_a_restart(serve: Serve, scope: str) -> None:
    cellbox = serve()
    small = cellbox.cell("print('small'); {'a': float('nan')}", scope=scope, execution_id="small")
    large = cellbox.exec("print('x' * 500_000)", scope=scope)
    failed = cellbox.cell("1/0", scope=scope, execution_id="failed")
    waiting.until(
        lambda: noted(cellbox, large["execution_id"])
    )  # it has no name of its caller's, so that takes a moment
    cellbox.end(signal.SIGKILL)
    cellbox.start()
    for execution_id, query, before in (
        ("small", {"scope": scope}, small),
        (large["execution_id"], {}, large),
        ("failed", {"scope": scope}, failed),
    ):
        found = cellbox.client.get(f"/v1/executions/{execution_id}", params=query).json()
        assert found.pop("phase") == "finished"
        assert found == before
    response = cellbox.post(scope=scope, language="python", code="other", stateful=True, execution_id="small")
    assert (response.status_code, response.json()["code"]) == (409, "execution_id_taken")
    assert cellbox.client.delete(f"/v1/scopes/{scope}", params={"purge": "true"}).status_code == 200
    assert cellbox.client.get("/v1/executions/small", params={"scope": scope}).status_code == 404
    assert not list((cellbox.root / ".answers").iterdir())


@pytest.mark.long_on_docker
def test_a_kernel_that_ended_meanwhile_is_told_once(serve: Serve, scope: str) -> None:
    cellbox = serve()
    cellbox.cell("x = 1", scope=scope, session="b")
    place = cellbox.root / scope / "sessions" / "a"
    cellbox.cell(
        "import threading, time, os\n"
        "open('/proc/self/comm', 'w').write('ends-soon')\n"
        "def wait():\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "    os._exit(3)\n"
        "threading.Thread(target=wait).start()",
        scope=scope,
        session="a",
    )
    (kernel,) = (pid for pid in cellbox.processes(scope) if Path(f"/proc/{pid}/comm").read_text() == "ends-soon\n")
    cellbox.end(signal.SIGKILL)
    (place / "go").touch()
    waiting.until(lambda: waiting.ended(kernel))
    cellbox.start()
    first, second = (cellbox.cell("1", scope=scope, session="a") for _ in range(2))
    assert (first["state"], first["reason"], first["generation"]) == ("lost", "exit", 2)
    assert (second["state"], second["reason"], second["generation"]) == ("kept", None, 2)
    assert cellbox.cell("x", scope=scope, session="b")["state"] == "kept"


def test_sigterm_leaves_sandboxes_and_ctrl_c_removes_them(serve: Serve, scope: str) -> None:
    cellbox = serve(drain_timeout="1")
    cellbox.cell("x = 5", scope=scope)
    running = set(cellbox.processes(scope))
    answers: list[httpx.Response] = []
    code = "import time\ntime.sleep(4)\nprint('done', x)"
    thread = threading.Thread(
        target=lambda: answers.append(
            cellbox.post(scope=scope, language="python", stateful=True, code=code, execution_id="goes-on")
        )
    )
    thread.start()
    cellbox.wait_for(
        lambda: cellbox.client.get("/v1/executions/goes-on", params={"scope": scope}).json().get("phase") == "running",
        within_s=20,
    )
    cellbox.end(signal.SIGTERM)
    thread.join()
    assert (answers[0].status_code, answers[0].json()["code"]) == (503, "shutting_down")
    assert "goes-on" in answers[0].json()["message"]
    assert running <= set(cellbox.processes(scope))
    assert "1 sandbox left running" in cellbox.log
    cellbox.start()
    assert answer_of(cellbox, "goes-on", scope)["stdout"] == "done 5\n"
    cellbox.end(signal.SIGINT)
    assert not cellbox.processes()
    assert not list((cellbox.root / ".run").iterdir())
    cellbox.start()
    found = cellbox.cell("1", scope=scope)
    assert (found["state"], found["reason"], found["generation"]) == ("lost", "killed", 2)


def test_what_nobody_adopts_ends_by_itself(serve: Serve, scope: str) -> None:
    cellbox = serve(idle_ttl="1s")
    cellbox.cell("x = 1", scope=scope)
    cellbox.end(signal.SIGKILL)
    cellbox.wait_for(lambda: not cellbox.processes(), within_s=20)
    cellbox.start()
    assert cellbox.cell("1", scope=scope)["state"] == "lost"


@pytest.mark.long_on_docker
def test_a_frozen_sandbox_is_not_waited_for(serve: Serve, scope: str) -> None:
    """Its neighbours are adopted at once; whoever asks for it gets a fresh one once that is known."""
    cellbox = serve()
    for session in ("frozen", "well"):
        cellbox.cell("x = 1", scope=scope, session=session)
    cellbox.end(signal.SIGKILL)
    frozen = [
        pid
        for pid in cellbox.processes(scope)
        if any("sessions/frozen" in line for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    ]
    assert frozen
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    cellbox.start()
    with ThreadPoolExecutor(1) as pool:
        fresh = pool.submit(cellbox.cell, "1", scope=scope, session="frozen")
        assert cellbox.cell("x", scope=scope, session="well")["state"] == "kept"
        assert not fresh.done()
        assert fresh.result()["state"] == "lost"


@pytest.mark.long_on_docker
def test_a_damaged_state_file_is_set_aside(serve: Serve, scope: str) -> None:
    cellbox = serve()
    cellbox.cell("x = 1", scope=scope)
    cellbox.end(signal.SIGTERM)
    (cellbox.root / ".state.db").write_bytes(secrets.token_bytes(10_000))
    cellbox.start()
    assert "was damaged" in cellbox.log
    assert cellbox.client.get(f"/v1/scopes/{scope}/sessions").json() == {"sessions": []}
    found = cellbox.cell("1", scope=scope)
    assert (found["state"], found["generation"]) == ("new", 1)


def test_stop_all_removes_what_a_stopped_service_left(serve: Serve, scope: str) -> None:
    cellbox = serve()
    for session in ("a", "b"):
        cellbox.cell("1", scope=scope, session=session)
    cellbox.end(signal.SIGTERM)
    assert cellbox.processes(scope)
    done = cellbox.command("stop", "--all")
    assert (done.returncode, done.stdout) == (0, "no service was running; 2 sandboxes removed\n"), done.stderr
    assert not cellbox.processes()
    assert not list((cellbox.root / ".run").iterdir())
    assert cellbox.command("stop").returncode == 1
    cellbox.start()
