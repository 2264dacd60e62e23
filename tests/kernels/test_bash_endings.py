"""How Bash cells are ended: interrupted, at their timeout, hung up; and what is left of the state then."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from sandboxd.protocol import Finished, Progress

from tests.attempts import in_time
from tests.waiting import gone, soon

INTERRUPTED_AT_ONCE = {
    "a sleep": "sleep 60",
    "a flood to nowhere": "yes >/dev/null",
    "a flood": "yes",
    "a flood of its own": "while :; do echo xxxxxxxxxxxxxxxx; done",
    "a loop": "while :; do :; done",
    "a loop of sleeps": "while :; do sleep 0.01; done",
    "a pipeline": "sleep 60 | cat | cat",
    "a pipeline with a loop": "while :; do echo y; done | cat >/dev/null",
    "a function": "f() { while true; do sleep 1; done; }; f",
    "a substitution": "x2=$(sleep 60)",
    "a subshell": "(sleep 60; sleep 60)",
    "a wait": "sleep 60 & wait",
    "a read": "mkfifo p; read y <>p",
    "an arithmetic loop": "for ((;;)); do :; done",
    "a program of python": "python3 -c 'import time; time.sleep(60)'",
    "with a trap on errors": "trap 'echo err' ERR; sleep 60",
}


@pytest.fixture
def bash(sandbox):
    async def run(code, **options):
        return await sandbox.run(code, language="bash", **options)

    return run


@pytest.mark.alone
@pytest.mark.parametrize("code", INTERRUPTED_AT_ONCE.values(), ids=INTERRUPTED_AT_ONCE)
async def test_timeout_interrupts_and_keeps_the_state(bash, code):
    await bash("x=1; sleep 100 &")
    began = time.monotonic()
    outcome = await bash(f"y=2; echo before\n{code}", timeout_s=0.3, grace_s=4.0)
    assert (outcome.status, outcome.exit_code, outcome.reason, outcome.kernel) == ("timeout", 124, None, "kept")
    in_time(time.monotonic() - began, 2.0)
    assert outcome.stdout.startswith("before\n")
    following = await bash("echo $x $y; jobs | grep -c 'sleep 100'; kill %1")
    assert (following.stdout, following.stderr) == ("1 2\n1\n", "")


IGNORES_SIGINT = {
    "a child": "bash -c 'trap \"\" INT; sleep 60; sleep 60'",
    "a child in a session of its own": "setsid -w bash -c 'trap \"\" INT; sleep 60; sleep 60'",
    "a child in a pipeline": "bash -c 'trap \"\" INT; sleep 60; sleep 60' | cat",
    "a child that catches it": "python3 -c 'import signal, time\nsignal.signal(2, print)\nwhile True: time.sleep(60)'",
}


@pytest.mark.parametrize("code", IGNORES_SIGINT.values(), ids=IGNORES_SIGINT)
async def test_children_that_ignore_the_interrupt_cost_no_state(bash, code):
    await bash("x=1; sleep 100 &")
    await asyncio.sleep(0.05)  # a clock tick, by which start times are told apart
    outcome = await bash(f"y=2\n{code}", timeout_s=0.3, grace_s=6.0)
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("timeout", 124, "kept")
    following = await bash("echo $x $y; jobs | grep -c 'sleep 100'; kill %1")
    assert following.stdout == "1 2\n1\n"


SHELL_THAT_DOES_NOT_HEAR = {
    "it ignores SIGINT": "trap '' INT; while :; do :; done",
    "it catches SIGINT": "trap 'echo caught' INT; while :; do sleep 0.01; done",
    "it ignores SIGINT with children": "trap '' INT; while :; do sleep 0.01; done",
}


@pytest.mark.parametrize("code", SHELL_THAT_DOES_NOT_HEAR.values(), ids=SHELL_THAT_DOES_NOT_HEAR)
async def test_a_shell_that_does_not_hear_is_replaced_by_one_with_its_state(bash, code):
    await bash("x=1; f() { echo f; }; cd /usr")
    outcome = await bash(f"y=2\n{code}", timeout_s=0.6)
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("timeout", 124, "kept")  # so within the grace
    for _ in range(2):
        assert (await bash("echo $x $y; f; pwd; trap -p INT")).stdout == "1 2\nf\n/usr\n"
    again = await bash("sleep 60", timeout_s=0.2)
    assert (again.status, again.kernel) == ("timeout", "kept")
    await asyncio.sleep(1.2)  # sandboxd kills what the cell had started half a grace later
    assert (await bash("echo $x")).stdout == "1\n"


async def test_a_shell_that_cannot_even_be_hung_up_goes_on_as_before_the_cell(bash):
    await bash("x=1")
    outcome = await bash("x=2; trap '' INT HUP; while :; do :; done", timeout_s=0.3)
    assert (outcome.status, outcome.kernel) == ("timeout", "kept")
    assert "the state it had before" in outcome.stderr
    assert (await bash("echo $x")).stdout == "1\n"


async def test_an_interrupt_on_request(sandbox, bash):
    await bash("x=1")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sandbox.execute("echo on; sleep 60", language="bash", id="e"))
        await sandbox.until_told(Progress)
        assert sandbox.kernels.cancel("e")
    finished = running.result()
    assert isinstance(finished, Finished)
    assert (finished.outcome.status, finished.outcome.exit_code) == ("interrupted", 130)
    assert finished.outcome.error.name == "KeyboardInterrupt"
    assert (await bash("echo $x $?")).stdout == "1 130\n"


async def test_interrupts_at_any_moment_lose_nothing(sandbox, bash):
    """Also while a cell begins, or has just ended."""
    await bash("x=0")
    for number in range(40):
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(sandbox.execute("x=$((x+0)); :", language="bash", id=f"e{number}"))
            await asyncio.sleep(number * 0.0002)
            sandbox.kernels.cancel(f"e{number}")
        assert isinstance(running.result(), Finished)
    assert (await bash("echo $x")).stdout == "0\n"


async def test_a_shell_that_ends_between_cells_is_replaced_and_its_loss_is_said(sandbox, bash):
    killed = "rm -f go; (until [ -e go ]; do sleep 0.01; done; kill -{} $$) & echo $$"
    await bash("x=1; sleep 100 &")
    shell = (await bash(killed.format("KILL"))).stdout.strip()
    (sandbox.workspace / "go").touch()
    await soon(lambda: gone(shell))
    outcome = await bash("echo $x; jobs")
    assert (outcome.stdout, outcome.kernel) == ("1\n", "kept")
    assert "jobs" in outcome.stderr
    shell = (await bash(killed.format("HUP") + "; y=2")).stdout.strip()
    await bash("true")  # it begins when the state that the cell before left is saved
    (sandbox.workspace / "go").touch()
    await soon(lambda: gone(shell))
    assert (await bash("echo $x $y")).stdout == "1 2\n"


async def test_a_shell_that_logs_itself_out_is_replaced(bash):
    shell = (await bash("x=1; TMOUT=1; echo $$")).stdout.strip()
    await soon(lambda: gone(shell))
    assert (await bash("echo $x $TMOUT; unset TMOUT")).stdout == "1 1\n"


@pytest.mark.parametrize(
    "code", ["PROMPT_COMMAND='read -r line'", "builtin() { :; }; alias builtin=false", "ulimit -n 4", "set -r"]
)
async def test_cells_that_break_the_shell_for_the_kernel_cost_one_timeout_at_most(bash, code):
    await bash("x=1")
    await bash(code, timeout_s=0.5)
    await bash("true", timeout_s=0.5)
    outcome = await bash("echo $x", timeout_s=5.0)
    assert (outcome.stdout, outcome.status) == ("1\n", "ok")


NEEDED_BY_THE_KERNEL = {
    "builtin is a function": "builtin() { :; }",
    "printf is disabled": "enable -n printf",
    "the dot is disabled": "enable -n .",
    "what disables is a function": "enable -n printf; enable() { :; }",
    "lines are read": "PROMPT_COMMAND='read -r line'",
}


@pytest.mark.alone
@pytest.mark.parametrize("code", NEEDED_BY_THE_KERNEL.values(), ids=NEEDED_BY_THE_KERNEL)
async def test_a_shell_without_what_the_kernel_needs_is_put_right_at_once(bash, code):
    outcome = await bash(f"x=1; f() {{ echo f; }}; echo on\n{code}")
    assert (outcome.status, outcome.stdout, outcome.kernel) == ("ok", "on\n", "new")
    assert outcome.stderr.startswith("bash: the shell did not answer, so ")
    in_time(outcome.run_ms, 5000)
    outcome = await bash("echo $x; f", timeout_s=2.0)
    assert (outcome.status, outcome.stdout, outcome.stderr) == ("ok", "1\nf\n", "")


async def test_a_shell_that_cannot_be_put_right_goes_on_as_before_the_cell(bash):
    await bash("x=1")
    outcome = await bash("x=2; unset() { :; }; builtin() { :; }")
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("error", 129, "kept")
    assert outcome.stderr == (
        "bash: the shell did not answer and was ended, and goes on with the state it had before that\n"
    )
    outcome = await bash("echo $x; unset x", timeout_s=2.0)
    assert (outcome.stdout, outcome.stderr) == ("1\n", "")


@pytest.mark.alone
@pytest.mark.parametrize("what", ["sleep 100", "while :; do :; done"])
async def test_a_trap_that_keeps_the_shell_from_the_kernel_costs_the_next_call_its_timeout_at_most(bash, what):
    """What it keeps is the shell's saving its state, so the cell that sets it has ended well."""
    await bash("x=1")
    outcome = await bash(f"n=0; set -T; trap '((n++ > 12)) && {what}' DEBUG")
    assert (outcome.status, outcome.stderr) == ("ok", "")
    began = time.monotonic()
    outcome = await bash("x=2", timeout_s=0.3, grace_s=4.0)
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("timeout", 124, "kept")
    assert "the shell did not answer and was " in outcome.stderr
    in_time(time.monotonic() - began, 2.3)
    outcome = await bash("echo $x; trap -p DEBUG")
    assert (outcome.status, outcome.stdout, outcome.stderr) == ("ok", "1\n", "")


async def test_a_call_that_can_wait_outlives_a_trap_that_keeps_the_shell_from_the_kernel(bash):
    await bash("x=1")
    await bash("n=0; set -T; trap '((n++ > 12)) && sleep 100' DEBUG")
    outcome = await bash("echo $x")
    assert (outcome.status, outcome.stdout, outcome.kernel) == ("ok", "1\n", "kept")
    assert "the shell did not answer and was " in outcome.stderr


async def test_a_trap_on_errors_that_exits_ends_failing_cells_only(bash):
    await bash("trap 'echo failed; exit 9' ERR; x=1")
    for _ in range(2):
        outcome = await bash("false; echo not")
        assert (outcome.stdout, outcome.exit_code, outcome.stderr) == ("failed\n", 9, "")
        outcome = await bash("echo $? $x $A; trap -p ERR", env={"A": "a", "NEW": "b"})
        assert (outcome.stdout, outcome.status) == ("9 1 a\ntrap -- 'echo failed; exit 9' ERR\n", "ok")


@pytest.mark.parametrize(
    "code", ["set -t", "trap 'exit 3' DEBUG", "readonly PATH PWD OLDPWD", "shopt -s failglob nocasematch"]
)
async def test_what_ends_or_troubles_every_shell_is_outlived(bash, code):
    await bash("x=1")
    await bash(code)
    await bash("exit 4")
    outcome = await bash("echo $x")
    assert (outcome.stdout, outcome.status) == ("1\n", "ok")


async def test_late_writers_take_descriptors_and_give_them_back(bash):
    for _ in range(40):
        await bash("sleep 100 &")
    held = "ls /proc/$PPID/fd | wc -l"
    before = int((await bash(held)).stdout)
    await bash("kill $(jobs -p); wait")
    assert int((await bash(held)).stdout) <= before - 80


async def test_a_dead_kernel_is_told(sandbox, bash):
    outcome = await bash("kill -9 $PPID; sleep 5")
    assert (outcome.status, outcome.reason, outcome.exit_code, outcome.kernel) == ("died", "crash", 137, "lost")
    assert (await bash("echo on")).kernel == "new"


async def test_the_shell_dies_with_its_kernel(sandbox, bash):
    """Even when it is busy and would not read the end of its pipe."""
    outcome = await bash("trap '' INT TERM HUP; echo $$ >pid; kill -9 $PPID; while :; do :; done")
    assert outcome.status == "died"
    shell = (sandbox.workspace / "pid").read_text().strip()
    assert shell.isdigit()
    assert shell not in os.listdir("/proc")


async def test_a_new_shell_is_none_of_what_a_timeout_ends_later(bash):
    """Half the grace after a timeout all that the cell started is killed."""
    await bash("x=1")
    for code in ("kill -9 $$", "set -e; sleep 60", "trap '' INT; while :; do :; done"):
        await bash(code, timeout_s=0.3)
        outcome = await bash("x=$((x + 1)); sleep 60", timeout_s=0.3, grace_s=1.0)
        assert (outcome.status, outcome.kernel) == ("timeout", "kept"), code
        outcome = await bash("sleep 0.8; echo on")
        assert (outcome.stdout, outcome.stderr) == ("on\n", ""), code
    assert (await bash("echo $x")).stdout == "4\n"
    shell = (await bash("echo $$")).stdout.strip()
    os.kill(int(shell), signal.SIGKILL)
    await soon(lambda: gone(shell))
    await bash("sleep 60", timeout_s=0.3, grace_s=1.0)  # the new shell is started after this has begun
    outcome = await bash("sleep 0.8; echo on")
    assert (outcome.stdout, outcome.stderr) == ("on\n", "")


async def test_a_shell_that_ignores_interrupts_lives_on_when_only_its_child_holds_it(bash):
    before = (await bash("echo $$")).stdout
    assert (await bash("trap '' INT; sleep 60; x=3", timeout_s=0.3)).status == "timeout"
    assert (await bash("trap - INT; echo $x $$")).stdout == f"3 {before}"


async def test_an_interrupt_with_set_e_costs_no_variables(bash):
    await bash("x=1")
    assert (await bash("set -e; y=2; sleep 60", timeout_s=0.3)).status == "timeout"
    assert (await bash("echo $x $y")).stdout == "1 2\n"


DAMAGE = {
    "removed": "rm -rf $folder",
    "a file": "rm -rf $folder; touch $folder",
    "a link": "mv $folder $folder-; ln -s /nowhere $folder",
    "its scripts": "rm $folder/{post,save,arm}",
    "its scripts are folders": "rm $folder/{post,save}; mkdir $folder/{post,save}",
    "its pipes removed": "rm $folder/{control,answer}",
    "its pipes are files": "rm $folder/{control,answer}; touch $folder/{control,answer}",
    "its pipes are others": "rm $folder/{control,answer}; mkfifo $folder/{control,answer}",
    "the next cell is a folder": "mkdir $folder/{cell,out,err}-{1..9}",
}


@pytest.mark.alone
@pytest.mark.parametrize("harm", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("own", [True, False], ids=["own", "another's"])
async def test_a_kernel_whose_files_a_cell_has_harmed_ends_and_a_new_one_comes(bash, harm, own):
    told = await bash("echo ${BASH_SOURCE[-1]}")
    harm = f"folder={told.stdout.rpartition('/')[0]}; {harm}"
    outcomes = [await bash(harm, context="default" if own else "other", timeout_s=0.5, grace_s=0.4)]
    while (outcome := await bash("echo on", timeout_s=0.5, grace_s=0.4)).kernel != "new":
        outcomes.append(outcome)
        assert len(outcomes) < 4
    assert outcome.stdout == "on\n"
    assert outcomes[-1].kernel == "lost"
    assert outcomes[-1].status in ("died", "timeout")
    assert not any("Traceback" in outcome.stderr for outcome in outcomes)
    assert (await bash("echo more")).stdout == "more\n"


async def test_a_shell_that_takes_its_time_is_not_taken_for_deaf(sandbox):
    """It has read the lines behind the cell already: bash reads a kilobyte of them at once."""
    outcome = await sandbox.run("for n in 1 2; do sleep 1; done; read -t 1 x < <(sleep 2)", language="bash")
    assert (outcome.stderr, outcome.exit_code) == ("", 142)
