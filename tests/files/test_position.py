"""Going down and up with one descriptor, while directories are moved."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from interpreter.files import walking
from interpreter.files.copying import Copying
from interpreter.files.errors import FileBusy
from interpreter.files.position import Position
from interpreter.files.walking import Budget, walk


@pytest.fixture
def top(workspace: Path) -> Iterator[int]:
    handle = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    yield handle
    os.close(handle)


@pytest.fixture
def here(top: int) -> Iterator[Position]:
    with contextlib.closing(Position(top)) as position:
        yield position


def inode(handle: int) -> int:
    return os.fstat(handle).st_ino


def test_up_leads_back_to_where_down_began(here: Position, workspace: Path) -> None:
    (workspace / "a/b/c").mkdir(parents=True)
    for name in (b"a", b"b", b"c"):
        here.down(name)
    for place in ("a/b", "a", ""):
        here.up()
        assert inode(here.handle) == (workspace / place).stat().st_ino


def test_what_is_no_directory_leaves_it_where_it_was(here: Position, workspace: Path, outside: Path) -> None:
    (workspace / "link").symlink_to(outside)
    (workspace / "file").touch()
    for name in (b"link", b"file", b"none"):
        with pytest.raises(OSError, match=r"directory"):
            here.down(name)
        assert inode(here.handle) == workspace.stat().st_ino


def test_a_directory_that_was_moved_away_leads_back_and_not_to_where_it_is_now(
    here: Position, workspace: Path, outside: Path
) -> None:
    (workspace / "a/b").mkdir(parents=True)
    here.down(b"a")
    here.down(b"b")
    (workspace / "a/b").rename(outside / "b")
    here.up()
    assert inode(here.handle) == (workspace / "a").stat().st_ino
    (workspace / "a").rename(outside / "a")
    here.up()
    assert inode(here.handle) == workspace.stat().st_ino


def test_where_what_it_came_from_is_gone_it_says_so_and_goes_further_up(
    here: Position, workspace: Path, outside: Path
) -> None:
    (workspace / "a/b/c").mkdir(parents=True)
    for name in (b"a", b"b", b"c"):
        here.down(name)
    (workspace / "a/b/c").rename(outside / "c")
    (workspace / "a/b").rename(outside / "b")
    (workspace / "a/b").mkdir()  # of the same name, and another one
    with pytest.raises(FileBusy):
        here.up()
    here.up()
    assert inode(here.handle) == (workspace / "a").stat().st_ino
    here.up()
    assert inode(here.handle) == workspace.stat().st_ino


def test_a_walk_goes_on_past_a_directory_that_was_moved_from_under_it(top: int, workspace: Path, outside: Path) -> None:
    for name in ("a/b/c/f", "a/b/x", "a/y", "z"):
        (workspace / name).mkdir(parents=True)
    seen = []
    for found in walk(top, Budget()):
        seen.append(b"/".join(found.path).decode())
        if seen[-1] == "a/b/c/f":
            (workspace / "a/b/c").rename(outside / "c")
            (workspace / "a/b").rename(outside / "b")
    # `x` cannot be found any more; nothing that lies beside where it is now has been seen.
    assert seen == ["a", "a/b", "a/b/c", "a/b/c/f", "a/y", "z"]


def test_a_large_directory_is_gone_through_again_after_what_is_below_it(
    top: int, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "_CHUNK", 2)
    for name in "abcdefg":
        (workspace / name / "in").mkdir(parents=True)
    seen = [b"/".join(found.path).decode() for found in walk(top, Budget())]
    assert seen == [path for name in "abcdefg" for path in (name, f"{name}/in")]


def test_a_copy_of_what_is_moved_meanwhile_is_none(top: int, workspace: Path, staging: Path, outside: Path) -> None:
    (workspace / "a/b/c").mkdir(parents=True)

    def give(handle: int, _mode: int) -> None:
        if (workspace / "a/b/c").exists():  # the first that is given is the innermost
            (workspace / "a/b/c").rename(outside / "c")
            (workspace / "a/b").rename(outside / "b")

    target = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(FileBusy):
            Copying(1000, give, None, None).directory(top, target)
    finally:
        os.close(target)
