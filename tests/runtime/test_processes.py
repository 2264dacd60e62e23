"""The interface that kernels and runs are built on, over a real zygote."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxd import osproc, processes, programs
from sandboxd import zygote as zygote_module
from sandboxd.processes import Command, Exited, Process, SpawnError, Zygote

from tests.runtime.box import PYTHON, ROOT

_ZYGOTE = f"""
import os, socket, sys
sys.path.insert(0, {str(ROOT / "runtime")!r})
from sandboxd import osproc, zygote
osproc.become_subreaper()
zygote.serve(socket.socket(fileno=int(sys.argv[1])), 0, {{}})
"""


@pytest.fixture
def requests() -> Iterator[socket.socket]:
    """Our end of the socket to a zygote that ends with the test."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [PYTHON, "-c", _ZYGOTE, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
    yield ours
    ours.close()
    deadline = time.monotonic() + 20
    while left := osproc.below(process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
    process.kill()
    process.wait()


@pytest.fixture
async def zygote(requests: socket.socket) -> Zygote:
    return Zygote(requests)


async def _spawn(zygote: Zygote, *argv: str, cwd: str = "/", **env: str) -> Process:
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        command = Command(list(argv), {"PATH": "/usr/bin:/bin", **env}, cwd)
        return await zygote.spawn(command, stdin=nothing, stdout=nothing, stderr=nothing)
    finally:
        os.close(nothing)


async def _descendants(process: Process) -> list[tuple[int, int]]:
    while not (found := process.descendants()):  # noqa: ASYNC110 - the process table tells nobody
        await asyncio.sleep(0.005)
    return found


def _wait_for_exec(pid: int) -> None:
    """Until then the child is a copy of the shell, which may lose a signal."""
    while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"):
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("script", "status"), [("exit 3", 3), ("kill -9 $$", -9), ("trap '' TERM; exit 0", 0), ("kill -6 $$", -6)]
)
async def test_many_may_wait_for_how_it_ended(zygote: Zygote, script: str, status: int) -> None:
    process = await _spawn(zygote, "sh", "-c", script)
    assert await asyncio.gather(*(process.wait() for _ in range(3))) == [Exited(status)] * 3
    assert await asyncio.gather(process.gone(), process.gone()) == [True, True]
    process.kill()
    process.signal_group(signal.SIGTERM)


@pytest.mark.parametrize(
    ("argv", "cwd"),
    [(["nothing_like_this"], "/"), (["true"], "/nowhere"), (["/etc/passwd"], "/"), (["true"], "/bin/sh")],
)
async def test_what_cannot_start_says_why(zygote: Zygote, argv: list[str], cwd: str) -> None:
    with pytest.raises(SpawnError) as caught:
        await _spawn(zygote, *argv, cwd=cwd)
    assert caught.value.errno


async def test_a_request_that_is_too_large_is_refused(zygote: Zygote) -> None:
    with pytest.raises(SpawnError):
        await _spawn(zygote, "true", BIG="x" * 200_000)


async def test_without_a_descriptor_left_it_says_so(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socketpair", none_left)
    with pytest.raises(SpawnError) as caught:
        await _spawn(zygote, "true")
    assert caught.value.errno == errno.EMFILE


async def test_after_close_nothing_starts(zygote: Zygote) -> None:
    zygote.close()
    with pytest.raises(SpawnError):
        await _spawn(zygote, "true")


async def test_descendants_are_told_apart_for_good(zygote: Zygote) -> None:
    process = await _spawn(zygote, "sh", "-c", "sleep 60 & (setsid sleep 61 &); wait")
    found = await _descendants(process)
    assert all(osproc.find(pid).started == started for pid, started in found)
    process.signal_group(signal.SIGKILL)
    assert await process.wait() == Exited(-9)
    assert await process.gone()


async def test_a_child_that_executions_run_in_can_be_left_out(zygote: Zygote) -> None:
    process = await _spawn(zygote, "sh", "-c", "sh -c 'sleep 60; true'; true")
    while len(found := process.descendants()) < 2:  # noqa: ASYNC110 - the process table tells nobody
        await asyncio.sleep(0.005)
    assert process.descendants(in_child=True) == found[1:]
    process.kill()
    assert await process.gone()


async def test_an_interrupt_of_the_group_reaches_children(zygote: Zygote) -> None:
    process = await _spawn(zygote, "sh", "-c", "sleep 60; exit 7")
    ((child, _),) = await _descendants(process)
    await asyncio.to_thread(_wait_for_exec, child)
    process.signal_group(signal.SIGINT)
    assert (await process.wait()).status in (7, -2)
    assert await process.gone()


async def test_kill_ends_the_whole_tree(zygote: Zygote) -> None:
    process = await _spawn(zygote, "sh", "-c", "trap '' TERM INT; (setsid sh -c 'sleep 60' &); sleep 60")
    await _descendants(process)
    process.kill()
    process.kill()
    assert await process.wait() == Exited(-9)
    assert await process.gone()


async def test_cancelling_a_wait_is_harmless(zygote: Zygote) -> None:
    process = await _spawn(zygote, "sleep", "60")
    waiting = asyncio.gather(process.wait(), process.gone())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    process.kill()
    assert await process.gone()


@pytest.mark.parametrize("steps", range(6))
async def test_a_spawn_cancelled_at_any_step_leaves_nothing(zygote: Zygote, steps: int) -> None:
    """That nothing is left is seen by the fixture."""
    spawning = asyncio.gather(_spawn(zygote, "sleep", "60"))
    for _ in range(steps):
        await asyncio.sleep(0.002 * (steps > 3))
    spawning.cancel()
    try:
        (process,) = await spawning
    except asyncio.CancelledError:
        return
    process.kill()
    assert await process.gone()


async def test_a_program_that_never_starts_is_given_up(
    requests: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zygote that does not answer, as on a machine without a moment to spare."""
    monkeypatch.setattr(processes, "START_WITHIN_S", 0.1)
    silent, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with silent, other, pytest.raises(SpawnError):
        await _spawn(Zygote(silent), "true")


async def test_a_supervisor_that_is_stopped_before_it_tells_of_a_start_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have started the program by then, so what is below it must come to the zygote."""
    monkeypatch.setattr(processes, "START_WITHIN_S", 0.1)
    requests, as_zygote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote = Zygote(requests)
    spawning = asyncio.get_running_loop().create_task(_spawn(zygote, "true"))
    await asyncio.sleep(0)
    _, descriptors, *_ = socket.recv_fds(as_zygote, 10, 1)
    with socket.socket(fileno=descriptors[0]) as control:
        stopped = await asyncio.create_subprocess_exec("sleep", "60")
        control.send(programs._REPORT.pack(programs.READY, 0, stopped.pid))
        with pytest.raises(SpawnError):
            await spawning
    assert await stopped.wait() == -signal.SIGKILL
    zygote.close()
    as_zygote.close()


def test_the_first_report_of_a_supervisor_names_it(requests: socket.socket) -> None:
    for kind in (zygote_module.ONE, zygote_module.RUNS):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            socket.send_fds(requests, [kind], [theirs.fileno()])
            ours.settimeout(5)
            report = programs.unpack(ours.recv(64))
            assert report.kind == programs.READY
            assert osproc.find(report.supervisor) is not None


async def test_extra_descriptors_come_from_three_on(zygote: Zygote, tmp_path: Path) -> None:
    files = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "abcde"]
    try:
        command = Command(
            ["sh", "-c", "echo out; echo err >&2; echo x >&3; exec ls -l /proc/self/fd >&4"], {"PATH": "/bin"}, "/"
        )
        process = await zygote.spawn(command, stdin=files[0], stdout=files[1], stderr=files[2], extra=files[3:])
        assert await process.wait() == Exited(0)
        assert [(tmp_path / name).read_text() for name in "bcd"] == ["out\n", "err\n", "x\n"]
        listed = (tmp_path / "e").read_text()
        assert f"4 -> {tmp_path}/e" in listed
        assert "socket:" not in listed
        assert await process.gone()
    finally:
        for descriptor in files:
            os.close(descriptor)


async def test_a_supervisor_that_ends_before_it_reads_the_kill_has_left_nothing() -> None:
    """Its socket then tells of the unread bytes first and of its last report second."""
    requests, as_zygote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    zygote = Zygote(requests)
    spawning = asyncio.get_running_loop().create_task(_spawn(zygote, "true"))
    await asyncio.sleep(0)
    _, descriptors, *_ = socket.recv_fds(as_zygote, 10, 1)
    with socket.socket(fileno=descriptors[0]) as supervisor:
        supervisor.recv(1000)
        supervisor.send(programs.pack(programs.STARTED, 2**22))
        process = await spawning
        supervisor.send(programs.pack(programs.ENDED, -11))
        assert await process.wait() == Exited(-11)
        process.kill()
        supervisor.send(programs.pack(programs.CLEAN, -11))
    async with asyncio.timeout(20):
        assert await process.gone()
    zygote.close()
    as_zygote.close()
