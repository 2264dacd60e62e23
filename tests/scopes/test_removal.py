"""Hostile trees: deep, unreadable, full of links."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interpreter.scopes.removal import empty
from tests.attempts import in_time


def _empty(path: Path, *, within_s: float = 60) -> bool:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return empty(handle, within_s=within_s)
    finally:
        os.close(handle)


@pytest.fixture
def trash(tmp_path: Path) -> Path:
    path = tmp_path / "trash"
    path.mkdir()
    return path


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("few_descriptors")
@pytest.mark.parametrize("levels", [5_000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_more_levels_than_a_path_a_recursion_and_descriptors_can_have(trash: Path, levels: int) -> None:
    """A path has 4,096 bytes, of which each level takes two; a recursion has 1,000 levels."""
    current = os.open(trash, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=current)
        following = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=current)
        os.close(current)
        current = following
    os.close(current)
    assert _empty(trash)
    assert os.listdir(trash) == []


def test_links_are_removed_and_not_followed(trash: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (trash / "to_dir").symlink_to(outside)
    (trash / "a").mkdir()
    (trash / "a" / "to_dir").symlink_to(outside)
    (trash / "a" / "to_file").symlink_to(outside / "kept")
    os.link(outside / "kept", trash / "a" / "hard")
    os.mkfifo(trash / "a" / "fifo")
    assert _empty(trash)
    assert (outside / "kept").read_text() == "x"


def test_directories_without_rights(trash: Path) -> None:
    (trash / "a" / "b" / "c").mkdir(parents=True)
    (trash / "a" / "b" / "c" / "file").write_text("x")
    for path in ("a/b/c", "a/b", "a"):
        (trash / path).chmod(0)
    assert _empty(trash)


def test_many_entries_and_names_that_are_no_text(trash: Path) -> None:
    wide = trash / "wide"
    wide.mkdir()
    for number in range(3000):
        (wide / str(number)).mkdir()
    os.mkdir(os.fsencode(trash) + b"/\xff\xfe")
    assert _empty(trash)


@pytest.mark.alone
def test_a_writer_that_goes_on_does_not_keep_it_for_ever(trash: Path) -> None:
    (trash / "a").mkdir()
    directory = os.open(trash / "a", os.O_RDONLY | os.O_DIRECTORY)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                os.mkdir(f"x{number}", dir_fd=directory)
            except FileNotFoundError:
                return  # The directory itself is gone: it has been removed between two writes.

    writer = threading.Thread(target=write)
    writer.start()
    began = time.monotonic()
    try:
        _empty(trash, within_s=0.5)
        in_time(time.monotonic() - began, 10)
    finally:
        stop.set()
        writer.join()
        os.close(directory)
    assert _empty(trash)


def test_a_directory_that_never_ends_is_left_when_the_time_is_over(
    trash: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trash / "a").mkdir()
    (trash / "a" / "b").touch()
    real = os.scandir

    @contextlib.contextmanager
    def endless(directory: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(directory) as entries:
            yield itertools.cycle(list(entries))

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", endless)
        patch.setattr(os, "rmdir", lambda *_arguments, **_named: os.stat("/nonexistent"))
        assert not _empty(trash, within_s=0.1)
    assert _empty(trash)
