"""The layout on disk, who owns it, and who may use it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from interpreter.backends.base import SandboxId
from interpreter.errors import SingleTenant
from interpreter.keys import Key
from interpreter.scopes.root import DataRoot, DataRootError, DataRootLocked
from interpreter.scopes.uids import Ids, Uids

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="owners can only be changed by root")
OWN = Ids(own=True)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[DataRoot]:
    made = DataRoot(tmp_path / "data", OWN)
    made.open()
    yield made
    made.close()


def test_a_second_service_is_told_the_first_ones_pid(root: DataRoot) -> None:
    with pytest.raises(DataRootLocked, match=f"pid {os.getpid()}"):
        DataRoot(root.path, OWN).open()
    root.close()
    again = DataRoot(root.path, OWN)
    again.open()
    again.close()


def test_link_directories_of_an_earlier_service_are_removed(root: DataRoot) -> None:
    left = root.run_dir(SandboxId("0123456789abcdef"))
    (left / "link.sock").touch()
    state = root.path / ".run" / "0123456789abcdef.sandbox"
    state.touch()
    root.drop_run_dirs()
    assert list((root.path / ".run").iterdir()) == [state], "what the backend keeps there is the backend's"


def test_link_directories_have_another_place_where_one_is_named(tmp_path: Path) -> None:
    """Data roots share it and touch their own only; one that was made before it was named is found and removed."""
    first, second = (DataRoot(tmp_path / name, OWN, links=tmp_path / "links") for name in ("one", "two"))
    before = DataRoot(tmp_path / "one", OWN)
    before.open()
    old = before.run_dir(SandboxId("00000000000000aa"))
    before.close()
    first.open()
    second.open()
    mine, others = first.run_dir(SandboxId("00000000000000bb")), second.run_dir(SandboxId("00000000000000bb"))
    assert mine != others
    assert mine.is_relative_to(tmp_path / "links")
    assert first.found_run_dir(SandboxId("00000000000000bb")) == mine
    assert first.found_run_dir(SandboxId("00000000000000aa")) == old
    first.drop_run_dirs()
    assert (old.exists(), mine.exists(), others.exists()) == (False, False, True)
    first.close()
    second.close()


def test_layout(root: DataRoot) -> None:
    place = root.prepare(Key("u1", "chat"))
    assert place.workspace == root.path / "u1" / "sessions" / "chat"
    assert place.user == root.path / "u1" / "workspace"
    alone = root.prepare(Key("u1", None))
    assert alone.workspace == alone.user == place.user
    assert sorted(os.listdir(root.path / "u1")) == [".staging", "sessions", "workspace"]
    assert root.path.stat().st_mode & 0o777 == 0o700
    assert root.scopes() == ["u1"]


@pytest.mark.parametrize("where", ["u1", "u1/sessions", "u1/workspace", "u1/sessions/chat"])
def test_a_link_in_the_place_of_a_directory_is_refused(root: DataRoot, tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = root.path / where
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    with pytest.raises(OSError):  # noqa: PT011 - ELOOP or ENOTDIR, as the file system says it
        root.prepare(Key("u1", "chat"))
    assert list(outside.iterdir()) == []


def test_one_tenant_claims_the_root_for_good(tmp_path: Path) -> None:
    root = DataRoot(tmp_path / "data", OWN, single_tenant=True)
    root.open()
    root.prepare(Key("first", None))
    with pytest.raises(SingleTenant):
        root.prepare(Key("second", None))
    root.close()
    again = DataRoot(root.path, OWN, single_tenant=True)
    again.open()
    with pytest.raises(SingleTenant):
        again.prepare(Key("second", None))
    again.prepare(Key("first", "chat"))
    again.close()


@as_root
def test_each_scope_has_a_uid_of_its_own_for_ever(tmp_path: Path) -> None:
    root = DataRoot(tmp_path / "data", Ids(own=False, base=300_000))
    root.open()
    first, second = root.prepare(Key("a", None)), root.prepare(Key("b", "s"))
    assert (first.uid, second.uid) == (300_000, 300_001)
    assert second.workspace.stat().st_uid == second.user.stat().st_uid == 300_001
    assert second.workspace.parent.stat().st_uid == 0
    root.purge_scope("b")
    root.close()
    with (root.path / ".uids").open("a") as file:
        file.write("torn 30")
    again = DataRoot(root.path, Ids(own=False, base=200_000))
    again.open()
    assert again.prepare(Key("b", None)).uid == 300_001
    assert again.prepare(Key("c", None)).uid == 300_002
    again.close()
    assert (root.path / ".uids").read_text() == "a 300000\nb 300001\nc 300002\n"


@pytest.mark.parametrize("fails", ["write", "fsync"])
def test_a_uid_that_could_not_be_written_down_leaves_no_half_line(
    root: DataRoot, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    uids = Uids(root.path / ".uids", Ids(own=False, base=300_000))
    assert uids.of("a") == (300_000, 300_000)
    whole = os.write

    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, full if fails == "fsync" else lambda handle, data: whole(handle, data[:4]))
        with pytest.raises(OSError, match="No space left"):
            uids.of("b")
    assert (root.path / ".uids").read_text() == "a 300000\n"
    assert uids.of("c") == (300_001, 300_001)
    assert uids.read() == {"a": 300_000, "c": 300_001}


def test_a_takeover_holds_up_nobody_else(root: DataRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    going, go_on = threading.Event(), threading.Event()

    def slow(_directory: int, _uid: int | None, _gid: int | None) -> None:
        if threading.current_thread() is taking:
            going.set()
            go_on.wait(30)

    monkeypatch.setattr("interpreter.scopes.root._give", slow)
    taking = threading.Thread(target=root.prepare, args=(Key("a", "s"),))
    taking.start()
    try:
        assert going.wait(20)
        assert root.prepare(Key("b", None)).workspace == root.path / "b" / "workspace"
    finally:
        go_on.set()
        taking.join()


def test_a_spoilt_memory_of_uids_stops_the_start(root: DataRoot) -> None:
    root.close()
    (root.path / ".uids").write_text("../x 0\n")
    with pytest.raises(DataRootError, match="not ours"):
        root.open()


@as_root
def test_data_of_another_uid_is_taken_over_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    root = DataRoot(tmp_path / "data", Ids(own=False, uid=4242))
    root.open()
    workspace = root.path / "u1" / "workspace"
    deep = workspace
    for _ in range(60):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    (workspace / "link").symlink_to(outside)
    (workspace / "loop").symlink_to(".")
    root.prepare(Key("u1", None))
    root.close()
    assert {os.lstat(p).st_uid for p in (workspace, deep, deep / "file", workspace / "link")} == {4242}
    assert outside.stat().st_uid == 0


def test_purge_takes_everything_of_a_session_and_nothing_else(root: DataRoot) -> None:
    gone, kept = root.prepare(Key("u1", "gone")), root.prepare(Key("u1", "kept"))
    (gone.workspace / "secret").write_text("x")
    gone.workspace.chmod(0)
    (kept.workspace / "file").write_text("x")
    assert root.purge_session(Key("u1", "gone"))
    assert not root.purge_session(Key("u1", "gone"))
    assert root.sweep()
    assert not gone.workspace.exists()
    assert (kept.workspace / "file").exists()
    assert root.purge_scope("u1")
    assert root.sweep()
    assert root.scopes() == []
    assert list((root.path / ".trash").iterdir()) == []


def test_run_directories_come_and_go(root: DataRoot) -> None:
    path = root.run_dir(SandboxId("0123456789abcdef"))
    (path / "state").write_text("x")
    assert path.stat().st_mode & 0o777 == 0o755
    root.drop_run_dir(SandboxId("0123456789abcdef"))
    root.drop_run_dir(SandboxId("0123456789abcdef"))
    assert not path.exists()


def test_what_a_killed_service_was_storing_goes_with_the_next_start(tmp_path: Path) -> None:
    first = DataRoot(tmp_path / "data", Ids(own=True))
    first.open()
    first.prepare(Key("u1", None))
    staging = tmp_path / "data/u1/.staging"
    (staging / "deep/er").mkdir(parents=True)
    (staging / "half").write_bytes(b"half")
    (tmp_path / "data/u1/workspace/kept").write_bytes(b"whole")
    first.close()
    second = DataRoot(tmp_path / "data", Ids(own=True))
    second.open()
    root, place, *_ = second.open_directories(Key("u1", None))
    try:
        assert (os.listdir(root), os.listdir(place), os.listdir(tmp_path / "data/.trash")) == (["kept"], [], [])
    finally:
        os.close(root)
        os.close(place)
        second.close()
