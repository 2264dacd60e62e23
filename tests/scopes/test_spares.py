"""Directories that get their names later, by one rename that replaces nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from interpreter.backends.base import SandboxId
from interpreter.keys import Key
from interpreter.scopes.renaming import can_rename_new, rename_new
from interpreter.scopes.root import DataRoot
from interpreter.scopes.uids import Ids
from tests.scopes.test_root import as_root

ONE, TWO = SandboxId("1" * 16), SandboxId("2" * 16)
CHAT = Key("u1", "chat")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[DataRoot]:
    made = DataRoot(tmp_path / "data", Ids(own=True))
    made.open()
    yield made
    made.close()


def inode(path: Path) -> int:
    return path.stat().st_ino


def test_a_spare_of_a_scope_becomes_its_session(root: DataRoot) -> None:
    place = root.prepare_spare(ONE, "u1")
    assert place.user == root.path / "u1" / "workspace"
    assert root.is_new(CHAT)
    before = inode(place.workspace)
    root.give_spare(ONE, CHAT, unseen=False)
    assert inode(root.prepare(CHAT).workspace) == before
    assert not place.workspace.exists()
    assert not root.is_new(CHAT)


def test_a_spare_of_no_scope_becomes_a_new_scope_with_its_session(root: DataRoot) -> None:
    place = root.prepare_spare(ONE, None)
    before = inode(place.workspace), inode(place.user)
    assert root.scopes() == []
    root.give_spare(ONE, CHAT, unseen=True)
    after = root.prepare(CHAT)
    assert (inode(after.workspace), inode(after.user)) == before
    assert root.scopes() == ["u1"]
    assert list((root.path / ".spares").iterdir()) == []


@pytest.mark.parametrize("unseen", [False, True])
def test_what_has_come_meanwhile_is_not_replaced(root: DataRoot, unseen: bool) -> None:
    root.prepare_spare(ONE, None if unseen else "u1")
    there = root.prepare(CHAT)
    before = inode(there.workspace), inode(there.user)
    with pytest.raises(FileExistsError):
        root.give_spare(ONE, CHAT, unseen=unseen)
    assert (inode(there.workspace), inode(there.user)) == before
    root.drop_spare(ONE, None if unseen else "u1")
    assert (inode(there.workspace), inode(there.user)) == before


def test_what_nobody_got_is_removed_and_twice_is_nothing(root: DataRoot) -> None:
    root.prepare_spare(ONE, "u1")
    root.prepare_spare(TWO, None)
    for _ in range(2):
        root.drop_spare(ONE, "u1")
        root.drop_spare(TWO, None)
    assert list((root.path / "u1" / ".spares").iterdir()) == []
    assert [*(root.path / ".spares").iterdir(), *(root.path / ".trash").iterdir()] == []


def test_the_end_of_one_that_was_given_away_removes_nothing_of_others(root: DataRoot) -> None:
    """What a purge has moved away may be millions of files, for which a sandbox that ends would wait."""
    root.prepare(CHAT)
    root.prepare_spare(ONE, "u1")
    root.give_spare(ONE, Key("u1", "new"), unseen=False)
    root.purge_session(CHAT)
    root.drop_spare(ONE, "u1")
    assert len(list((root.path / ".trash").iterdir())) == 1


def test_those_of_an_earlier_service_are_removed_and_sessions_stay(root: DataRoot) -> None:
    root.prepare_spare(ONE, "u1")
    root.prepare_spare(TWO, None)
    (root.prepare(CHAT).workspace / "kept").touch()
    root.drop_spares()
    assert list((root.path / "u1" / ".spares").iterdir()) == []
    assert list((root.path / ".spares").iterdir()) == []
    assert (root.prepare(CHAT).workspace / "kept").exists()


@as_root
def test_a_spare_has_from_the_start_the_uid_that_its_scope_will_have(tmp_path: Path) -> None:
    root = DataRoot(tmp_path / "data", Ids(own=False, base=300_000))
    root.open()
    spare, other = root.prepare_spare(ONE, None), root.prepare_spare(TWO, None)
    assert (spare.uid, other.uid) == (300_000, 300_001)
    assert root.prepare(Key("meanwhile", None)).uid == 300_002, "nobody else gets it"
    assert spare.workspace.stat().st_uid == spare.user.stat().st_uid == 300_000
    root.give_spare(ONE, CHAT, unseen=True)
    root.drop_spare(TWO, None)
    root.close()
    again = DataRoot(tmp_path / "data", Ids(own=False, base=300_000))
    again.open()
    assert again.prepare(CHAT).uid == 300_000
    assert again.prepare(Key("meanwhile", None)).uid == 300_002
    again.close()


def test_a_rename_never_replaces_an_empty_directory(tmp_path: Path) -> None:
    """``os.rename`` does, under whoever has opened it to write there."""
    assert can_rename_new(tmp_path)
    assert list(tmp_path.iterdir()) == []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileExistsError):
        rename_new(tmp_path / "old", tmp_path / "new")
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]
    with pytest.raises(FileNotFoundError):
        rename_new(tmp_path / "absent", tmp_path / "newer")
