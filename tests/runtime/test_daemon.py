"""sandboxd's end of the link."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxd import daemon, protocol
from sandboxd.protocol import BootConfig, Cancel, Finished, OutputLimits, Shutdown, StopKernel

from tests.runtime.box import Box, box


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Box]:
    with box(tmp_path) as opened:
        yield opened


def test_shutdown_ends_it_with_what_runs(sandbox: Box) -> None:
    sandbox.begin("sleep 600", "bash")
    sandbox.begin("import time; time.sleep(600)")
    sandbox.send(Shutdown())
    assert sandbox.boot.wait(20) == 0
    sandbox.wait_for_processes(0)


@pytest.mark.parametrize("frame", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", b"\0\0\0\2\x80"])
def test_what_no_service_sends_ends_its_link_only(sandbox: Box, frame: bytes) -> None:
    run = sandbox.begin("read -r; echo $REPLY", "bash", stdin="kept\n")
    sandbox._link.sendall(frame)
    sandbox.hang_up()
    sandbox.listen_again()
    assert sandbox.end(run).outcome.stdout == "kept\n"


def test_where_nobody_watches_from_outside_the_end_of_the_link_ends_it(tmp_path: Path) -> None:
    with box(tmp_path, redial=False) as sandbox:
        sandbox.begin("sleep 600", "bash")
        sandbox.send(Cancel(id="nothing"))
        sandbox._link.shutdown(socket.SHUT_RDWR)
        assert sandbox.boot.wait(20) == 0
        sandbox.wait_for_processes(0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_the_boot_process_ends_as_sandboxd_did(sandbox: Box, number: signal.Signals) -> None:
    sandbox.begin("sleep 600", "bash")
    os.kill(sandbox.sandboxd, number)
    assert sandbox.boot.wait(20) == 128 + number
    sandbox.wait_for_processes(0)


def test_an_id_that_runs_already_is_not_run_again(sandbox: Box) -> None:
    code = "import time; open('count', 'a').write('x'); time.sleep(0.5)"
    sandbox.begin(code, id="same")
    sandbox.begin(code, id="same")
    assert isinstance(sandbox.end("same"), Finished)
    assert (sandbox.workspace / "count").read_text() == "x"


def test_cancelling_what_is_unknown_is_harmless(sandbox: Box) -> None:
    sandbox.send(Cancel(id="nothing"))
    assert sandbox.run("print(1)").outcome.stdout == "1\n"


def test_stopping_an_absent_kernel_says_so(sandbox: Box) -> None:
    sandbox.send(StopKernel(request="r1", language="python", context="default"))
    assert sandbox.receive() == protocol.KernelStopped(request="r1", existed=False)


def test_a_service_that_does_not_read_loses_nothing(sandbox: Box) -> None:
    limits = OutputLimits(text=4 * 2**20, results=0, spill=0)
    waiting = [sandbox.begin("print('x' * 3_000_000)", limits=limits) for _ in range(10)]
    time.sleep(1)
    for execution in waiting:
        assert len(sandbox.end(execution).outcome.stdout) == 3_000_001


def test_sixty_runs_at_once_are_all_answered(sandbox: Box) -> None:
    waiting = [sandbox.begin(f"print({number})", "bash" if number % 3 == 0 else "python") for number in range(60)]
    waiting += [sandbox.begin("echo $BIG", "bash", env={"BIG": "y" * 60_000})]
    answers = [sandbox.end(execution) for execution in waiting]
    assert answers[-1].outcome.stdout == "y" * 60_000 + "\n"
    assert [answer.outcome.stdout for answer in answers[1:60:3]] == [f"{number}\n" for number in range(1, 60, 3)]


async def test_nobody_to_dial_is_an_error_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_DIAL_WITHIN_S", 0.2)
    config = BootConfig(str(tmp_path / "nobody"), "/", "/", "/", "/", {})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert await daemon._serve(config, ours) == 1
