"""No room for a scope's directories: the call says so, and the next one works once there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from interpreter.errors import SandboxStartFailed, ServiceError
from tests.service.conftest import House


@pytest.fixture
def few_files(tmp_path: Path) -> Iterator[Path]:
    """The place of the first house's data root, on a file system that holds few files."""
    if os.geteuid() != 0:
        pytest.skip("mounts a file system")
    place = tmp_path / "data0"
    place.mkdir()
    options = "size=8m,nr_inodes=64,mode=700"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "cellbox-test", place], check=False).returncode:
        pytest.skip("cannot mount here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def take_all(place: Path) -> list[Path]:
    """Make files until there can be no more."""
    made: list[Path] = []
    try:
        while True:
            made.append(place / f"filler{len(made)}")
            made[-1].touch()
    except OSError:
        return made[:-1]


async def test_no_room_for_the_directories_of_a_scope(
    few_files: Path, make_house: Callable[..., Awaitable[House]]
) -> None:
    house = await make_house()
    assert (await house.exec("first")).stdout == "first"
    refused = []
    for room in range(6):
        fillers = take_all(few_files)
        for filler in fillers[:room]:
            filler.unlink()
        try:
            await house.exec("no room", scope=f"other{room}")
        except ServiceError as error:
            refused.append(error)
        for filler in fillers[room:]:
            filler.unlink()
        assert (await house.exec("again", scope=f"other{room}")).stdout == "again"
    assert {type(error) for error in refused} == {SandboxStartFailed}
    assert len(refused) >= 4
    assert all("the disk of the data root is full: make room on it" in error.message for error in refused)
