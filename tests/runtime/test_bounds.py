"""What a tenant can make sandboxd hold: descriptors and memory come back, whatever its programs do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxd.protocol import MAX_ALIVE, MAX_RUNNING, Cancel, StopKernel

from interpreter.backends import inside
from tests.runtime.box import Box, box

PER_KERNEL = 10
"""Its supervisor's socket, a pidfd, two pipes, and what the library opens for three channels."""
PER_RUN = 4
"""Its supervisor's socket, a pidfd and two pipes."""
PER_START = 7
"""The other ends of these while it starts, what it reads, and the socket that goes to the zygote."""
AT_ONCE = 100
"""Starts that overlap, on a starved machine: the zygote forks one after the other."""
OF_ITSELF = 64
"""Standard streams, loop, link, socket to the zygote, what the library has, and programs that wait for the next run."""

DEAF = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [2])"


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with box(tmp_path_factory.mktemp("box")) as opened:
        yield opened


def descriptors(sandbox: Box) -> int:
    return len(os.listdir(f"/proc/{sandbox.sandboxd}/fd"))


def wait_for_descriptors(sandbox: Box, most: int) -> None:
    deadline = time.monotonic() + 20
    while (count := descriptors(sandbox)) > most:
        assert time.monotonic() < deadline, (count, most)
        time.sleep(0.02)


def warm(sandbox: Box) -> int:
    """Use everything once; return how many descriptors there are then, with no kernel and nothing running."""
    for _ in range(3):
        sandbox.run("1", stateful=True)
        sandbox.run("1")
        sandbox.run("true", "bash")
    stop(sandbox, "default")
    return descriptors(sandbox)


def stop(sandbox: Box, context: str) -> None:
    sandbox.send(StopKernel(request=context, language="python", context=context))
    while getattr(sandbox.receive(), "request", None) != context:
        pass  # what was told before it


def test_a_kernel_and_a_run_hold_so_many_and_no_more(sandbox: Box) -> None:
    before = warm(sandbox)
    for number in range(4):
        sandbox.run("1", stateful=True, context=f"c{number}")
    wait_for_descriptors(sandbox, before + 4 * PER_KERNEL)
    runs = [sandbox.begin(f"touch began{number}; sleep 600", "bash") for number in range(10)]
    while not all((sandbox.workspace / f"began{number}").exists() for number in range(10)):
        time.sleep(0.01)
    wait_for_descriptors(sandbox, before + 4 * PER_KERNEL + 10 * PER_RUN)
    assert before < OF_ITSELF
    for run in runs:
        sandbox.send(Cancel(id=run))
        sandbox.end(run)
    for number in range(4):
        stop(sandbox, f"c{number}")
    wait_for_descriptors(sandbox, before)


def test_what_a_sandbox_may_hold_at_most_fits_its_limit() -> None:
    most = OF_ITSELF + (MAX_ALIVE + 2) * PER_KERNEL + MAX_RUNNING * PER_RUN + AT_ONCE * PER_START
    assert most < inside.OPEN_FILES


HOLDERS = {
    "dies": "import os; os._exit(3)",
    "is killed": "import os; os.kill(os.getpid(), 9)",
    "closes all it has": "import os; os.closerange(0, 1000)",
    "leaves writers": "import subprocess\nfor _ in range(5): subprocess.Popen(['yes'], start_new_session=True)",
    "gives its output away": (
        "import os, time\nif not os.fork():\n    os.setsid()\n    if not os.fork(): time.sleep(600)\n    os._exit(0)"
    ),
    "kills its supervisor": "import os, time; os.kill(os.getppid(), 9); time.sleep(600)",
    "stops its supervisor": "import os; os.kill(os.getppid(), 19)",
    "floods": "print('x' * 10_000_000)",
}


@pytest.mark.parametrize("code", HOLDERS.values(), ids=HOLDERS.keys())
@pytest.mark.parametrize("stateful", [True, False])
def test_what_programs_did_is_not_held_once_they_are_gone(sandbox: Box, code: str, stateful: bool) -> None:
    before = warm(sandbox)
    for number in range(3):
        sandbox.run(code, stateful=stateful, context=f"c{number}", timeout_s=0.5, grace_s=0.4)
        if stateful:
            stop(sandbox, f"c{number}")
    wait_for_descriptors(sandbox, before)


def test_kernels_that_are_lost_one_after_the_other_leave_two_spares(tmp_path: Path) -> None:
    with box(tmp_path) as sandbox:
        _lose_kernels(sandbox)


def _lose_kernels(sandbox: Box) -> None:
    before = warm(sandbox)
    for number in range(4):
        sandbox.run(DEAF, stateful=True, context=f"c{number}")
        code = "while True: pass"
        outcome = sandbox.run(code, stateful=True, context=f"c{number}", timeout_s=0.1, grace_s=1.0).outcome
        assert (outcome.status, outcome.kernel) == ("timeout", "lost")
    time.sleep(0.5)  # what is being made has been made
    wait_for_descriptors(sandbox, before + 2 * PER_KERNEL)
    sandbox.hang_up()
    sandbox.listen_again()
    assert len(sandbox.hello.alive) <= 2  # fewer where a loaded machine took long to end one: then none is made ahead
