"""Going through directories: order, going on, patterns, and what is not followed; copies of directories."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from interpreter.errors import BodyTooLarge, InvalidRequest
from interpreter.files import walking
from interpreter.files.errors import FileExists
from interpreter.files.tree import Tree
from interpreter.files.walking import matcher
from tests.files.conftest import SECRET


def fill(workspace: Path, *paths: str) -> None:
    for path in paths:
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(path)


def paths(tree: Tree, *, after: bytes = b"", pattern: str = "**", limit: int = 100) -> list[str]:
    found, _ = tree.find([], limit=limit, after=after, meant=matcher(pattern))
    return [os.fsdecode(entry.name) for entry in found]


def test_all_is_found_in_the_order_of_paths(tree: Tree, workspace: Path) -> None:
    fill(workspace, "b/c/d", "b/a", "b.txt", "a")
    assert paths(tree) == ["a", "b", "b/a", "b/c", "b/c/d", "b.txt"]


def test_every_page_goes_on_where_the_last_one_ended(
    tree: Tree, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(workspace, *(f"{a}/{b}/{c}" for a in "abc" for b in "xyz" for c in "123"))
    monkeypatch.setattr(walking, "_CHUNK", 2)
    every = paths(tree)
    assert len(every) == 3 + 9 + 27
    for limit in (1, 2, 5):
        seen: list[str] = []
        after: bytes | None = b""
        while after is not None:
            found, after = tree.find([], limit=limit, after=after, meant=matcher("**"))
            seen += [os.fsdecode(entry.name) for entry in found]
        assert seen == every


def test_a_walk_that_looks_at_too_much_ends_and_says_where(tree: Tree, workspace: Path) -> None:
    fill(workspace, *(f"d{n}/f" for n in range(20)))
    found, after = tree.find([], limit=100, meant=matcher("**/f"), names=25)
    assert 0 < len(found) < 20
    assert after is not None
    rest: list[bytes] = [entry.name for entry in found]
    while after is not None:
        found, after = tree.find([], limit=100, after=after, meant=matcher("**/f"), names=25)
        rest += [entry.name for entry in found]
    assert sorted(rest) == sorted(f"d{n}/f".encode() for n in range(20))


def test_links_are_shown_and_not_followed(tree: Tree, workspace: Path, outside: Path) -> None:
    fill(workspace, "d/f")
    (workspace / "loop").symlink_to(".")
    (workspace / "out").symlink_to(outside)
    os.mkfifo(workspace / "fifo")
    assert paths(tree) == ["d", "d/f", "fifo", "loop", "out"]


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("*.csv", ["a.csv"]),
        ("**/*.csv", ["a.csv", "d/b.csv", "d/e/c.csv"]),
        ("d/*", ["d/b.csv", "d/e"]),
        ("d/**", ["d", "d/b.csv", "d/e", "d/e/c.csv", "d/e/x[1]"]),
        ("**/e/**/c.csv", ["d/e/c.csv"]),
        ("?/[be]*", ["d/b.csv", "d/e"]),
        ("**/x[[]1]", ["d/e/x[1]"]),
        ("**/**/**", ["a.csv", "d", "d/b.csv", "d/e", "d/e/c.csv", "d/e/x[1]"]),
        ("none/*", []),
    ],
)
def test_patterns(tree: Tree, workspace: Path, pattern: str, meant: list[str]) -> None:
    fill(workspace, "a.csv", "d/b.csv", "d/e/c.csv", "d/e/x[1]")
    assert paths(tree, pattern=pattern) == meant


@pytest.mark.parametrize("pattern", ["", "/a", "a/", "a//b", "a/" * 64 + "b", "x" * 1025, "a\0"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        matcher(pattern)


def test_no_pattern_takes_long() -> None:
    meant = matcher("/".join(["**", "*a*a*a*a*a*a*b"] * 30))
    assert not meant(tuple([b"a" * 255] * 64))


def test_a_directory_is_copied_with_links_as_links_and_modes(
    tree: Tree, workspace: Path, staging: Path, outside: Path
) -> None:
    fill(workspace, "d/e/f", "d/run")
    (workspace / "d/run").chmod(0o4755)
    (workspace / "d/out").symlink_to(outside / "secret")
    os.mkfifo(workspace / "d/fifo")
    tree.copy([b"d"], [b"new", b"d"], limit=1000)
    copied = workspace / "new/d"
    assert (copied / "e/f").read_text() == "d/e/f"
    assert stat.S_IMODE((copied / "run").stat().st_mode) == 0o755
    assert os.readlink(copied / "out") == str(outside / "secret")
    assert sorted(os.listdir(copied)) == ["e", "out", "run"]
    assert os.listdir(staging) == []
    if tree.uid is not None:
        owners = {path.lstat().st_uid for path in [copied, *copied.rglob("*")]}
        assert owners == {tree.uid}
    assert (outside / "secret").read_bytes() == SECRET


def test_a_copy_that_cannot_be_whole_leaves_nothing(tree: Tree, workspace: Path, staging: Path) -> None:
    fill(workspace, "d/e/f", "full/x")
    for target, kind in (([b"new"], BodyTooLarge), ([b"full"], FileExists), ([b"d", b"in"], InvalidRequest)):
        with pytest.raises(kind):
            tree.copy([b"d"], target, limit=3 if kind is BodyTooLarge else 1000)
    assert sorted(os.listdir(workspace)) == ["d", "full"]
    assert os.listdir(staging) == []
