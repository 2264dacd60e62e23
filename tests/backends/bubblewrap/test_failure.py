"""Starts on a host that lacks something: the error names the cause and the remedy, and the next start works by itself.

Each test ends with ``House.nothing_left``: a failed start leaves no process, cgroup, mount or file.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import os
import re
import resource
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from interpreter.backends.base import BackendError, BackendUnavailable
from interpreter.backends.bubblewrap import backend as module
from interpreter.backends.bubblewrap import cgroups, failure
from interpreter.backends.bubblewrap.backend import BubblewrapBackend
from tests.contracts.conftest import BUBBLEWRAP, House, until

pytestmark = list(BUBBLEWRAP.marks)

DISK = r"disk of the data root is full: make room on it, or purge"
MEMORY = r"out of memory: end other programs, or lower SANDBOX_MAX_SESSIONS or SANDBOX_MEMORY_MB"
PROCESSES = r"no further process is allowed: raise .*pids\.max.*, or lower SANDBOX_MAX_SESSIONS"
DESCRIPTORS = r"out of descriptors: raise its limit of open files .*, or lower SANDBOX_MAX_SESSIONS"
HOST_DESCRIPTORS = r"host is out of descriptors: raise fs\.file-max"
NAMESPACES = r"no namespace left: raise user\.max_user_namespaces"
FEW_CGROUPS = r"no cgroup left: remove unused ones, or raise cgroup\.max\.descendants"
NO_CGROUPS = r"no cgroups .* must be writable .*Delegate=yes"


@pytest.fixture
async def works_afterwards(house: House) -> AsyncIterator[None]:
    """The cause being gone, the same backend starts sandboxes again; and nothing was left by the failure."""
    yield
    await until(lambda: not house.processes(zombies=True))
    house.nothing_left()
    await (await house.start("idle")).stop()


# --- real shortages -------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(house: House) -> Iterator[Path]:
    """The folder of the state files on a file system of its own, of 64 KiB; a file that fills it."""
    run = house.root / ".run"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "cellbox-test", run], check=True)
    yield run / "filler"
    subprocess.run(["umount", run], check=True)


def fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def make_room(filler: Path) -> None:
    filler.unlink()


async def test_a_full_disk(house: House, works_afterwards: None, small_disk: Path) -> None:
    for _ in range(3):
        fill(small_disk)
        with pytest.raises(BackendError, match=DISK):
            await house.backend.start(house.spec())
        assert [path.name for path in small_disk.parent.iterdir()] == ["filler"]
        make_room(small_disk)
        await (await house.start("idle")).stop()


async def test_a_disk_that_is_full_when_a_sandbox_ends(house: House, works_afterwards: None, small_disk: Path) -> None:
    sandbox = await house.start("daemons")
    fill(small_disk)
    await sandbox.stop()
    assert (await sandbox.wait()).status == 137
    make_room(small_disk)


async def test_a_full_disk_at_the_check(house: House, works_afterwards: None, small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(BackendUnavailable, match=DISK):
        await house.backend.check()
    make_room(small_disk)
    assert await house.backend.check() == []


async def test_no_descriptor_left(house: House, works_afterwards: None) -> None:
    """Wherever the last one is used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = []
    with contextlib.closing(os.fdopen(os.open("/dev/null", os.O_RDONLY))) as lowest:
        free = lowest.fileno()
    try:
        for number in range(free, free + 12):
            resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
            try:
                sandbox = await house.backend.start(house.spec())
            except BackendError as error:
                said.append(str(error))
            else:
                await sandbox.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(said) >= 3
    assert [text for text in said if not re.search(DESCRIPTORS, text)] == []


FEW_PROCESSES = """
    import asyncio, json, os, sys
    from pathlib import Path
    from interpreter.backends.base import BackendError
    from tests.contracts.conftest import House

    async def main(root, uid, group):
        (group / "cgroup.procs").write_text(str(os.getpid()))
        house = House("bubblewrap", root, uid=uid)
        await house.backend.check()
        now, said = int((group / "pids.current").read_text()), []
        for more in (0, 1, 2, 3, 4, None):
            (group / "pids.max").write_text("max" if more is None else str(now + more))
            try:
                sandbox = await house.backend.start(house.spec())
            except BackendError as error:
                said.append(str(error))
            else:
                said.append("started")
                await sandbox.stop()
        await house.backend.aclose()
        print(json.dumps(said))

    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
"""


@pytest.mark.skipif(not Path("/sys/fs/cgroup/pids").is_dir(), reason="enters a group of cgroups v1")
async def test_no_process_left(house: House, works_afterwards: None) -> None:
    """A limit on the service and all its sandboxes, reached by the service, its supervisor, or bubblewrap."""
    found = cgroups.detect()
    assert found is not None
    group = found.bases["pids"] / f"cellbox-test-{os.getpid()}"
    group.mkdir()
    house.let_go()
    try:
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-c", textwrap.dedent(FEW_PROCESSES), str(house.root), str(house.uid), str(group)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        await until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
        house.take()
    *short, last = json.loads(out)
    assert last == "started"
    failed = [text for text in short if text != "started"]
    assert len(failed) >= 3
    assert [text for text in failed if not re.search(PROCESSES, text)] == []


async def test_cgroups_that_are_gone(house: House, works_afterwards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(house.backend, BubblewrapBackend)
    there = house.backend._cgroups
    assert there is not None
    gone = {name: base / "cellbox-test-gone" for name, base in there.bases.items()}
    with monkeypatch.context() as patch:
        patch.setattr(house.backend, "_cgroups", dataclasses.replace(there, bases=gone))
        with pytest.raises(BackendUnavailable, match=NO_CGROUPS):
            await house.backend.start(house.spec())


# --- shortages that cannot be made here without harm ------------------------------------------------------------------

FAILS = """
import sys
sys.path.insert(0, sys.argv[1])
import supervisor

def fails(real, calls=[]):
    def call(*args, **named):
        calls.append(1)
        if len(calls) == {nth}:
            raise OSError({number}, "planted")
        return real(*args, **named)
    return call

supervisor.{name} = fails(supervisor.{name})
supervisor.main()
"""
"""A supervisor in which the nth call of a function fails."""


@pytest.mark.parametrize(
    ("name", "nth", "number", "text"),
    [
        ("_write", 1, errno.ENOSPC, DISK),
        ("_write", 2, errno.ENOSPC, DISK),
        ("_write", 1, errno.EDQUOT, r"disk quota .* is used up: raise it, or purge"),
        ("_write", 1, errno.EROFS, r"read-only"),
        ("os.fork", 1, errno.ENOMEM, MEMORY),
        ("os.fork", 1, errno.EAGAIN, PROCESSES),
        ("os.memfd_create", 1, errno.EMFILE, DESCRIPTORS),
        ("os.memfd_create", 1, errno.ENFILE, HOST_DESCRIPTORS),
        ("_make_groups", 1, errno.ENOMEM, MEMORY),
        ("_make_groups", 1, errno.EAGAIN, FEW_CGROUPS),
        ("_make_groups", 1, errno.ENOSPC, FEW_CGROUPS),
        ("_make_groups", 1, errno.EROFS, NO_CGROUPS),
        ("_stage", 1, errno.ENOSPC, NAMESPACES),
        ("_stage", 1, errno.ENOMEM, MEMORY),
        ("os.dup2", 1, errno.EBADF, DESCRIPTORS),
        ("os.execve", 1, errno.EAGAIN, PROCESSES),
        ("os.execve", 1, errno.ENOENT, "the log of the service has the reason"),
        ("_fork", 1, errno.EPERM, "the log of the service has the reason"),
    ],
)
async def test_an_error_of_the_supervisor_is_explained(
    house: House, works_afterwards: None, monkeypatch: pytest.MonkeyPatch, name: str, nth: int, number: int, text: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_SUPERVISE", FAILS.format(name=name, nth=nth, number=number))
        with pytest.raises(BackendError, match=text) as caught:
            await house.backend.start(house.spec())
        assert str(house.root) not in str(caught.value)
        assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            "Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
            NAMESPACES,
        ),
        ("Creating new namespace failed: Resource temporarily unavailable", PROCESSES),
        ("Can't mount tmpfs on /newroot/tmp: Cannot allocate memory", MEMORY),
        ("Can't create pipe: Too many open files", DESCRIPTORS),
        ("Can't open /proc/1/ns: Permission denied", "the log of the service has the reason"),
    ],
)
def test_what_bubblewrap_said_is_explained(said: str, text: str) -> None:
    report = {"failed": "bubblewrap could not make the sandbox", "errno": None, "step": "namespaces"}
    error = failure.of_report({**report, "said": f"bwrap: {said}\n".encode()})
    with pytest.raises(BackendError, match=text):
        raise error


@pytest.mark.parametrize(
    ("number", "text"), [(errno.ENOMEM, MEMORY), (errno.EAGAIN, PROCESSES), (errno.EMFILE, DESCRIPTORS)]
)
async def test_a_supervisor_that_cannot_be_started(
    house: House, works_afterwards: None, monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    def fails(*_args: object, **_named: object) -> None:
        raise OSError(number, "planted")

    with monkeypatch.context() as patch:
        patch.setattr(module.subprocess, "Popen", fails)
        with pytest.raises(BackendError, match=text):
            await house.backend.start(house.spec())


async def test_a_supervisor_that_ends_without_a_word(
    house: House, works_afterwards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_SUPERVISE", "import os; os._exit(1)")
        with pytest.raises(BackendError, match="ended at once, which it does where memory has run out"):
            await house.backend.start(house.spec())


async def test_a_host_that_is_too_slow(house: House, works_afterwards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_START_S", 0.2)
        patch.setattr(module, "_SUPERVISE", "import time; time.sleep(600)")
        with pytest.raises(
            BackendError, match="not be started in time: the host is overloaded; lower SANDBOX_MAX_SESS"
        ):
            await house.backend.start(house.spec())


async def test_the_probe_waits_to_be_seen(
    house: House, works_afterwards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_PROBE_SEEN", "another")
        patch.setattr(module, "_START_S", 1.5)
        with pytest.raises(BackendUnavailable, match="cannot make sandboxes here"):
            await house.backend.check()
