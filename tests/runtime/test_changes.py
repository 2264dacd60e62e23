"""What is told of the workspace after an execution: each kind of change, whatever the tenant does to hide it, within bounds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandboxd import changes
from sandboxd.changes import Workspace
from sandboxd.protocol import MAX_CHANGES


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a look takes here, it looks at as much."""
    monkeypatch.setattr(changes, "MOST_S", 1e6)


async def told(root: Path, work: Callable[[], object], workspace: Workspace | None = None) -> dict[str, object]:
    """Path to what became of it, and the size of what is there, of an execution that does ``work``."""
    workspace = workspace or Workspace(str(root))
    watch = await workspace.begin()
    work()
    found, incomplete = workspace.end(watch)
    assert incomplete is None
    return {
        os.fsdecode(each.path): each.change if each.change == "deleted" else (each.change, each.size) for each in found
    }


def after_this_tick(file: Path) -> None:
    """Return once what is changed now has another time than ``file``."""
    while changes.now() <= file.stat().st_ctime_ns:
        time.sleep(0.001)


async def test_created_changed_and_deleted_files_are_told_with_their_sizes(tmp_path: Path) -> None:
    for name in ("kept", "changed", "deleted"):
        (tmp_path / name).write_text("old")

    def work() -> None:
        (tmp_path / "new").write_text("123456")
        (tmp_path / "changed").write_text("longer")
        (tmp_path / "deleted").unlink()
        (tmp_path / "passing").write_text("")
        (tmp_path / "passing").unlink()

    assert await told(tmp_path, work) == {"new": ("created", 6), "changed": ("changed", 6), "deleted": "deleted"}


async def test_what_programs_keep_in_their_home_is_left_out_and_nothing_else(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    for root in (home, other):
        root.mkdir()

    def work(root: Path) -> None:
        for folder in (".cache", ".local/bin", ".config", "sub/.cache", ".mine"):
            (root / folder).mkdir(parents=True)
            (root / folder / "f").touch()

    found = await told(home, lambda: work(home), Workspace(str(home), str(home)))
    assert set(found) == {"sub/.cache/f", ".mine/f"}
    found = await told(other, lambda: work(other), Workspace(str(other), str(home)))
    assert set(found) == {".cache/f", ".local/bin/f", ".config/f", "sub/.cache/f", ".mine/f"}


async def test_directories_are_told_as_what_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "old/deep").mkdir(parents=True)
    (tmp_path / "old/deep/f").write_text("1")
    (tmp_path / "moved/d").mkdir(parents=True)
    (tmp_path / "moved/d/g").write_text("22")

    def work() -> None:
        (tmp_path / "new/a/b").mkdir(parents=True)
        (tmp_path / "new/a/b/h").write_text("333")
        (tmp_path / "empty").mkdir()
        (tmp_path / "old/deep/f").unlink()
        (tmp_path / "old/deep").rmdir()
        (tmp_path / "moved").rename(tmp_path / "there")

    assert await told(tmp_path, work) == {
        "new/a/b/h": ("created", 3),
        "old/deep/f": "deleted",
        "moved/d/g": "deleted",
        "there/d/g": ("created", 2),
    }


async def test_a_time_that_was_set_back_hides_nothing(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("aaa")
    os.utime(file, (1, 1))

    def work() -> None:
        file.write_text("bbb")
        os.utime(file, (1, 1))

    assert await told(tmp_path, work) == {"f": ("changed", 3)}


async def test_a_file_in_the_place_of_another_with_its_size_and_times_has_changed(tmp_path: Path) -> None:
    for name in ("f", "g"):
        (tmp_path / name).write_text("aaa")
        os.utime(tmp_path / name, (1, 1))
    assert await told(tmp_path, lambda: (tmp_path / "g").rename(tmp_path / "f")) == {
        "f": ("changed", 3),
        "g": "deleted",
    }


async def test_links_and_fifos_are_told_as_themselves_and_never_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("x")
    root = tmp_path / "workspace"
    root.mkdir()

    def work() -> None:
        (root / "to-directory").symlink_to(tmp_path / "outside")
        (root / "dangling").symlink_to("/nowhere")
        os.mkfifo(root / "fifo")

    assert await told(root, work) == {
        "to-directory": ("created", 0),
        "dangling": ("created", 0),
        "fifo": ("created", 0),
    }


async def test_names_that_are_not_utf8_come_as_their_bytes(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path))
    watch = await workspace.begin()
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff\n", os.O_WRONLY | os.O_CREAT))
    ((change,), _) = workspace.end(watch)
    assert change.path == b"\xff\n"


async def test_what_changed_between_two_executions_is_in_none(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path))
    (tmp_path / "f").write_text("1")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/gone").write_text("1")
    assert await told(tmp_path, lambda: None, workspace) == {}
    (tmp_path / "f").write_text("between")
    (tmp_path / "d/gone").unlink()
    (tmp_path / "d/put").write_text("between")
    after_this_tick(
        tmp_path / "f"
    )  # what is changed in place right before an execution cannot be told from what it does
    assert await told(tmp_path, lambda: None, workspace) == {}
    assert await told(tmp_path, (tmp_path / "d/put").unlink, workspace) == {"d/put": "deleted"}


async def test_a_file_that_is_written_again_at_once_has_changed_each_time(tmp_path: Path) -> None:
    """Within one tick of the clock that files get their times from, with the same size."""
    workspace = Workspace(str(tmp_path))
    assert await told(tmp_path, lambda: (tmp_path / "f").write_text("0"), workspace) == {"f": ("created", 1)}
    for number in range(1, 10):
        text = str(number)
        assert await told(tmp_path, lambda: (tmp_path / "f").write_text(text), workspace) == {"f": ("changed", 1)}  # noqa: B023 - at once


async def test_of_executions_side_by_side_each_is_told_all_of_its_time(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path))
    first = await workspace.begin()
    (tmp_path / "a").write_text("1")
    second = await workspace.begin()
    (tmp_path / "b").write_text("1")
    assert [each.path for each in workspace.end(second)[0]] == [b"b"]
    (tmp_path / "a").unlink()
    (tmp_path / "c").write_text("1")
    assert [(each.path, each.change) for each in workspace.end(first)[0]] == [(b"b", "created"), (b"c", "created")]


async def test_a_file_that_becomes_a_directory_is_deleted_and_the_reverse_is_created(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/in").write_text("1")

    def work() -> None:
        (tmp_path / "f").unlink()
        (tmp_path / "f").mkdir()
        (tmp_path / "f/in").write_text("22")
        (tmp_path / "d/in").unlink()
        (tmp_path / "d").rmdir()
        (tmp_path / "d").write_text("333")

    assert await told(tmp_path, work) == {
        "f": "deleted",
        "f/in": ("created", 2),
        "d/in": "deleted",
        "d": ("created", 3),
    }


async def test_too_many_changes_are_cut_and_that_is_said(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path))
    watch = await workspace.begin()
    for number in range(MAX_CHANGES + 1):
        (tmp_path / f"{number:05}").touch()
    found, incomplete = workspace.end(watch)
    assert (len(found), incomplete) == (MAX_CHANGES, "too_many_changes")
    watch = await workspace.begin()
    for number in range(MAX_CHANGES):
        (tmp_path / f"{number:05}").unlink()
    found, incomplete = workspace.end(watch)
    assert (len(found), incomplete) == (MAX_CHANGES, None)


async def test_long_paths_are_cut_by_their_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "/".join(["d" * 250] * 4)
    workspace = Workspace(str(tmp_path))
    watch = await workspace.begin()
    folder.mkdir(parents=True)
    for number in range(200):
        (folder / f"{number:03}").touch()
    found, incomplete = workspace.end(watch)
    assert sum(len(each.path) for each in found) <= changes.MOST_PATHS
    assert incomplete == "too_many_changes"


async def test_of_too_many_entries_the_upper_directories_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MOST_ENTRIES", 20)
    (tmp_path / "many").mkdir()
    for number in range(30):
        (tmp_path / f"many/{number}").touch()
    workspace = Workspace(str(tmp_path))
    watch = await workspace.begin()
    (tmp_path / "many/new").touch()
    (tmp_path / "above").touch()
    found, incomplete = workspace.end(watch)
    assert ([each.path for each in found], incomplete) == ([b"above"], "too_many_entries")
    watch = await workspace.begin()
    for number in range(15):  # it can be looked at from now on, and what is there is not new
        (tmp_path / f"many/{number}").unlink()
    found, incomplete = workspace.end(watch)
    assert (found, incomplete) == ([], "too_many_entries")
    assert await told(tmp_path, (tmp_path / "many/20").unlink, workspace) == {"many/20": "deleted"}


def test_where_looking_takes_long_fewer_names_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MOST_S", 0.04)
    for took_s, most in ((1e-6, 5000), (2e-6, 5000), (20e-6, 2000), (1e-3, 1000)):
        monkeypatch.setattr(changes, "_stat_s", lambda _path, took_s=took_s: took_s)
        assert abs(Workspace(str(tmp_path))._most - most) <= 1


async def test_what_grows_beyond_the_limit_is_not_told_as_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MOST_ENTRIES", 20)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").touch()
    workspace = Workspace(str(tmp_path))
    watch = await workspace.begin()
    for number in range(30):
        (tmp_path / f"d/{number}").touch()
    assert workspace.end(watch) == ([], "too_many_entries")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
async def test_a_directory_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o000)
    workspace = Workspace(str(tmp_path))
    watch = await workspace.begin()
    assert workspace.end(watch) == ([], "unreadable")


async def test_a_workspace_that_is_gone_is_no_error(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path / "nowhere"))
    watch = await workspace.begin()
    assert workspace.end(watch) == ([], None)


async def test_looking_at_an_empty_workspace_takes_few_microseconds(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path))
    best = 1.0
    for _ in range(200):
        begun = time.perf_counter()
        watch = await workspace.begin()
        workspace.end(watch)
        best = min(best, time.perf_counter() - begun)
    assert best < 50e-6
