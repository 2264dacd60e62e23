"""Programs that try to outlive their run, to blind who watches them, or to take sandboxd down."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxd.protocol import Finished, OutputLimits

from tests.attempts import in_time
from tests.runtime.box import PYTHON, ROOT, Box, box

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import signal
        for number in signal.valid_signals() - {9, 19}:
            try: signal.signal(number, signal.SIG_IGN)
            except OSError: pass
        open('alive', 'w').write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists('alive') or not os.stat('alive').st_size: time.sleep(0.005)
print('done')
"""

HOPPER = """
#include <signal.h>
#include <time.h>
#include <unistd.h>
int main(void) {
    time_t until = time(0) + 20;  /* a test that fails must not leave it for ever */
    for (int n = 1; n < 65; n++) signal(n, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    while (time(0) < until) {
        if (fork() > 0) _exit(0);
        setsid();
    }
}
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Box]:
    with box(tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that is a new process, in a new session, thousands of times a second."""
    directory = tmp_path_factory.mktemp("hopper")
    (directory / "hopper.c").write_text(HOPPER)
    subprocess.run(["gcc", "-O2", "-o", directory / "hopper", directory / "hopper.c"], check=True)
    return directory / "hopper"


def _idle(sandbox: Box) -> int:
    """How many processes of the sandbox there are when nothing runs, at most."""
    return 2 + 2 * 2  # boot and sandboxd; two supervisors, each with a process ready


def test_a_daemon_does_not_survive_its_run(sandbox: Box) -> None:
    answer = sandbox.end(sandbox.begin(DAEMON))
    assert answer.outcome.stdout == "done\n"
    assert (answer.outcome.status, answer.sandbox_unsafe) == ("ok", False)
    assert not Path(f"/proc/{(sandbox.workspace / 'alive').read_text()}").exists()
    sandbox.wait_for_processes(_idle(sandbox))


@pytest.mark.alone
def test_a_daemon_that_holds_the_output_open_delays_nothing(sandbox: Box) -> None:
    began = time.monotonic()
    answer = sandbox.run("(setsid sh -c 'sleep 600; echo late' &) ; echo now", "bash")
    assert answer.outcome.stdout == "now\n"
    in_time(time.monotonic() - began, 1)


@pytest.mark.alone
def test_a_fork_loop_with_setsid_and_ignored_signals_ends(sandbox: Box) -> None:
    code = """
import os, signal
for number in (1, 2, 3, 15): signal.signal(number, signal.SIG_IGN)
print('forking', flush=True)
while True:
    if os.fork(): os._exit(0)
    os.setsid()
"""
    began = time.monotonic()
    answer = sandbox.end(sandbox.begin(code, timeout_s=1))
    in_time(time.monotonic() - began, 2.5)
    assert answer.outcome.stdout == "forking\n"
    if not answer.sandbox_unsafe:
        sandbox.wait_for_processes(_idle(sandbox))


@pytest.mark.alone
def test_a_hopping_process_is_caught_or_the_sandbox_is_called_unsafe(sandbox: Box, hopper: Path) -> None:
    caught = 0
    for _ in range(5):
        began = time.monotonic()
        answer = sandbox.end(sandbox.begin(f"{hopper} & sleep 0.2; echo done", "bash", timeout_s=2))
        in_time(time.monotonic() - began, 3.5)
        assert answer.outcome.stdout == "done\n"
        caught += not answer.sandbox_unsafe
    sandbox.wait_for_processes(_idle(sandbox))
    assert caught, "none of five was caught from inside"


def test_a_tree_that_grows_while_it_is_killed_ends(sandbox: Box) -> None:
    code = """
import os, time
print('growing', flush=True)
for _ in range(40):
    if os.fork() == 0:
        os.setsid()
        while True:
            if os.fork() == 0: time.sleep(0.05); os._exit(0)
            time.sleep(0.02)
time.sleep(60)
"""
    answer = sandbox.end(sandbox.begin(code, timeout_s=1))
    assert (answer.outcome.status, answer.outcome.stdout) == ("timeout", "growing\n")
    sandbox.wait_for_processes(_idle(sandbox))


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_run_that_ends_or_stops_its_supervisor_makes_the_sandbox_unsafe(sandbox: Box, number: int) -> None:
    code = f"import os, time\nprint('so far', flush=True)\nos.kill(os.getppid(), {int(number)})\ntime.sleep(60)"
    began = time.monotonic()
    answer = sandbox.end(sandbox.begin(code, timeout_s=0.5))
    in_time(time.monotonic() - began, 2)
    assert answer.sandbox_unsafe
    assert answer.outcome.stdout == "so far\n"
    assert answer.outcome.status == ("died" if number == signal.SIGKILL else "timeout")
    sandbox.wait_for_processes(_idle(sandbox))
    assert sandbox.run("print(1)").outcome.stdout == "1\n"


def test_a_stopped_supervisor_is_noticed_when_the_program_ends(sandbox: Box) -> None:
    answer = sandbox.end(sandbox.begin("import os\nos.kill(os.getppid(), 19)", timeout_s=10))
    assert answer.sandbox_unsafe
    assert answer.outcome.status == "died"


def test_descendants_of_a_killed_supervisor_are_killed(sandbox: Box) -> None:
    code = DAEMON + "\nos.kill(os.getppid(), 9)\ntime.sleep(60)"
    answer = sandbox.end(sandbox.begin(code))
    assert answer.sandbox_unsafe
    sandbox.wait_for_processes(_idle(sandbox))


def test_a_daemon_that_kills_the_next_run_s_process_costs_nothing_more(sandbox: Box) -> None:
    """What waits for the next run can be killed by anyone of the same user; the run is then started another way."""
    sandbox.run("pass")
    code = f"""
import os
for entry in os.listdir('/proc'):
    if entry.isdecimal() and int(entry) not in (os.getpid(), os.getppid(), {sandbox.boot.pid}):
        try:
            fields = open(f'/proc/{{entry}}/stat').read().rpartition(')')[2].split()
        except OSError:
            continue
        if int(fields[1]) not in (1, {sandbox.boot.pid}) and {sandbox.mark!r} in open(f'/proc/{{entry}}/environ').read():
            os.kill(int(entry), 9)
"""
    for _ in range(3):
        answer = sandbox.end(sandbox.begin(code))
        assert isinstance(answer, Finished)
        assert sandbox.run("print(1)").outcome.stdout == "1\n"


def test_processes_that_were_killed_while_they_waited_are_replaced(sandbox: Box) -> None:
    """Anyone of the same user can kill them; the runs that come after get others and notice nothing."""
    for execution in [sandbox.begin("import time; time.sleep(0.2)") for _ in range(2)]:
        sandbox.end(execution)
    deadline = time.monotonic() + 20
    while len(waiting := _waiting(sandbox)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for pid in waiting:
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.001)
    for _ in range(4):
        answer = sandbox.end(sandbox.begin("print(1)"))
        assert isinstance(answer, Finished), answer
        assert (answer.outcome.stdout, answer.sandbox_unsafe) == ("1\n", False)


def test_the_death_of_sandboxd_ends_everything(sandbox: Box) -> None:
    sandbox.begin(DAEMON + "\ntime.sleep(600)")
    while not (sandbox.workspace / "alive").exists():
        time.sleep(0.01)
    os.kill(sandbox.sandboxd, signal.SIGKILL)
    sandbox.boot.wait(20)
    sandbox.wait_for_processes(0)


def test_the_death_of_the_boot_process_ends_everything(sandbox: Box) -> None:
    sandbox.begin(DAEMON + "\ntime.sleep(600)")
    while not (sandbox.workspace / "alive").exists():
        time.sleep(0.01)
    sandbox.boot.kill()
    sandbox.boot.wait(20)
    sandbox.wait_for_processes(0)


def test_shutdown_ends_daemons_too(sandbox: Box) -> None:
    sandbox.begin(DAEMON + "\ntime.sleep(600)")
    sandbox.begin("sleep 600", "bash")
    while not (sandbox.workspace / "alive").exists():
        time.sleep(0.01)
    sandbox.close()


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.closerange(0, 100)",
        "import os; [os.close(n) for n in (0, 1, 2)]",
        "import os; os.dup2(os.open('/dev/null', 1), 1)",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
        "import os; os.setsid() if os.getsid(0) != os.getpid() else os.setpgid(0, 0)",
    ],
)
def test_closed_descriptors_and_odd_limits_end_as_any_run(sandbox: Box, code: str) -> None:
    answer = sandbox.end(sandbox.begin(code))
    assert isinstance(answer, Finished)
    assert answer.outcome.status in ("ok", "error")
    assert sandbox.run("print(1)").outcome.stdout == "1\n"


@pytest.mark.alone
def test_a_flood_is_bounded_and_ended_in_time(sandbox: Box) -> None:
    began = time.monotonic()
    answer = sandbox.end(sandbox.begin("yes", "bash", timeout_s=1, limits=OutputLimits(text=1000, results=0, spill=0)))
    in_time(time.monotonic() - began, 2.5)
    assert answer.outcome.status == "timeout"
    assert answer.outcome.truncated
    assert len(answer.outcome.stdout) <= 1000
    memory = int(Path(f"/proc/{sandbox.sandboxd}/statm").read_text().split()[1]) * 4096
    assert memory < 150e6


def test_nobody_inside_can_look_into_ours(sandbox: Box) -> None:
    """Root may look anywhere, so this asks for what decides it: whose the files in /proc are, and the flag."""
    sandbox.run("pass")
    for pid in (sandbox.boot.pid, sandbox.sandboxd):
        status = Path(f"/proc/{pid}/status").read_text()
        assert "NoNewPrivs:\t1" in status
    code = "import ctypes\nprint(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))"
    assert sandbox.run(code).outcome.stdout == "1 1\n"


def test_as_another_user_ours_are_closed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become someone else")
    probe = """
import os
def attempt(path):
    try:
        os.listdir(path) if path.endswith('fd') else open(path, 'rb').read(1)
        return 'open'
    except PermissionError:
        return 'closed'
boot = os.getppid()
print({attempt(f'/proc/{os.getppid()}/{n}') for n in ('fd', 'environ', 'mem', 'maps')}, attempt('/proc/self/fd'))
"""
    script = f"""
import ctypes, os, sys
sys.path.insert(0, {str(ROOT / "runtime")!r})
from sandboxd import osproc
os.setgid(54321); os.setuid(54321)
osproc.set_dumpable(dumpable=False)
if os.fork() == 0:
    osproc.set_dumpable(dumpable=True)
    osproc.make_first_to_go()
    print(open('/proc/self/oom_score_adj').read().strip(), open(f'/proc/{{os.getppid()}}/oom_score_adj').read().strip())
    exec({probe!r})
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""
    done = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True, check=False, cwd="/")
    if "Permission" in done.stderr:
        pytest.skip("the checkout cannot be read by others")
    assert done.stdout == "500 0\n{'closed'} open\n", done.stderr


def test_the_filter_is_in_force_in_every_program(tmp_path: Path) -> None:
    with box(tmp_path, seccomp=True) as sandbox:
        for code, language in (
            ("print([l for l in open('/proc/self/status') if 'Seccomp:' in l])", "python"),
            ("grep Seccomp: /proc/self/status", "bash"),
        ):
            assert "2" in sandbox.run(code, language).outcome.stdout


def _waiting(sandbox: Box) -> list[int]:
    """The processes that are ready for the next runs, when nothing runs: children of supervisors."""
    own = sandbox.processes()
    return [pid for pid in own if _parent(_parent(pid)) == sandbox.boot.pid]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 0
