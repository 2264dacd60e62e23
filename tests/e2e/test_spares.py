"""Sandboxes that are there before their session is, on real hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import CONFINED, Cellbox

RUNTIMES = CONFINED

Serve = Callable[..., Cellbox]


def started(cellbox: Cellbox, number: int) -> None:
    """Wait until so many spares have started since the log began."""
    cellbox.wait_for(lambda: cellbox.log.count("spare started") >= number, within_s=30)


def spares(cellbox: Cellbox) -> set[Path]:
    return {*cellbox.root.glob(".spares/*"), *cellbox.root.glob("*/.spares/*")}


def test_a_new_session_finds_in_a_spare_what_it_finds_in_any_sandbox(serve: Serve, scope: str) -> None:
    cellbox = serve(pool="2")
    started(cellbox, 2)
    for number, session in enumerate(("first", "second"), 1):
        answer = cellbox.cell("import os; open('mine', 'w').write('x'); os.getuid()", scope=scope, session=session)
        assert (answer["state"], answer["generation"]) == ("new", 1)
        assert cellbox.log.count("spare given away") == number
        mine = cellbox.root / scope / "sessions" / session / "mine"
        assert mine.read_text() == "x"
        started(cellbox, 2 + number)
    owner = (cellbox.root / scope / "workspace").stat().st_uid
    assert {mine.stat().st_uid for mine in cellbox.root.glob(f"{scope}/sessions/*/mine")} == {owner}
    cellbox.exec("echo ours > /opt/user/note", language="bash", scope=scope, session="first")
    read = cellbox.exec("cat /opt/user/note; ls /opt/workspace", language="bash", scope=scope, session="second")
    assert read["stdout"] == "ours\nmine\n"
    other = cellbox.cell("import os; os.getuid()", scope=f"{scope}n", session="first")
    assert other["results"][0]["data"]["text/plain"] != f"{owner}"


@pytest.mark.long_on_docker
def test_nothing_of_a_session_is_in_a_spare_nor_of_a_spare_in_a_session(serve: Serve, scope: str) -> None:
    """S10."""
    cellbox = serve(pool="1")
    started(cellbox, 1)
    leave = """
import os, pathlib
for place in ("/tmp", "/dev/shm", "/opt/workspace"):
    pathlib.Path(place, "left").write_text("x")
os.environ["LEFT"] = left = "x"
"""
    cellbox.cell(leave, scope=scope, session="first")
    started(cellbox, 2)
    look = """
import os
files = [name for place in ("/tmp", "/dev/shm", "/opt/workspace") for name in os.listdir(place) if name == "left"]
files + [name for name in ("left", "LEFT") if name in globals() or name in os.environ]
"""
    answer = cellbox.cell(look, scope=scope, session="second")
    assert cellbox.log.count("spare given away") == 2
    assert answer["results"][0]["data"]["text/plain"] == "[]"


@pytest.mark.long_on_docker
def test_killed_the_service_leaves_sessions_to_the_next_one_and_spares_to_nobody(serve: Serve, scope: str) -> None:
    cellbox = serve(pool="2")
    started(cellbox, 2)
    cellbox.cell("x = 41", scope=scope, session="s")
    started(cellbox, 3)
    left, before = spares(cellbox), cellbox.processes()
    assert len(left) == 2
    others = before.keys() - cellbox.processes(scope).keys()
    cellbox.end(signal.SIGKILL)
    cellbox.start()
    answer = cellbox.cell("x + 1", scope=scope, session="s")
    assert (answer["state"], answer["results"][0]["data"]["text/plain"]) == ("kept", "42")
    assert others
    cellbox.wait_for(lambda: not left & spares(cellbox), within_s=20)
    cellbox.wait_for(lambda: not others & cellbox.processes().keys(), within_s=20)
    cellbox.wait_for(lambda: os.listdir(cellbox.root / ".trash") == [], within_s=20)


@pytest.mark.long_on_docker
def test_a_purge_of_the_scope_ends_its_spare_and_the_next_one_begins_anew(serve: Serve, scope: str) -> None:
    cellbox = serve(pool="1")
    started(cellbox, 1)
    cellbox.cell("1", scope=scope, session="s")
    started(cellbox, 2)
    response = cellbox.client.delete(f"/v1/scopes/{scope}", params={"purge": "true"})
    assert response.json() == {"removed": 1, "purged": True}
    assert not (cellbox.root / scope).exists()
    assert cellbox.cell("1", scope=scope, session="s")["state"] == "new"
