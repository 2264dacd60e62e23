"""Containers as sandboxes, from outside: what only an engine can do to them, and what only their tenants can."""

from __future__ import annotations

import ast
import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from interpreter.backends.docker.engine import Client
from interpreter.backends.docker.spec import SCOPE_UID
from tests import engines
from tests.attempts import in_time
from tests.e2e.conftest import CONFINED, Cellbox

RUNTIMES = CONFINED[1:]


def containers(cellbox: Cellbox, scope: str) -> list[dict[str, Any]]:
    """Those of a scope, running or not."""
    uid = (cellbox.root / scope / "workspace").stat().st_uid
    client = Client(engines.ADDRESS)
    try:
        return client.containers(f"{SCOPE_UID}={uid}")
    finally:
        client.close()


def remove(container: dict[str, Any]) -> None:
    client = Client(engines.ADDRESS)
    try:
        client.remove(container["Id"])
    finally:
        client.close()


@pytest.mark.alone
def test_a_container_removed_behind_our_back_answers_and_the_next_call_works(cellbox: Cellbox, scope: str) -> None:
    cellbox.cell("x = 1", scope=scope, session="s")
    (container,) = containers(cellbox, scope)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(cellbox.cell, "open('began', 'w')\nimport time\ntime.sleep(60)", scope=scope, session="s")
        began = cellbox.root / scope / "sessions" / "s" / "began"
        cellbox.wait_for(began.exists, within_s=20)
        removed = time.monotonic()
        remove(container)
        answer = running.result()
    in_time(time.monotonic() - removed, 5)
    assert (answer["status"], answer["reason"], answer["state"]) == ("died", "killed", "lost")
    assert cellbox.cell("'x' in globals()", scope=scope, session="s")["results"][0]["data"]["text/plain"] == "False"
    (other,) = containers(cellbox, scope)
    assert other["Id"] != container["Id"]


def test_killing_the_first_process_from_inside_does_nothing_or_costs_that_sandbox_only(
    cellbox: Cellbox, scope: str
) -> None:
    """S12. The kernel protects the first process of a namespace from all within it."""
    neighbour = f"{scope}n"
    cellbox.cell("y = 1", scope=neighbour, session="s")
    cellbox.cell("x = 1", scope=scope, session="s")
    code = "for n in 9 15 6 11; do kill -$n 1; done; kill -9 -1; echo survived"
    answer = cellbox.exec(code, language="bash", scope=scope, session="s")
    assert answer["status"] in ("ok", "died")
    assert cellbox.cell("1 + 1", scope=scope, session="s")["state"] in ("kept", "lost", "new")
    assert cellbox.cell("y", scope=neighbour, session="s")["state"] == "kept"


def test_names_labels_and_arguments_tell_nothing_of_the_scope(cellbox: Cellbox, scope: str) -> None:
    """S11: but for the directories that are shown, which the tenant may know."""
    cellbox.cell("1", scope=scope, session="a-session-of-mine")
    (container,) = containers(cellbox, scope)
    told = str([container["Names"], container["Labels"], container["Command"]])
    assert scope not in told
    assert "a-session-of-mine" not in told
    assert re.fullmatch(r"/cellbox-[0-9a-f]{16}-[0-9a-f]{16}", container["Names"][0])


@pytest.mark.alone
def test_a_memory_bomb_and_a_fork_bomb_leave_the_neighbour_quick(cellbox: Cellbox, scope: str) -> None:
    """S4: a neighbour's run stays under 2 s meanwhile."""
    neighbour = f"{scope}n"
    cellbox.exec("1", scope=neighbour, session="s")
    for bomb in (
        "x = []\nwhile True: x.append(bytearray(2**24))",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    ):
        cellbox.exec("1", scope=scope, session="s")
        with ThreadPoolExecutor(1) as pool:
            bombing = pool.submit(cellbox.exec, bomb, scope=scope, session="s", timeout=2)
            slowest = 0.0
            while not bombing.done():
                began = time.monotonic()
                assert cellbox.exec("print(1)", scope=neighbour, session="s")["stdout"] == "1\n"
                slowest = max(slowest, time.monotonic() - began)
            assert bombing.result()["status"] in ("died", "timeout")
        assert slowest < 2
        assert cellbox.exec("print(42)", scope=scope, session="s")["stdout"] == "42\n"


def test_a_service_that_does_not_come_back_is_not_waited_for(serve: Callable[..., Cellbox], scope: str) -> None:
    """There is no supervisor outside: sandboxd itself ends after the idle time; what is left goes with the next service."""
    service = serve(idle_ttl="2")
    service.cell("x = 1", scope=scope, session="s")
    service.end(signal.SIGKILL)
    service.wait_for(lambda: containers(service, scope)[0]["State"] == "exited", within_s=20)
    service.wait_for(lambda: not service.processes(scope), within_s=20)
    (ended,) = containers(service, scope)
    service.start()
    assert service.cell("'x' in globals()", scope=scope, session="s")["state"] in ("lost", "new")
    assert ended["Id"] not in [each["Id"] for each in containers(service, scope)]


@pytest.mark.alone
def test_parallel_starts_do_not_wait_for_each_other(cellbox: Cellbox, scope: str) -> None:
    """By what the engine noted: most are created before the one before them has started."""

    def first(name: str) -> tuple[datetime, datetime]:
        assert cellbox.exec("print(1)", scope=name, session="s")["stdout"] == "1\n"
        (container,) = containers(cellbox, name)
        client = Client(engines.ADDRESS)
        try:
            about = client.inspect(container["Id"])
        finally:
            client.close()
        return datetime.fromisoformat(about["Created"]), datetime.fromisoformat(about["State"]["StartedAt"])

    with ThreadPoolExecutor(6) as pool:
        times = sorted(pool.map(first, [f"{scope}{n}" for n in range(6)]))
    overlapping = [created < started for (_, started), (created, _) in pairwise(times)]
    assert sum(overlapping) >= 3, times


def test_nothing_of_the_service_is_seen_from_inside(serve: Callable[..., Cellbox], scope: str) -> None:
    """S11: the key, the data root's other scopes and the engine's socket."""
    service = serve()
    service.exec("1", scope=f"{scope}other", session="s")
    code = f"""
import os
names = ("docker.sock", "{scope}other", ".api-key", ".lock")
found = []
for folder, folders, files in os.walk("/", onerror=lambda _: None):
    folders[:] = [name for name in folders if folder != "/" or name not in ("proc", "sys")]
    found += [os.path.join(folder, name) for name in files + folders if name in names]
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline"):
        try: text = open(f"/proc/{{pid}}/{{name}}").read()
        except OSError: continue
        found += [f"{{pid}} {{name}}"] * ("a-key-for-the" + "-tests" in text)
print(found)
"""
    assert service.exec(code, scope=scope, session="s")["stdout"] == "[]\n"


def test_the_next_service_removes_what_it_does_not_know(serve: Callable[..., Cellbox], scope: str) -> None:
    """And nothing of anybody else's."""
    service = serve()
    service.cell("x = 1", scope=scope, session="s")
    service.end(signal.SIGKILL)
    (service.root / ".state.db").unlink()
    for part in service.root.glob(".state.db-*"):
        part.unlink()
    service.start()
    service.wait_for(lambda: containers(service, scope) == [], within_s=20)
    assert service.cell("'x' in globals()", scope=scope, session="s")["state"] == "new"


@pytest.mark.alone
def test_a_container_that_is_stopped_costs_neither_the_start_nor_the_others(
    serve: Callable[..., Cellbox], scope: str
) -> None:
    """It answers nobody; the engine knows it as one that runs."""
    service, other = serve(), f"{scope}n"
    service.cell("x = 1", scope=scope, session="s")
    service.cell("y = 2", scope=other, session="s")
    service.end(signal.SIGKILL)
    for pid in service.processes(scope):
        os.kill(pid, signal.SIGSTOP)
    service.start()
    assert service.cell("print(y)", scope=other, session="s")["state"] == "kept"
    service.end(signal.SIGINT)
    assert containers(service, scope) == []


def test_a_directory_that_is_taken_out_of_a_sandbox_leads_nowhere(cellbox: Cellbox, scope: str) -> None:
    """Code inside holds it open while it is moved to where it is emptied, which is no place of the sandbox."""
    made = "import os\nos.makedirs('a/b')\nfor n in range(200): open(f'a/b/{n}', 'w').close()\nheld = os.open('a/b', 0)"
    cellbox.cell(made, scope=scope, session="s")
    watch = """
import os, time
seen, gone, until = set(), False, time.monotonic() + 20
while not gone and time.monotonic() < until:
    for number in range(1, 8):
        try: directory = os.open("/".join([".."] * number), os.O_RDONLY, dir_fd=held)
        except FileNotFoundError: gone = True
        else:
            seen.add(os.readlink(f"/proc/self/fd/{directory}"))
            os.close(directory)
print(gone, sorted(seen))
"""
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(cellbox.cell, watch, scope=scope, session="s", timeout=30)
        response = cellbox.client.delete(f"/v1/files/{scope}/a", params={"session": "s"})
        assert response.status_code == 200, response.text
        gone, _, seen = watching.result()["stdout"].partition(" ")
    assert gone == "True"
    assert set(ast.literal_eval(seen)) <= {"/", "/opt", "/opt/workspace", "/opt/workspace/a"}


def test_sockets_lie_where_they_are_told_to_and_are_found_again(
    serve: Callable[..., Cellbox], scope: str, tmp_path: Path
) -> None:
    service = serve(link_dir=str(tmp_path / "links"))
    service.cell("x = 41", scope=scope, session="s")
    assert [entry for entry in (service.root / ".run").iterdir() if entry.is_dir()] == []
    assert len(list(tmp_path.glob("links/*/*"))) == 1
    service.end(signal.SIGKILL)
    service.start()
    assert service.cell("print(x + 1)", scope=scope, session="s")["stdout"] == "42\n"


@pytest.mark.parametrize("name", ["bridge", "no-such-network"])
def test_a_network_of_the_engine_is_warned_about_or_refused(
    serve: Callable[..., Cellbox], scope: str, name: str
) -> None:
    if name == "bridge":
        service = serve(network=name)
        assert "SANDBOX_NETWORK=bridge" in service.log
        code = "import socket\nprint(len(socket.if_nameindex()))"
        assert service.exec(code, scope=scope, session="s")["stdout"] == "2\n"
        return
    with pytest.raises(AssertionError, match="docker network create"):
        serve(network=name)
