"""No room on the disk of the data root: what needs it says so, what does not is served, and all is once there is room."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from interpreter import shortage
from interpreter.backends.base import BackendUnavailable
from interpreter.backends.fake import FakeBackend
from interpreter.errors import ExecutionNotFound, SandboxStartFailed, ServiceError, StorageFailed
from interpreter.executions import recorder
from interpreter.executions.spool import MEMORY_BYTES
from interpreter.records import Records
from interpreter.service import Interpreter
from interpreter.service_config import ServiceConfig
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


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """The place of the first house's data root, on a file system that holds little."""
    if os.geteuid() != 0:
        pytest.skip("mounts a file system")
    place = tmp_path / "data0"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "cellbox-test", place], check=False
    ).returncode:
        pytest.skip("cannot mount here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path) -> Path:
    """Make a file that takes all the room there is."""
    filler = place / ".filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


async def test_a_service_starts_on_a_full_disk_serves_what_runs_and_recovers(
    small: Path, make_house: Callable[..., Awaitable[House]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "CHECKPOINT_S", 0.02)
    first = await make_house()
    first.sandboxd.redials = True
    await first.exec("a")
    assert (await first.exec("b", execution_id="b")).stdout == "b"
    await first.service.release()
    filler = fill(small)
    house = await make_house(first)
    assert ["cannot be written" in notice for notice in house.service.notices] == [True]
    assert await house.service.health() == (
        True,
        {"status": "degraded", "runtime": "fake", "message": f"{shortage.DISK[0].upper()}{shortage.DISK[1:]}."},
    )
    assert (await house.exec("c")).state == "kept"
    assert (await house.exec("b", execution_id="b")).stdout == "b"
    assert house.sandboxd.began.count("b") == 1, "it ran before, and is answered from the records"
    with pytest.raises(StorageFailed):
        await house.exec("d", execution_id="d")
    with pytest.raises(ServiceError, match="cannot be written"):
        await house.exec("e", session="new")
    assert b"\ncellbox_records_failing 1.0\n" in house.service.metrics.text()
    assert b"\ncellbox_records_write_failures_total 0.0\n" not in house.service.metrics.text()
    filler.unlink()
    async with asyncio.timeout(20):
        while house.service._data.records.refused:  # noqa: ASYNC110 - the file system tells nobody
            await asyncio.sleep(0.01)
    assert (await house.exec("d", execution_id="d")).stdout == "d"
    assert (await house.exec("e", session="new")).stdout == "e"
    house.clock.ahead += 3
    assert await house.service.health() == (True, {"status": "ok", "runtime": "fake"})


async def test_a_full_disk_shows_in_the_health_of_a_running_service(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.backend.unavailable = BackendUnavailable(f"the host did not let it be tried: {shortage.DISK}")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert (await house.service.health())[1]["status"] == "degraded"
    house.backend.unavailable = BackendUnavailable("the engine does not answer")
    house.clock.ahead += 3
    ok, about = await house.service.health()
    assert (ok, about["status"]) == (False, "unavailable"), "for another reason than the disk"


async def test_a_backend_that_lacks_the_disk_alone_does_not_keep_the_service_from_starting(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.exec("a")
    await house.service.release()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    backend = FakeBackend(house.sandboxd, host=house.backend.host)
    service = Interpreter(ServiceConfig(data_root=house.root), backend)
    backend.unavailable = BackendUnavailable("there is no bubblewrap")
    with pytest.raises(BackendUnavailable):
        await service.start()
    backend.unavailable = BackendUnavailable(f"it could not be tried: {shortage.DISK}")
    await service.start()
    assert ["no new sandbox" in notice for notice in service.notices] == [True]
    await service.aclose()


async def test_a_purge_on_a_full_disk_says_purged_only_if_the_answers_are_forgotten(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.exec("a", execution_id="a")
    real, full = Records.purge, True

    def purge(records: Records, scope: str, session: str | None) -> tuple[int, list[str]]:
        if full:
            raise StorageFailed("full")
        return real(records, scope, session)

    monkeypatch.setattr(Records, "purge", purge)
    assert await house.service.remove_session("u1", "chat", purge=True) == {"removed": 1, "purged": False}
    full = False
    assert await house.service.remove_session("u1", "chat", purge=True) == {"removed": 0, "purged": True}
    with pytest.raises(ExecutionNotFound):
        house.service.execution("a", "u1")


async def test_a_service_starts_without_room_for_the_folder_of_long_output(
    few_files: Path, make_house: Callable[..., Awaitable[House]]
) -> None:
    """As after an upgrade, or where somebody has removed it. It is made once there is room."""
    first = await make_house()
    first.sandboxd.redials = True
    assert (await first.exec("a")).stdout == "a"
    await first.service.release()
    (few_files / ".outputs").rmdir()
    fillers = take_all(few_files)
    second = await make_house(first)
    assert any("long output" in notice for notice in second.service.notices)
    for filler in fillers:
        filler.unlink()
    execution = second.submit("c" * (MEMORY_BYTES + 1))
    await second.service.settle(execution)
    execution.events.after()
    assert len(os.listdir(few_files / ".outputs")) == 1
