"""Files of a session, through both clients."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from interpreter.client import AsyncClient, Client, InvalidRequest, NotFound


def test_files_go_there_and_come_back(client: Client, scope: str, tmp_path: Path) -> None:
    files = client.session(scope, "chatA").files
    stored = files.write("in/a b.csv", "n\n1\n")
    assert (stored.path, stored.size, stored.sha256) == ("in/a b.csv", 4, hashlib.sha256(b"n\n1\n").hexdigest())
    assert client.session(scope, "chatA").run("open('in/a b.csv').read()").text == "'n\\n1\\n'"
    assert files.read("in/a b.csv") == b"n\n1\n"
    assert [(each.name, each.is_dir) for each in files.list()] == [("in", True)]
    assert [(each.name, each.size) for each in files.list("in")] == [("a b.csv", 4)]
    data = os.urandom(3_000_000)
    (tmp_path / "big").write_bytes(data)
    files.upload(tmp_path / "big")
    files.download("big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    assert sorted(each.name for each in tmp_path.iterdir()) == ["back", "big"]
    files.remove("in")
    assert [each.name for each in files.list()] == ["big"]


def test_what_is_no_file_is_said_and_leaves_nothing_here(client: Client, scope: str, tmp_path: Path) -> None:
    files = client.session(scope).files
    files.write("d/x", b"1")
    with pytest.raises(InvalidRequest, match="'d' is a directory"):
        files.read("d")
    with pytest.raises(InvalidRequest, match="'d' is a directory"):
        files.download("d", tmp_path / "d")
    with pytest.raises(NotFound):
        files.download("none", tmp_path / "none")
    with pytest.raises(NotFound):
        files.list("d/x")
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_not_utf8_can_be_read(client: Client, scope: str) -> None:
    session = client.session(scope)
    session.run("open(b'\\xff.txt', 'w').write('odd')")
    (entry,) = session.files.list()
    assert entry.raw == "%FF.txt"
    assert session.files.read(entry.part) == b"odd"


def test_a_directory_of_any_size_is_listed_whole(client: Client, scope: str) -> None:
    session = client.session(scope)
    session.run("for n in range(2500): open(f'{n:04}', 'w').close()")
    assert [each.name for each in session.files.list()] == [f"{n:04}" for n in range(2500)]


async def test_the_async_client_moves_files_too(calling: AsyncClient, scope: str, tmp_path: Path) -> None:
    files = calling.session(scope).files
    data = os.urandom(1_000_000)
    (tmp_path / "big").write_bytes(data)
    await files.upload(tmp_path / "big", "there")
    await files.download("there", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    await files.write("small", b"1")
    assert [each.name for each in await files.list()] == ["small", "there"]
    assert await files.read("small") == b"1"
    await files.remove("small")
