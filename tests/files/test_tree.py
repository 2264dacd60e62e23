"""One session's files: what is stored, listed, removed and refused, with openat2 and without."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interpreter.errors import BodyTooLarge, InvalidRequest, ServiceError
from interpreter.files.errors import FileBusy, FileExists, NoSuchFile, NotARegularFile, OutsideDirectory
from interpreter.files.tree import Tree
from tests.files.conftest import SECRET

MIB = 2**20
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: owners and devices")


def put(tree: Tree, *parts: bytes, data: bytes = b"new", overwrite: bool = True) -> bool:
    with tree.upload(parts, limit=MIB) as upload:
        upload.write(data)
        return upload.commit(overwrite=overwrite).new


def get(tree: Tree, *parts: bytes) -> bytes:
    with tree.reading(parts) as (descriptor, state):
        return os.read(descriptor, state.st_size)


def test_a_stored_file_is_whole_with_parents_and_sum(tree: Tree, workspace: Path) -> None:
    with tree.upload([b"a", b"b", b"f"], limit=MIB) as upload:
        upload.write(b"one ")
        upload.write(b"two")
        assert not (workspace / "a").exists()
        stored = upload.commit()
    assert (stored.size, stored.sha256, stored.new) == (7, hashlib.sha256(b"one two").hexdigest(), True)
    assert (workspace / "a/b/f").read_bytes() == b"one two"
    assert put(tree, b"a", b"b", b"f") is False
    assert get(tree, b"a", b"b", b"f") == b"new"


@root_only
def test_what_is_made_belongs_to_the_scope(tree: Tree, workspace: Path) -> None:
    put(tree, b"a", b"f")
    for name, mode in (("a", 0o755), ("a/f", 0o644)):
        state = (workspace / name).stat()
        assert (state.st_uid, state.st_gid, stat.S_IMODE(state.st_mode)) == (200_123, 200_123, mode)


def test_an_upload_without_commit_leaves_the_old_file_and_nothing_else(
    tree: Tree, workspace: Path, staging: Path
) -> None:
    (workspace / "f").write_text("old")
    with tree.upload([b"f"], limit=MIB) as upload:
        upload.write(b"half")
    with pytest.raises(BodyTooLarge), tree.upload([b"f"], limit=3) as upload:
        upload.write(b"four")
    assert (workspace / "f").read_text() == "old"
    assert os.listdir(staging) == []


def test_an_upload_that_may_not_replace_is_refused(tree: Tree, workspace: Path) -> None:
    put(tree, b"f", data=b"old", overwrite=False)
    with pytest.raises(FileExists):
        put(tree, b"f", overwrite=False)
    assert (workspace / "f").read_text() == "old"


def test_an_upload_replaces_links_and_fifos_and_writes_through_none(tree: Tree, workspace: Path, outside: Path) -> None:
    (workspace / "link").symlink_to(outside / "secret")
    os.link(outside / "secret", workspace / "hard")
    os.mkfifo(workspace / "fifo")
    for name in (b"link", b"hard", b"fifo"):
        put(tree, name)
        assert get(tree, name) == b"new"
    assert (outside / "secret").read_bytes() == SECRET


def test_an_upload_never_replaces_a_directory_or_goes_below_a_file(tree: Tree, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "f").write_text("old")
    for parts in ([b"d"], [b"f", b"x"], [b"f", b"x", b"y"]):
        with pytest.raises(FileExists):
            put(tree, *parts)
    assert (workspace / "f").read_text() == "old"


@pytest.mark.parametrize("target", ["absolute", "relative"])
def test_links_that_leave_are_refused_at_leaf_and_parent(
    tree: Tree, workspace: Path, outside: Path, target: str
) -> None:
    there = outside if target == "absolute" else Path("../outside")
    (workspace / "leaf").symlink_to(there / "secret")
    (workspace / "parent").symlink_to(there)
    refused: list[Callable[[], object]] = [
        lambda: get(tree, b"leaf"),
        lambda: get(tree, b"parent", b"secret"),
        lambda: put(tree, b"parent", b"secret"),
        lambda: put(tree, b"parent", b"deep", b"er"),
        lambda: tree.entries([b"parent"], limit=9),
        lambda: tree.stat([b"leaf"]),
        lambda: tree.chmod([b"leaf"], 0o777),
        lambda: tree.take_away([b"parent", b"secret"]),
        lambda: tree.move([b"parent", b"secret"], [b"mine"]),
        lambda: tree.copy([b"leaf"], [b"mine"], limit=MIB),
    ]
    for call in refused:
        with pytest.raises((OutsideDirectory, NoSuchFile)):
            call()
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_bytes() == SECRET


def test_links_that_stay_inside_are_followed_by_the_kernel_alone(tree: Tree, workspace: Path, way: str) -> None:
    (workspace / "d").mkdir()
    (workspace / "d/f").write_text("inside")
    (workspace / "link").symlink_to("d")
    if way == "openat2":
        assert get(tree, b"link", b"f") == b"inside"
    else:
        with pytest.raises((OutsideDirectory, NoSuchFile)):
            get(tree, b"link", b"f")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(str(path))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(os.mkfifo, id="fifo"),
        pytest.param(_socket, id="socket"),
        pytest.param(os.mkdir, id="directory"),
        pytest.param(lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5)), id="device", marks=root_only),
    ],
)
def test_what_is_no_plain_file_is_refused_at_once(
    tree: Tree, workspace: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    make(Path("x"))
    with pytest.raises(NotARegularFile):
        get(tree, b"x")


def test_a_file_under_a_lease_is_refused_in_time(tree: Tree, workspace: Path) -> None:
    (workspace / "f").write_text("x")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    holder = os.open(workspace / "f", os.O_RDWR)
    try:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(FileBusy):
            get(tree, b"f")
    finally:
        os.close(holder)
        signal.signal(signal.SIGIO, before)
    assert get(tree, b"f") == b"x"


def test_a_sparse_file_is_refused_by_its_size(tree: Tree, workspace: Path, staging: Path) -> None:
    with (workspace / "f").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BodyTooLarge):
        tree.copy([b"f"], [b"g"], limit=MIB)
    assert os.listdir(staging) == []


def test_a_listing_is_sorted_cut_and_goes_on_behind_a_name(tree: Tree, workspace: Path) -> None:
    names = [b".a", b"B", b"a", b"b c", "\u00e9".encode(), b"\xff"]
    for name in names:
        (workspace / os.fsdecode(name)).write_bytes(name)
    first, more = tree.entries([], limit=4)
    rest, end = tree.entries([], limit=4, after=first[-1].name)
    assert [entry.name for entry in first + rest] == sorted(names)
    assert (more, end) == (b"b c", None)
    assert [entry.size for entry in first] == [len(entry.name) for entry in first]


def test_names_that_are_no_text_can_be_read_and_removed(tree: Tree, workspace: Path) -> None:
    put(tree, b"\xff\xfe", data=b"x")
    assert get(tree, b"\xff\xfe") == b"x"
    tree.dispose(tree.take_away([b"\xff\xfe"]))
    assert os.listdir(workspace) == []


def test_a_delete_removes_the_entry_and_follows_nothing(
    tree: Tree, workspace: Path, outside: Path, staging: Path
) -> None:
    (workspace / "link").symlink_to(outside)
    os.mkfifo(workspace / "fifo")
    (workspace / "d").mkdir()
    (workspace / "d/link").symlink_to(outside)
    for name in (b"link", b"fifo", b"d"):
        tree.dispose(tree.take_away([name]))
    assert os.listdir(workspace) == os.listdir(staging) == []
    assert os.listdir(outside) == ["secret"]
    with pytest.raises(NoSuchFile):
        tree.dispose(tree.take_away([b"d"]))
    with pytest.raises(InvalidRequest):
        tree.dispose(tree.take_away([]))


def test_a_deep_and_unreadable_tree_is_deleted(tree: Tree, workspace: Path, staging: Path) -> None:
    (workspace / "d").mkdir()
    current = os.open(workspace / "d", os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(3_000):
        os.mkdir("d", dir_fd=current)
        following = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=current)
        os.close(current)
        current = following
    os.close(current)
    (workspace / "d").chmod(0)
    tree.dispose(tree.take_away([b"d"]))
    assert os.listdir(workspace) == os.listdir(staging) == []


def test_a_move_takes_the_entry_itself_and_replaces_only_when_told(tree: Tree, workspace: Path, outside: Path) -> None:
    (workspace / "link").symlink_to(outside)
    (workspace / "f").write_text("old")
    tree.move([b"link"], [b"new", b"link"])
    assert (workspace / "new/link").is_symlink()
    put(tree, b"g")
    with pytest.raises(FileExists):
        tree.move([b"g"], [b"f"])
    with pytest.raises(FileExists):
        tree.move([b"g"], [b"new"], overwrite=True)
    tree.move([b"g"], [b"f"], overwrite=True)
    assert (workspace / "f").read_text() == "new"
    with pytest.raises(FileExists):
        tree.move([b"new"], [b"f"], overwrite=True)
    with pytest.raises(InvalidRequest):
        tree.move([b"new"], [b"new", b"er"])


def test_a_copy_is_another_file(tree: Tree, workspace: Path) -> None:
    put(tree, b"f", data=b"x" * 3000)
    tree.copy([b"f"], [b"d", b"g"], limit=MIB)
    assert len(get(tree, b"d", b"g")) == 3000
    with pytest.raises(FileExists):
        tree.copy([b"f"], [b"d", b"g"], limit=MIB)
    assert (workspace / "d/g").read_bytes() == b"x" * 3000
    assert (workspace / "d/g").stat().st_nlink == 1


def test_a_directory_is_made_once(tree: Tree, workspace: Path) -> None:
    tree.mkdir([b"a", b"b"])
    assert (workspace / "a/b").is_dir()
    with pytest.raises(FileExists):
        tree.mkdir([b"a", b"b"])


def test_a_mode_has_no_more_than_permissions(tree: Tree, workspace: Path) -> None:
    put(tree, b"f")
    tree.chmod([b"f"], 0o750)
    assert stat.S_IMODE((workspace / "f").stat().st_mode) == 0o750
    for mode in (0o4755, 0o2755, 0o1755, 0o10644):
        with pytest.raises(InvalidRequest):
            tree.chmod([b"f"], mode)


def test_ten_thousand_refusals_keep_no_descriptor(tree: Tree, workspace: Path, outside: Path) -> None:
    os.mkfifo(workspace / "fifo")
    (workspace / "link").symlink_to(outside)
    before = len(os.listdir("/proc/self/fd"))
    for parts in ([b"fifo"], [b"link", b"secret"], [b"none"], [b"fifo", b"x"]):
        for _ in range(2_500):
            with pytest.raises(ServiceError):
                get(tree, *parts)
    assert len(os.listdir("/proc/self/fd")) == before


@contextlib.contextmanager
def exchanging(path: Path, others: list[Path]) -> Iterator[None]:
    """While it lasts, ``path`` is one after the other of ``others``, again and again, and at times nothing."""
    over = threading.Event()

    def exchange() -> None:
        while not over.is_set():
            for other in others:
                with contextlib.suppress(OSError):
                    os.rename(other, path)
                with contextlib.suppress(OSError):
                    os.rename(path, other)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _new_file(path: Path) -> None:
    with path.open("xb") as file:
        file.write(b"mine")


@pytest.mark.parametrize("where", ["leaf", "parent"])
def test_no_byte_comes_from_or_goes_outside_while_names_are_exchanged(
    tree: Tree, workspace: Path, outside: Path, where: str
) -> None:
    (outside / "foreign").touch()
    kinds = workspace / "kinds"
    kinds.mkdir()
    parts = [b"x"] if where == "leaf" else [b"x", b"secret"]
    target = outside / "secret" if where == "leaf" else outside
    read: set[bytes] = set()
    listed: set[bytes] = set()

    def supply() -> None:
        """What was deleted comes again."""
        for make in (
            (kinds / "directory").mkdir,
            lambda: _new_file(kinds / "directory/secret"),
            lambda: _new_file(kinds / "file"),
            lambda: os.mkfifo(kinds / "fifo"),
            lambda: (kinds / "link").symlink_to(target),
            lambda: (kinds / "list").symlink_to(outside),
        ):
            with contextlib.suppress(FileExistsError, FileNotFoundError, NotADirectoryError):
                make()

    def list_() -> None:
        listed.update(entry.name for entry in tree.entries([b"x"], limit=9)[0])

    looks: list[Callable[[], object]] = [lambda: read.add(get(tree, *parts)), list_]
    changes: list[Callable[[], object]] = [
        lambda: put(tree, *parts, data=b"mine"),
        lambda: tree.chmod(parts, 0o640),
        lambda: tree.take_away(parts),
    ]
    state = (outside / "secret").stat()
    supply()
    with exchanging(workspace / "x", [kinds / name for name in ("directory", "link", "file", "list", "fifo")]):
        for number in range(1_000):
            for call in looks if number % 5 else looks + changes:
                with contextlib.suppress(ServiceError):
                    call()
            if number % 5 == 0:
                supply()
    assert b"mine" in read
    assert SECRET not in read
    assert listed <= {b"secret"}
    assert sorted(os.listdir(outside)) == ["foreign", "secret"]
    assert (outside / "secret").read_bytes() == SECRET
    after = (outside / "secret").stat()
    assert (after.st_mode, after.st_ino, after.st_uid) == (state.st_mode, state.st_ino, state.st_uid)
