"""What outlives the service: written at once, all or nothing, and read back as it was."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from interpreter.errors import StorageFailed
from interpreter.records import SOME, ExecutionRecord, KernelRecord, Records, SandboxRecord
from interpreter.statefile import FILE, LOG_PAGES, VERSION, RecordsError

SANDBOX = SandboxRecord("a" * 16, "u1", "chat", 12.5)
KERNEL = KernelRecord("u1", None, "python", "default", 3, "a" * 16, True, False, "oom", 7, 1.5, 2.5)
WAITING = ExecutionRecord("u1", "chat", "e1", True, b"digest", b"request", True)
DONE = dataclasses.replace(WAITING, whole=False, answer=b"{}", size=2, finished_at=100.0)


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    found = Records(tmp_path)
    assert found.open(boot="b", now=0.0) == []
    yield found
    found.close()
    found.close()


def again(tmp_path: Path, *, boot: str = "b", now: float = 0.0) -> tuple[Records, list[str]]:
    found = Records(tmp_path)
    return found, found.open(boot=boot, now=now)


def test_everything_is_read_back_as_it_was(records: Records, tmp_path: Path) -> None:
    records.sandbox_begins(SANDBOX)
    records.sandbox_begins(dataclasses.replace(SANDBOX, id="b" * 16, session=None))
    records.kernel(KERNEL)
    records.kernel(dataclasses.replace(KERNEL, session="chat", loss=None, home=None, alive=False, generation=1))
    records.execution(WAITING)
    records.execution(dataclasses.replace(WAITING, id="e2", sandbox="s", link="l", sent_at=4.5))
    records.execution(dataclasses.replace(DONE, id="e3"))
    records.close()
    other, warnings = again(tmp_path)
    try:
        assert warnings == []
        assert [record.session for record in other.sandboxes()] == ["chat", None]
        assert sorted(other.kernels(), key=lambda kernel: kernel.session or "") == [
            KERNEL,
            dataclasses.replace(KERNEL, session="chat", loss=None, home=None, alive=False, generation=1),
        ]
        assert other.unfinished() == [
            dataclasses.replace(WAITING, number=1),
            dataclasses.replace(WAITING, id="e2", sandbox="s", link="l", sent_at=4.5, number=2),
        ]
        assert other.finished("e3", "u1") == dataclasses.replace(DONE, id="e3", number=3)
    finally:
        other.close()


def test_the_file_is_the_services_alone(records: Records, tmp_path: Path) -> None:
    records.execution(WAITING)
    assert {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {
        FILE: 0o600,
        f"{FILE}-wal": 0o600,
        f"{FILE}-shm": 0o600,
    }


def test_an_execution_keeps_its_place(records: Records) -> None:
    for number in range(3):
        records.execution(dataclasses.replace(WAITING, id=f"e{number}"))
    records.execution(dataclasses.replace(WAITING, id="e0", link="l", sandbox="s"))
    assert [record.id for record in records.unfinished()] == ["e0", "e1", "e2"]


def test_ids_of_callers_are_of_their_scope(records: Records) -> None:
    records.execution(DONE)
    records.execution(dataclasses.replace(DONE, named=False, id="ours"))
    assert records.finished("e1", "u1") is not None
    assert records.finished("e1", "u2") is None
    assert records.finished("e1", None) is None
    assert records.finished("ours", None) is not None


def test_a_purge_takes_what_has_finished(records: Records) -> None:
    records.execution(WAITING)
    for number, session in enumerate(("chat", "other", None)):
        records.execution(dataclasses.replace(DONE, id=f"d{number}", session=session, file=f"f{number}"))
    assert records.purge("u1", "chat") == (1, ["f0"])
    assert records.purge("u2", None) == (0, [])
    assert sorted(records.purge("u1", None)[1]) == ["f1", "f2"]
    assert [record.id for record in records.unfinished()] == ["e1"]


def test_what_is_too_old_or_too_much_goes_the_oldest_first(records: Records) -> None:
    for number in range(6):
        records.execution(
            dataclasses.replace(DONE, id=f"d{number}", finished_at=100.0 + number, size=10, file=f"f{number}")
        )
    assert sorted(records.expire(101.5, max_bytes=25, max_number=100)[1]) == ["f0", "f1", "f2", "f3"]
    assert records.files() == {"f4", "f5"}
    assert records.expire(101.5, max_bytes=25, max_number=100) == (0, [])


def test_what_is_too_many_goes_the_oldest_first(records: Records) -> None:
    for number in range(6):
        records.execution(dataclasses.replace(DONE, id=f"d{number}", finished_at=100.0 + number, file=f"f{number}"))
    assert sorted(records.expire(0.0, max_bytes=1000, max_number=2)[1]) == ["f0", "f1", "f2", "f3"]


@pytest.mark.parametrize("old", [True, False])
def test_some_go_at_a_time(records: Records, old: bool) -> None:
    for number in range(SOME + 5):
        records.execution(dataclasses.replace(DONE, id=f"d{number}", finished_at=100.0 + number, file=f"f{number}"))
    before, most = (1000.0, 1000) if old else (0.0, 0)
    assert [records.expire(before, 10**6, most)[0] for _ in range(3)] == [SOME, 5, 0]
    for number in range(SOME + 5):
        records.execution(dataclasses.replace(DONE, id=f"d{number}"))
    assert [records.purge("u1", None)[0] for _ in range(3)] == [SOME, 5, 0]


def test_a_batch_is_all_or_nothing(records: Records) -> None:
    class Fault(Exception):
        pass

    def fail_after_two() -> None:
        with records.batch():
            records.kernel(KERNEL)
            records.execution(WAITING)
            raise Fault

    with pytest.raises(Fault):
        fail_after_two()
    assert (records.kernels(), records.unfinished()) == ([], [])
    records.execution(WAITING)
    assert len(records.unfinished()) == 1


def test_another_boot_makes_what_has_finished_fresh(records: Records, tmp_path: Path) -> None:
    """Monotonic seconds of another boot say nothing here."""
    records.execution(dataclasses.replace(DONE, finished_at=1e9))
    records.close()
    other, _ = again(tmp_path, boot="c", now=50.0)
    found = other.finished("e1", "u1")
    other.close()
    assert found is not None
    assert found.finished_at == 50.0


def garbage(file: Path) -> None:
    file.write_bytes(b"not a database at all, in any way" * 100)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2 // 4096 * 4096)


def overwrite_a_page(file: Path) -> None:
    with file.open("r+b") as pages:
        pages.seek(4096)
        pages.write(os.urandom(4096))


def of_another_program(file: Path) -> None:
    file.unlink()
    with closing(sqlite3.connect(file)) as database:
        database.executescript(f"CREATE TABLE executions (a); PRAGMA user_version = {VERSION}")


def directory(file: Path) -> None:
    file.unlink()
    (file / "within").mkdir(parents=True)


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    "damage", [garbage, truncate, overwrite_a_page, of_another_program, directory, fifo], ids=lambda how: how.__name__
)
def test_a_damaged_file_is_set_aside(records: Records, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Once, said once, and one of them is kept however often that happens."""
    for _ in range(2):
        records.execution(WAITING)
        records.close()
        damage(tmp_path / FILE)
        records, warnings = again(tmp_path)
        left = records.unfinished()
        assert left == []
        assert [".state.damaged" in warning for warning in warnings] == [True]
    records.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == [".state.damaged", FILE]
    records, warnings = again(tmp_path)
    records.close()
    assert warnings == []


def test_an_empty_file_is_a_new_one(records: Records, tmp_path: Path) -> None:
    records.execution(WAITING)
    records.close()
    (tmp_path / FILE).write_bytes(b"")
    other, warnings = again(tmp_path)
    left = other.unfinished()
    other.close()
    assert (left, warnings) == ([], [])


def test_the_file_of_a_newer_service_is_left_alone(records: Records, tmp_path: Path) -> None:
    with records.batch() as database:
        database.execute("PRAGMA user_version = 99")
    records.close()
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(RecordsError, match="newer"):
        again(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_closed_one_refuses(tmp_path: Path) -> None:
    records = Records(tmp_path)
    with pytest.raises(StorageFailed):
        records.execution(WAITING)


WRITER = """
import sys
from pathlib import Path
from interpreter.records import ExecutionRecord, Records
records = Records(Path(sys.argv[1]))
records.open(boot="b", now=0.0)
for number in range(1_000_000):
    records.execution(ExecutionRecord("u1", None, f"e{number}", True, b"", bytes(2000), True))
    print(number, flush=True)
"""


def test_what_was_written_is_there_after_kill_9(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(200)]
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.readlines()
    other, warnings = again(tmp_path)
    there = {record.id for record in other.unfinished()}
    other.close()
    assert warnings == []
    assert {f"e{int(line)}" for line in said if line.endswith(b"\n")} <= there


def test_a_full_disk_refuses_and_recovers(records: Records) -> None:
    """A file that may not grow is what a full disk looks like, and needs no root."""
    records.execution(WAITING)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(StorageFailed, match="cannot be written"):
            records.execution(dataclasses.replace(WAITING, id="large", request=os.urandom(200_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [record.id for record in records.unfinished()] == ["e1"]
    records.execution(dataclasses.replace(WAITING, id="e2"))
    assert len(records.unfinished()) == 2


@contextmanager
def nothing_grows() -> Iterator[None]:
    """Files that may not grow are what a full disk looks like, and need no root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_at_the_start_is_read_and_written_later(records: Records, tmp_path: Path) -> None:
    records.sandbox_begins(SANDBOX)
    records.execution(WAITING)
    records.close()
    with nothing_grows():
        other, warnings = again(tmp_path)
        assert [record.id for record in other.unfinished()] == ["e1"]
        assert other.sandboxes() == [SANDBOX]
        with pytest.raises(StorageFailed, match="cannot be written"):
            other.execution(DONE)
        assert not other.attach()
        assert [record.id for record in other.unfinished()] == ["e1"]
    assert ["cannot be written" in warning for warning in warnings] == [True]
    assert other.attach()
    other.execution(DONE)
    assert other.unfinished() == []
    other.close()
    last, warnings = again(tmp_path)
    found = last.finished("e1", "u1")
    last.close()
    assert (found is not None, warnings) == (True, [])


def test_a_full_disk_after_kill_9_loses_nothing(tmp_path: Path) -> None:
    """What was written last is in the log, whose index may be gone."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
    (tmp_path / f"{FILE}-shm").unlink()
    with nothing_grows():
        other, warnings = again(tmp_path)
        there = len(other.unfinished())
        other.close()
    assert len(warnings) == 1
    assert there >= 20


def test_a_full_disk_at_the_first_start_is_no_reason_not_to_start(tmp_path: Path) -> None:
    with nothing_grows():
        records, warnings = again(tmp_path)
        assert records.unfinished() == []
        with pytest.raises(StorageFailed):
            records.execution(WAITING)
    assert len(warnings) == 1
    assert records.attach()
    records.execution(WAITING)
    assert len(records.unfinished()) == 1
    records.close()


def test_a_checkpoint_keeps_the_log_small(records: Records, tmp_path: Path) -> None:
    log = tmp_path / f"{FILE}-wal"
    for round_ in range(20):
        for number in range(50):
            records.execution(dataclasses.replace(WAITING, id=f"e{number}", request=bytes(1000 + round_)))
        records.checkpoint()
    assert log.stat().st_size < 2_500_000  # one round is a megabyte


def test_a_long_log_is_cut_off(records: Records, tmp_path: Path) -> None:
    """Moving it alone is not enough: a write that comes meanwhile keeps it, and under load one always comes."""
    log = tmp_path / f"{FILE}-wal"
    for number in range(LOG_PAGES // 8):
        records.execution(dataclasses.replace(WAITING, id=f"e{number}", request=bytes(8 * 4096)))
    assert log.stat().st_size > LOG_PAGES * 4096
    records.checkpoint()
    assert log.stat().st_size == 0
    assert len(records.unfinished()) == LOG_PAGES // 8
