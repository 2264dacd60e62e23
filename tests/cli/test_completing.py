"""What Tab offers in ``cellbox repl`` is what the kernel knows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interpreter.cli.completing import MOST, matches
from interpreter.client import Client, Session
from tests.e2e.conftest import KEY, Cellbox, running


@pytest.fixture(scope="module")
def cellbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cellbox]:
    with running(tmp_path_factory.mktemp("completing"), runtime_backend="process", runtime_checks="warn") as service:
        yield service


@pytest.fixture(scope="module")
def session(cellbox: Cellbox) -> Iterator[Session]:
    with Client(cellbox.url, KEY) as client:
        found = client.session("ada", "one")
        found.run("import os\nvalue = 1")
        found.run("const car = {door: 1, drive() {}}; let list = [1]", "node")
        found.run("mine=5; touch a-file", "bash")
        yield found


@pytest.mark.parametrize(
    ("language", "before", "word", "found"),
    [
        ("python", "val", "val", ["value"]),
        ("python", "x = val", "val", ["value"]),
        ("python", "os.pat", "os.pat", ["os.path"]),
        ("python", "os.path.joi", "os.path.joi", ["os.path.join"]),
        ("python", "def f():\n    retu", "retu", ["return"]),
        ("python", "%timei", "timei", ["timeit"]),
        ("python", "open('a-fi", "a-fi", ["a-file"]),
        ("python", "nothing_like_it", "nothing_like_it", []),
        ("node", "car.d", "car.d", ["car.door", "car.drive"]),
        ("node", "list.ma", "list.ma", ["list.map"]),
        ("node", "Mat", "Mat", ["Math"]),
        ("node", "nothing.x", "nothing.x", []),
        ("bash", "cat a-fi", "a-fi", ["a-file"]),
        ("bash", "true; comp", "comp", ["compgen", "complete", "compopt"]),
        ("bash", "echo $mine", "$mine", ["$mine"]),
    ],
)
def test_a_word_is_completed(session: Session, language: str, before: str, word: str, found: list[str]) -> None:
    said = matches(session, language, before, word)
    assert set(found) <= set(said)
    assert all(name.startswith(word) for name in said)
    assert bool(said) is bool(found)


def test_looking_changes_nothing_that_is_seen(session: Session) -> None:
    assert session.run("5").text == "5"
    session.run("false", "bash")
    names = session.run("sorted(name for name in globals() if name[0] != '_')").text
    matches(session, "python", "val", "val")
    matches(session, "bash", "ech", "ech")
    assert session.run("sorted(name for name in globals() if name[0] != '_')").text == names
    assert session.run("echo $?", "bash").stdout == "1\n"


def test_many_are_cut_and_a_hostile_name_is_only_text(session: Session) -> None:
    assert len(matches(session, "bash", "", "")) <= MOST
    assert matches(session, "bash", "x '; touch made; '", "'; touch made; '") == []
    hostile = "x''' + open('made', 'w').name"
    assert matches(session, "python", hostile, hostile) == []
    assert matches(session, "node", "a}; made = 1; {", "a}; made = 1; {") == []
    assert session.run("ls made", "bash").exit_code != 0


def test_a_busy_kernel_offers_nothing(session: Session) -> None:
    session.submit("import time; time.sleep(30)")
    try:
        assert matches(session, "python", "val", "val") == []
    finally:
        assert session.interrupt()
