"""Each scope on a file system of its own: full, found again, grown, shrunk, removed, and data from before there was a quota."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from interpreter.backends.base import SandboxId
from interpreter.errors import QuotaExceeded, StorageFailed
from interpreter.files.tree import Tree
from interpreter.keys import Key
from interpreter.scopes import images, quota
from interpreter.scopes.images import MIB
from interpreter.scopes.root import DataRoot, DataRootError
from interpreter.scopes.uids import Ids
from tests import mounting

Make = Callable[..., DataRoot]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Opens a data root with a quota, the same directory each time."""
    mounting.need()
    opened: list[DataRoot] = []

    def make(mib: int | None = 16, name: str = "data") -> DataRoot:
        for root in opened:
            root.close()
        root = DataRoot(tmp_path / name, Ids(own=False, base=300_000), quota_mib=mib)
        root.open()
        opened.append(root)
        return root

    yield make
    for root in opened:
        root.close()
        root.volumes.close(())
    assert mounting.below(tmp_path) == []


def fill(directory: Path) -> int:
    """Write until nothing more is taken; return how many bytes were."""
    with (  # noqa: PT012 - any of these writes
        pytest.raises(OSError, match="No space left"),
        (directory / "filler").open("ab", buffering=0) as file,
    ):
        while True:
            file.write(bytes(65536))
    filler = directory / "filler"
    return filler.stat().st_size if filler.exists() else 0


@contextlib.contextmanager
def used(place: Path, folder: Path) -> Iterator[Path]:
    """Have it mounted at another place too, as a sandbox has: in a way that we cannot end."""
    seen = folder / "seen"
    seen.mkdir()
    subprocess.run(["mount", "--bind", place, seen], check=True)
    try:
        yield seen
    finally:
        subprocess.run(["umount", seen], check=True)


def test_a_scope_fills_its_own_file_system_and_no_other(make: Make) -> None:
    root = make()
    full, other = root.prepare(Key("full", None)), root.prepare(Key("other", "s"))
    written = fill(full.workspace)
    assert 9 * MIB < written < 16 * MIB
    (other.workspace / "file").write_bytes(bytes(MIB))
    (root.path / "of-the-service").write_bytes(bytes(MIB))
    usage = root.volumes.usage("full")
    assert usage is not None
    assert (usage.limit, usage.used) == (16 * MIB, pytest.approx(16 * MIB, abs=MIB))
    flags = os.statvfs(full.workspace).f_flag
    assert flags & os.ST_NOSUID
    assert flags & os.ST_NODEV
    (full.workspace / "filler").unlink()
    (full.workspace / "file").write_bytes(bytes(MIB))


def test_a_file_that_is_deleted_and_open_counts(make: Make) -> None:
    place = make().prepare(Key("u", None)).workspace
    with (place / "gone").open("wb", buffering=0) as file:
        (place / "gone").unlink()
        with pytest.raises(OSError, match="No space left"):
            os.posix_fallocate(file.fileno(), 0, 32 * MIB)
        os.posix_fallocate(file.fileno(), 0, 8 * MIB)
        assert fill(place) < 5 * MIB


def test_files_are_bounded_as_bytes_are(make: Make) -> None:
    place = make().prepare(Key("u", None)).workspace
    made = 0
    with pytest.raises(OSError, match="No space left"):  # noqa: PT012 - any of these files
        for made in range(10_000):
            (place / str(made)).touch()
    assert 1500 < made < 2100


def test_a_new_session_has_room_in_a_full_scope_and_a_full_one_is_told(make: Make) -> None:
    root = make()
    place = root.prepare(Key("u", "first"))
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={place.workspace}/filler", "bs=64k"],
        user=place.uid,
        group=place.gid,
        stderr=subprocess.DEVNULL,
        check=False,
        # A tenant is no root, so what is kept for that stays.
    )
    second = root.prepare(Key("u", "second"))
    assert second.workspace.stat().st_uid == place.uid
    fill(place.workspace)  # as root, to the last byte
    with pytest.raises(QuotaExceeded, match=r"16 MiB, is full"):  # noqa: PT012 - any of these sessions
        for number in range(100):
            root.prepare(Key("u", f"s{number}"))


def test_what_is_removed_makes_room_also_where_not_even_a_directory_can_be_made(make: Make) -> None:
    root = make()
    place = root.prepare(Key("u", None)).workspace
    (place / "tree/deep").mkdir(parents=True)
    (place / "tree/deep/file").write_bytes(bytes(MIB))
    with contextlib.suppress(OSError):
        for number in range(10_000):
            (place / f"n{number}").touch()
    fill(place)
    tree = Tree(*root.open_directories(Key("u", None)))
    try:
        with pytest.raises(OSError, match="No space left"):
            tree.mkdir([b"new"])
        for name in (b"n1", b"tree"):
            assert tree.dispose(tree.take_away([name]))
            assert not (place / name.decode()).exists()
        tree.mkdir([b"new"])
        assert os.listdir(root.path / "u/.staging") == []
    finally:
        tree.close()


def test_the_next_service_finds_what_is_mounted(make: Make, tmp_path: Path) -> None:
    root = make()
    (root.prepare(Key("u", "s")).workspace / "file").write_text("kept")
    (root.path / "u/.staging/half").write_text("x")
    root.volumes.close({"u"})
    assert mounting.below(tmp_path) == [str(root.path / "u")]
    again = make()
    place = again.prepare(Key("u", "s")).workspace
    assert (place / "file").read_text() == "kept"
    assert os.listdir(again.path / "u/.staging") == [], "what a killed service was storing"
    again.volumes.close(())
    assert mounting.below(tmp_path) == []
    assert os.listdir(again.path / "u") == []
    root, staging, *_ = again.open_directories(Key("u", "s"))
    assert os.listdir(root) == ["file"]
    os.close(root)
    os.close(staging)
    with pytest.raises(FileNotFoundError):
        again.open_directories(Key("nobody", None))
    assert again.scopes() == ["u"], "nothing is made by looking"


def test_a_loop_device_that_has_become_another_scopes_is_not_taken(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the search for an image's device and its mount the device may end, and its name be given away."""
    root = make()
    (root.prepare(Key("a", "s")).workspace / "file").write_text("a")
    (root.prepare(Key("b", "s")).workspace / "file").write_text("b")
    of_a, of_b = (root.path / quota.FOLDER / scope for scope in "ab")
    root.close()
    root.volumes.close(())
    place = tmp_path / "b"
    place.mkdir()
    images.mount(of_b, place)
    found = [images.loop_of(of_b) or "", "/dev/loop-that-is-gone"]
    search = images.loop_of
    monkeypatch.setattr(images, "loop_of", lambda image, **lock: found.pop(0) if found else search(image, **lock))
    root = make()
    assert (root.prepare(Key("a", "s")).workspace / "file").read_text() == "a"
    assert (found, images.loop_of(of_a) == images.loop_of(of_b)) == ([], False)
    images.unmount(place)


def test_an_image_is_never_in_two_loop_devices(make: Make, tmp_path: Path) -> None:
    """As where a sandbox, or a mount namespace that we do not see, uses it still."""
    root = make()
    (root.prepare(Key("u", None)).workspace / "file").write_text("one")
    with used(root.path / "u", tmp_path) as seen:
        root.volumes.close(())
        device = images.loop_of(root.path / quota.FOLDER / "u")
        place = root.prepare(Key("u", None)).workspace
        (place / "file").write_text("two")
        assert (seen / "workspace/file").read_text() == "two"
        assert images.loop_of(root.path / quota.FOLDER / "u") == device
        assert os.stat(seen).st_dev == os.stat(place).st_dev
    root.volumes.close(())
    assert images.loop_of(root.path / quota.FOLDER / "u") is None


@pytest.mark.parametrize("mounted", [False, True])
def test_a_larger_number_makes_them_larger(make: Make, *, mounted: bool) -> None:
    root = make(16)
    (root.prepare(Key("u", None)).workspace / "file").write_text("kept")
    root.volumes.close({"u"} if mounted else ())
    larger = make(64)
    place = larger.prepare(Key("u", None)).workspace
    assert fill(place) > 48 * MIB
    assert (place / "file").read_text() == "kept"
    assert images.usage(larger.path / quota.FOLDER / "u", larger.path / "u").limit == 64 * MIB


def test_one_in_use_is_made_larger_where_the_host_allows_and_stays_whole_where_not(make: Make, tmp_path: Path) -> None:
    root = make(16)
    (root.prepare(Key("u", None)).workspace / "file").write_text("kept")
    with used(root.path / "u", tmp_path):
        place = make(64).prepare(Key("u", None)).workspace
        assert (fill(place) > 48 * MIB) == mounting.may_grow_in_use()
        assert (place / "file").read_text() == "kept"
    (place / "filler").unlink()
    assert fill(make(64).prepare(Key("u", None)).workspace) > 48 * MIB


def test_a_growth_that_was_cut_short_is_done_again(make: Make) -> None:
    root = make(16)
    root.prepare(Key("u", None))
    root.close()
    root.volumes.close(())
    os.truncate(root.path / quota.FOLDER / "u", 32 * MIB)
    assert fill(make(32).prepare(Key("u", None)).workspace) > 20 * MIB


def test_a_smaller_number_makes_them_smaller_or_refuses_the_start(make: Make) -> None:
    root = make(64)
    place = root.prepare(Key("u", None)).workspace
    (place / "file").write_bytes(bytes(20 * MIB))
    root.prepare(Key("small", None))
    root.close()
    root.volumes.close(())
    with pytest.raises(
        DataRootError, match=r"SANDBOX_SCOPE_QUOTA_MB=16 is less than scopes use: u \(2\d MiB\)\. Raise"
    ):
        make(16)
    smaller = make(32)
    place = smaller.prepare(Key("u", None)).workspace
    assert (place / "file").stat().st_size == 20 * MIB
    assert fill(place) < 10 * MIB
    assert (smaller.path / quota.FOLDER / "small").stat().st_size == 32 * MIB


def test_one_in_use_keeps_what_it_has_and_that_is_said(make: Make, tmp_path: Path) -> None:
    root = make(64)
    root.prepare(Key("u", None))
    with used(root.path / "u", tmp_path):
        root.close()
        root.volumes.close(())
        again = make(32)
        assert ["1 scopes in use keep" in notice for notice in again.volumes.notices] == [True]
        assert fill(again.prepare(Key("u", None)).workspace) > 48 * MIB


def test_a_purge_takes_the_file_system_also_while_something_is_open_there(make: Make, tmp_path: Path) -> None:
    root = make()
    place = root.prepare(Key("u", "s"))
    (place.workspace / "file").write_text("x")
    with (place.workspace / "file").open() as reader:
        assert root.purge_scope("u")
        assert not root.purge_scope("u")
        assert root.sweep()
        assert reader.read() == "x"
        assert (root.scopes(), os.listdir(root.path / quota.FOLDER), os.listdir(root.path / ".trash")) == ([], [], [])
        assert mounting.below(tmp_path) == []
    again = root.prepare(Key("u", "s"))
    assert os.listdir(again.workspace) == []
    assert again.uid == place.uid


def test_a_purged_session_is_removed_within_its_scope(make: Make) -> None:
    root = make()
    gone, kept = root.prepare(Key("u", "gone")), root.prepare(Key("u", "kept"))
    fill(gone.workspace)
    (kept.workspace / "file").touch()
    assert root.purge_session(Key("u", "gone"))
    assert not root.purge_session(Key("u", "gone"))
    assert root.sweep()
    assert not gone.workspace.exists()
    (kept.workspace / "file").write_bytes(bytes(4 * MIB))
    root.volumes.close(())
    assert root.purge_session(Key("u", "kept")), "also of a scope that is not mounted"
    assert root.sweep()
    assert os.listdir(root.path / "u/.trash") == []


def test_a_spare_of_a_scope_is_on_its_file_system(make: Make) -> None:
    root = make()
    root.prepare(Key("u", None))
    spare = root.prepare_spare(SandboxId("00000000000000aa"), "u")
    (spare.workspace / "file").touch()
    root.give_spare(SandboxId("00000000000000aa"), Key("u", "s"), unseen=False)
    assert os.listdir(root.path / "u/sessions/s") == ["file"]
    root.prepare_spare(SandboxId("00000000000000bb"), "u")
    root.drop_spare(SandboxId("00000000000000bb"), "u")
    assert os.listdir(root.path / "u/.spares") == []
    root.prepare_spare(SandboxId("00000000000000cc"), "u")
    root.volumes.close({"u"})
    again = make()
    again.drop_spares()
    again.prepare(Key("u", None))
    assert not (again.path / "u/.spares").exists()


def test_what_is_not_used_is_unmounted_and_comes_back(make: Make) -> None:
    root = make()
    (root.prepare(Key("idle", None)).workspace / "file").touch()
    root.prepare(Key("used", None))
    root.volumes.unmount_idle((), idle_s=60)
    assert root.volumes.mounted() == ["idle", "used"], "something was wanted of them a moment ago"
    with (root.path / "idle/workspace/file").open():
        root.volumes.unmount_idle({"used"}, idle_s=0)
        assert root.volumes.mounted() == ["idle", "used"], "something is open"
    root.volumes.unmount_idle({"used"}, idle_s=0)
    assert root.volumes.mounted() == ["used"]
    usage = root.volumes.usage("idle")
    assert usage is not None
    assert 0 < usage.used < usage.limit == 16 * MIB
    assert (root.prepare(Key("idle", None)).workspace / "file").exists()


# --- data from before there was a quota -----------------------------------------------------------------------------


def test_data_from_before_is_moved_as_it_is(make: Make, tmp_path: Path) -> None:
    before = make(None)
    place = before.prepare(Key("u", "s"))
    deep = place.workspace
    for _ in range(300):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "file").write_text("deep")
    (place.workspace / "mode").touch()
    (place.workspace / "mode").chmod(0o4711)
    os.utime(place.workspace / "mode", (10, 20))
    (place.workspace / "link").symlink_to("/etc/passwd")
    os.mkfifo(place.workspace / "fifo")
    with (place.workspace / "sparse").open("wb") as file:
        file.seek(200 * MIB)
        file.write(b"end")
        file.truncate(300 * MIB)
    (place.workspace / "closed").mkdir(mode=0)
    os.chown(place.workspace / "mode", place.uid or 0, place.gid or 0)
    root = make(16)
    root.move_over()
    assert root.volumes.notices == []
    moved = root.prepare(Key("u", "s"))
    assert moved == place
    assert sorted(os.listdir(moved.workspace)) == ["closed", "d", "link", "mode", "sparse"]
    assert deep.joinpath("file").read_text() == "deep"
    about = (moved.workspace / "mode").stat()
    assert (stat.S_IMODE(about.st_mode), about.st_uid, about.st_mtime) == (0o711, place.uid, 20)
    assert os.readlink(moved.workspace / "link") == "/etc/passwd"
    assert (moved.workspace / "sparse").stat().st_size == 300 * MIB
    assert (moved.workspace / "closed").stat().st_mode & 0o777 == 0
    assert moved.workspace.stat().st_dev != root.path.stat().st_dev
    root.sweep()
    assert os.listdir(root.path / ".trash") == []
    assert mounting.below(tmp_path) == [str(root.path / "u")]


def test_data_that_is_too_large_is_refused_alone_until_it_is_purged_or_the_number_raised(make: Make) -> None:
    before = make(None)
    (before.prepare(Key("large", "s")).workspace / "file").write_bytes(bytes(20 * MIB))
    (before.prepare(Key("small", None)).workspace / "file").write_text("kept")
    root = make(16)
    root.move_over()
    assert ["large is not served" in notice for notice in root.volumes.notices] == [True]
    for work in (root.prepare, root.open_directories):
        with pytest.raises(QuotaExceeded, match=r"from before there was a quota.*SANDBOX_SCOPE_QUOTA_MB=16"):
            work(Key("large", "s"))
    assert (root.prepare(Key("small", None)).workspace / "file").read_text() == "kept"
    raised = make(64)
    raised.move_over()
    assert (raised.prepare(Key("large", "s")).workspace / "file").stat().st_size == 20 * MIB


def test_a_purge_makes_a_refused_scope_new(make: Make) -> None:
    before = make(None)
    (before.prepare(Key("large", None)).workspace / "file").write_bytes(bytes(20 * MIB))
    root = make(16)
    root.move_over()
    assert root.purge_scope("large")
    assert os.listdir(root.prepare(Key("large", None)).workspace) == []
    assert root.volumes.has("large")


def test_a_move_that_was_cut_short_loses_nothing(make: Make) -> None:
    """Killed between the image's name and the removal of what it was made from."""
    root = make(16)
    (root.prepare(Key("u", None)).workspace / "file").write_text("new")
    root.close()
    root.volumes.close(())
    (root.path / "u/workspace").mkdir(parents=True)
    (root.path / "u/workspace/file").write_text("old")
    left = root.path / quota.FOLDER / "0123.new"
    left.write_bytes(b"half an image")
    again = make(16)
    again.move_over()
    assert (again.prepare(Key("u", None)).workspace / "file").read_text() == "new"
    assert not left.exists()


def test_without_the_setting_a_scope_keeps_its_file_system_and_new_ones_get_none(make: Make) -> None:
    root = make(16)
    (root.prepare(Key("old", None)).workspace / "file").write_text("kept")
    without = make(None)
    assert (without.prepare(Key("old", None)).workspace / "file").read_text() == "kept"
    assert fill(without.prepare(Key("old", None)).workspace) < 16 * MIB
    new = without.prepare(Key("new", None)).workspace
    assert new.stat().st_dev == without.path.stat().st_dev


# --- others, and what the host lacks --------------------------------------------------------------------------------


def test_two_data_roots_side_by_side(make: Make, tmp_path: Path) -> None:
    first, second = (DataRoot(tmp_path / name, Ids(own=False, base=300_000), quota_mib=16) for name in ("one", "two"))
    for root in (first, second):
        root.open()
        (root.prepare(Key("u", None)).workspace / "file").write_text(root.path.name)
    first.volumes.close(())
    assert (second.path / "u/workspace/file").read_text() == "two"
    assert first.prepare(Key("u", None)).workspace.joinpath("file").read_text() == "one"
    for root in (first, second):
        root.volumes.close(())
        root.close()


def test_many_scopes_come_at_once(make: Make) -> None:
    root = make(16)
    with ThreadPoolExecutor(16) as pool:
        places = list(pool.map(lambda number: root.prepare(Key(f"s{number // 2}", f"{number % 2}")), range(32)))
    assert len({place.workspace.stat().st_dev for place in places}) == 16
    assert root.volumes.mounted() == sorted({f"s{number}" for number in range(16)})


def test_a_purge_beside_uses_never_lets_data_out_of_the_quota(make: Make) -> None:
    root, stop, wrong = make(16), threading.Event(), []

    def use() -> None:
        while not stop.is_set():
            with contextlib.suppress(FileNotFoundError, StorageFailed):
                root.prepare(Key("u", "s"))
            with contextlib.suppress(OSError):
                if (root.path / "u/sessions").stat().st_dev == root.path.stat().st_dev:
                    wrong.append("outside")

    users = [threading.Thread(target=use) for _ in range(2)]
    for user in users:
        user.start()
    try:
        for _ in range(10):
            root.purge_scope("u")
            root.sweep()
    finally:
        stop.set()
        for user in users:
            user.join()
    assert wrong == []
    root.purge_scope("u")


def test_nobody_but_the_service_reads_or_writes_an_image(make: Make) -> None:
    root = make(16)
    root.prepare(Key("u", None))
    image = root.path / quota.FOLDER / "u"
    assert (stat.S_IMODE(image.stat().st_mode), image.stat().st_uid) == (0o600, 0)
    assert stat.S_IMODE(image.parent.stat().st_mode) == 0o700
    assert image.stat().st_blocks * 512 < 2 * MIB, "it takes what is in it"


def test_a_host_without_the_tools_is_refused_by_name(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_PATH", "/nowhere")
    with pytest.raises(DataRootError, match=r"SANDBOX_SCOPE_QUOTA_MB .*mkfs\.ext4 is missing: install .*e2fsprogs"):
        make(16)


def test_who_is_not_root_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    root = DataRoot(tmp_path / "data", Ids(own=True), quota_mib=16)
    with pytest.raises(DataRootError, match=r"SANDBOX_SCOPE_QUOTA_MB .*needs root"):
        root.open()


def test_a_tool_that_hangs_or_fails_is_said(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = make(16)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "mkfs.ext4").write_text("#!/bin/sh\necho no luck; exit 3\n")
    (tools / "mkfs.ext4").chmod(0o755)
    monkeypatch.setattr(images, "_PATH", f"{tools}:{images._PATH}")
    with pytest.raises(StorageFailed, match="log of the service"):
        root.prepare(Key("u", None))
    (tools / "mkfs.ext4").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(images, "_TOOL_S", 0.2)
    with pytest.raises(StorageFailed):
        root.prepare(Key("u", None))
    (tools / "mkfs.ext4").unlink()
    assert root.prepare(Key("u", None)).workspace.is_dir()
    assert os.listdir(root.path / quota.FOLDER) == ["u"]


def test_one_that_failed_since_the_disk_was_full_is_put_right_once_there_is_room(tmp_path: Path) -> None:
    """What the disk did not take is lost, as is said; all else is there."""
    mounting.need()
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "cellbox-test", disk], check=True)
    root = DataRoot(disk / "data", Ids(own=False, base=300_000), quota_mib=128)
    try:
        root.open()
        place = root.prepare(Key("u", None)).workspace
        (place / "kept").write_text("kept")
        os.sync()
        with contextlib.suppress(OSError), (place / "big").open("wb", buffering=0) as file:
            for _ in range(100):
                file.write(bytes(MIB))
            os.fsync(file.fileno())
        said = "Read-only file system|Input/output error|No space left"  # and no word of a quota
        with pytest.raises(OSError, match=said):  # noqa: PT012 - the first that has to be written down
            for number in range(100):
                root.prepare(Key("u", f"s{number}"))
                os.sync()
        subprocess.run(["mount", "-o", "remount,size=300m", disk], check=True)
        again = root.prepare(Key("u", "new"))
        assert (again.user / "kept").read_text() == "kept"
        assert fill(again.workspace) > 8 * MIB
    finally:
        root.volumes.close(())
        root.close()
        subprocess.run(["umount", "-l", disk], check=True)


def test_what_a_crash_of_the_host_left_is_put_right(make: Make) -> None:
    """The mark of a file system in use, which a crash leaves, makes the check look at all of it."""
    root = make(16)
    (root.prepare(Key("u", None)).workspace / "file").write_text("kept")
    root.close()
    root.volumes.close(())
    image = root.path / quota.FOLDER / "u"
    subprocess.run(
        ["debugfs", "-w", "-R", "set_super_value free_blocks_count 7", image], check=True, capture_output=True
    )
    subprocess.run(["debugfs", "-w", "-R", "set_super_value state 2", image], check=True, capture_output=True)
    again = make(16)
    place = again.prepare(Key("u", None)).workspace
    assert (place / "file").read_text() == "kept"
    assert fill(place) > 9 * MIB
