"""How executions and kernels end: by themselves, interrupted, at their timeout, killed, stopped."""

import asyncio
import os
import signal
import time

import pytest
from sandboxd.protocol import Finished, KernelGone, KernelStopped, Preparing, Progress, StopKernel

from tests.attempts import in_time

INTERRUPTED_AT_ONCE = [
    "while True: pass",
    "import time; time.sleep(30)",
    "await asyncio.sleep(30)",
    "asyncio.run(asyncio.sleep(30))",
    "await asyncio.gather(asyncio.sleep(30), asyncio.sleep(40))",
    "await asyncio.sleep(0)\nwhile True: pass",
    "asyncio.run(asyncio.sleep(0))\nwhile True: await asyncio.sleep(0)",
    "async def tick():\n    while True: await asyncio.sleep(0)\nt = asyncio.create_task(tick())\nawait asyncio.sleep(30)",
    "import subprocess; subprocess.run(['sleep', '30'])",
    "!sleep 30",
    "import os; os.system('sleep 30')\nraise KeyboardInterrupt",
    "import re; re.match('(a+)+b', 'a' * 40)",
    "import threading; threading.Event().wait()",
    "await asyncio.to_thread(__import__('time').sleep, 1)\nwhile True: await asyncio.sleep(0)",
    "import multiprocessing, time\np = multiprocessing.Process(target=time.sleep, args=(30,)); p.start(); p.join()",
    "while True: print('x' * 1000)",
    "while True: display('x')",
    "while True: print('x', end=''); display('x' * 100_000)",
]


@pytest.mark.alone
@pytest.mark.parametrize("code", INTERRUPTED_AT_ONCE)
async def test_timeout_interrupts_and_keeps_the_state(sandbox, code):
    await sandbox.run("import asyncio\nx = 1")
    began = time.monotonic()
    outcome = await sandbox.run(f"print('before')\n{code}", timeout_s=0.3, grace_s=4.0)
    assert (outcome.status, outcome.exit_code, outcome.reason, outcome.kernel) == ("timeout", 124, None, "kept")
    in_time(time.monotonic() - began, 1.8)
    assert outcome.stdout.startswith("before\n")
    assert outcome.error is None
    assert await sandbox.value("x") == "1"
    assert await sandbox.value("await asyncio.sleep(0.01, 7)") == "7"


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess\nsubprocess.Popen(['sh', '-c', 'trap \"\" INT; sleep 30; sleep 30'], start_new_session=True).wait()",
        "import os\nwhile True:\n    if os.system('sh -c \"trap : INT; sleep 30; sleep 30\"') == 9: break",
        "import subprocess\nsubprocess.run('trap \"\" INT; sleep 30; sleep 30', shell=True)",
    ],
)
async def test_children_that_ignore_the_interrupt_cost_no_state(sandbox, code):
    await sandbox.run("x = 1")
    outcome = await sandbox.run(code, timeout_s=0.2)
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("timeout", 124, "kept")
    assert await sandbox.value("x") == "1"


async def test_a_background_task_that_blocks_the_loop_costs_no_state(sandbox):
    await sandbox.run("import asyncio\nasync def spin():\n    while True: pass")
    outcome = await sandbox.run("t = asyncio.create_task(spin())\nawait asyncio.sleep(30)", timeout_s=0.2)
    assert (outcome.status, outcome.kernel) == ("timeout", "kept")
    assert await sandbox.value("await asyncio.sleep(0.01, 7)") == "7"


async def test_an_interrupt_leaves_background_tasks_alone(sandbox):
    await sandbox.run(
        "import asyncio\nasync def tick():\n    while True: await asyncio.sleep(0)\nt = asyncio.create_task(tick())"
    )
    assert (await sandbox.run("await asyncio.sleep(30)", timeout_s=0.2)).kernel == "kept"
    assert await sandbox.value("t.done()") == "False"


async def test_children_of_earlier_cells_live_on(sandbox):
    await sandbox.run("import subprocess\np = subprocess.Popen(['sleep', '60'], start_new_session=True)")
    await asyncio.sleep(0.05)  # a clock tick, by which start times are told apart
    child = (
        "import subprocess\nsubprocess.Popen(['sh', '-c', 'trap \"\" INT; sleep 30'], start_new_session=True).wait()"
    )
    assert (await sandbox.run(child, timeout_s=0.2)).kernel == "kept"
    assert await sandbox.value("p.poll()") is None


async def test_children_that_outlive_an_interrupted_cell_are_ended(sandbox):
    code = "import subprocess, time\np = subprocess.Popen(['sh', '-c', 'trap \"\" INT; sleep 60; sleep 60'])\ntime.sleep(60)"
    assert (await sandbox.run(code, timeout_s=0.3, grace_s=0.5)).kernel == "new"
    assert await sandbox.value("q = subprocess.Popen(['sleep', '60']); p.wait()") == "-9"
    assert await sandbox.value("q.poll()") is None


STUBBORN = [
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "import signal; signal.signal(signal.SIGINT, lambda *_: None)\nwhile True: pass",
    "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "sum(range(10**12))",
    "import threading\nl = threading.Lock(); l.acquire()\nwhile True:\n    try: l.acquire()\n    except KeyboardInterrupt: pass",
]


@pytest.mark.alone
@pytest.mark.parametrize("code", STUBBORN)
async def test_a_stubborn_cell_costs_its_kernel_and_the_next_one_is_ready(sandbox, code):
    await sandbox.run("x = 1")
    began = time.monotonic()
    outcome = await sandbox.run(f"print('before')\n{code}", timeout_s=0.3, grace_s=0.6)
    in_time(time.monotonic() - began, 1.1)
    assert (outcome.status, outcome.exit_code, outcome.reason, outcome.kernel) == ("timeout", 124, "timeout", "lost")
    assert outcome.stdout == "before\n"
    after = await sandbox.run("'x' in globals()")
    assert (after.kernel, after.results[0].data["text/plain"]) == ("new", "False")
    assert not sandbox.told(KernelGone)


@pytest.mark.alone
async def test_without_grace_the_answer_comes_at_the_timeout(sandbox):
    await sandbox.run("1")
    began = time.monotonic()
    outcome = await sandbox.run("while True: pass", timeout_s=0.1, grace_s=0.0)
    assert outcome.status == "timeout"
    in_time(time.monotonic() - began, 0.5)
    assert (await sandbox.run("1")).kernel == ("new" if outcome.kernel == "lost" else "kept")


DEATHS = {
    "import os; os._exit(0)": ("exit", 0),
    "import os; os._exit(3)": ("exit", 3),
    "import os; os.abort()": ("crash", 134),
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": ("crash", 137),
    "import ctypes; ctypes.string_at(0)": ("crash", 139),
    "import os; os.execvp('true', ['true'])": ("exit", 0),
    "import os, signal; os.kill(os.getppid(), signal.SIGKILL)": None,
}


@pytest.mark.alone
@pytest.mark.parametrize("code", DEATHS)
async def test_death_is_told_within_a_second(sandbox, code):
    await sandbox.run("x = 1")
    began = time.monotonic()
    finished = await sandbox.execute(f"print('last words')\n{code}\nimport time; time.sleep(10)")
    assert isinstance(finished, Finished)
    in_time(time.monotonic() - began, 2.0)
    outcome = finished.outcome
    assert (outcome.status, outcome.kernel) == ("died", "lost")
    if DEATHS[code] is not None:
        assert (outcome.reason, outcome.exit_code) == DEATHS[code]
        assert outcome.stdout == "last words\n"
        assert not finished.sandbox_unsafe
    assert (await sandbox.run("1")).kernel == "new"


async def test_descendants_that_hide_die_with_the_kernel(sandbox):
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        open('pid', 'w').write(str(os.getpid())); time.sleep(60)\n    os._exit(0)\n"
        "while not os.path.exists('pid') or not open('pid').read(): time.sleep(0.01)\n"
        "os._exit(1)"
    )
    outcome = await sandbox.run(code)
    assert outcome.status == "died"
    pid = int((sandbox.workspace / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


FREEZE_THE_SUPERVISOR = "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)"


async def test_a_kernel_that_cannot_be_ended_whole_makes_the_sandbox_unsafe(sandbox):
    await sandbox.run(FREEZE_THE_SUPERVISOR)
    answer = await sandbox.kernels.stop(StopKernel("r", "python", "default", restart=True))
    assert answer == KernelStopped("r", existed=True, sandbox_unsafe=True)
    await sandbox.run(FREEZE_THE_SUPERVISOR + "\nimport threading; threading.Timer(0.1, os._exit, [5]).start()")
    async with asyncio.timeout(20):
        await sandbox.until_sent(KernelGone("python", "default", "killed", sandbox_unsafe=True))


async def test_death_between_executions_is_told_once(sandbox):
    await sandbox.run("import threading, os, time\nthreading.Timer(0.1, os._exit, [5]).start()")
    async with asyncio.timeout(20):
        await sandbox.until_told(KernelGone)
    assert sandbox.told(KernelGone) == [KernelGone("python", "default", "exit")]
    assert (await sandbox.run("1")).kernel == "new"
    assert len(sandbox.told(KernelGone)) == 1


async def test_cancel_interrupts_what_runs(sandbox):
    running = asyncio.get_running_loop().create_task(
        sandbox.run("print('on', flush=True)\nimport time; time.sleep(30)", id="me")
    )
    await sandbox.until_told(Progress)
    assert sandbox.kernels.cancel("me")
    outcome = await running
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("interrupted", 130, "new")
    assert outcome.error.name == "KeyboardInterrupt"
    assert "cellbox_kernel" not in outcome.stderr
    assert outcome.stdout == "on\n"
    assert not sandbox.kernels.cancel("me")


async def test_cancel_while_the_kernel_starts_runs_nothing(sandbox):
    running = asyncio.get_running_loop().create_task(sandbox.run("open('ran', 'w')", id="me"))
    await sandbox.until_told(Preparing)
    assert sandbox.kernels.cancel("me")
    outcome = await running
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("cancelled", 130, None)
    assert not (sandbox.workspace / "ran").exists()
    assert (await sandbox.run("1")).kernel == "new"


async def test_stop_while_the_kernel_starts_cancels_what_waits(sandbox):
    waiting = [asyncio.get_running_loop().create_task(sandbox.run("1")) for _ in range(2)]
    await sandbox.until_told(Preparing)
    assert (await sandbox.kernels.stop(StopKernel("r", "python", "default"))).existed
    assert [(await one).status for one in waiting] == ["cancelled", "cancelled"]
    assert (await sandbox.run("1")).kernel == "new"


@pytest.mark.parametrize("restart", [False, True])
async def test_stop_ends_what_runs_as_cancelled(sandbox, restart):
    running = asyncio.get_running_loop().create_task(sandbox.run("print('on', flush=True)\nwhile True: pass"))
    await sandbox.until_told(Progress)
    answer = await sandbox.kernels.stop(StopKernel("r", "python", "default", restart=restart))
    assert answer == KernelStopped("r", existed=True)
    outcome = await running
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("cancelled", 130, "lost")
    assert outcome.reason == ("restart" if restart else "deleted")
    assert (await sandbox.run("1")).kernel == "new"
    assert not sandbox.told(KernelGone)


async def test_stop_of_an_absent_kernel(sandbox):
    answer = await sandbox.kernels.stop(StopKernel("r", "python", "default"))
    assert answer == KernelStopped("r", existed=False)


async def test_stop_ends_an_idle_kernel_with_all_it_left_running(sandbox):
    await sandbox.run("import subprocess\np = subprocess.Popen(['sleep', '60'], start_new_session=True)")
    pid = int(await sandbox.value("p.pid"))
    os.kill(pid, 0)
    await sandbox.kernels.stop(StopKernel("r", "python", "default"))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert list(sandbox.root.glob("k*")) == []


async def test_a_cancelled_call_kills_the_kernel(sandbox):
    running = asyncio.get_running_loop().create_task(
        sandbox.run("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)")
    )
    await sandbox.until_told(Progress)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sandbox.run("1")).kernel == "new"


async def test_an_interrupt_after_the_end_does_nothing(sandbox):
    await sandbox.run("import os\nx = 1")
    pid = int(await sandbox.value("os.getpid()"))
    os.kill(pid, signal.SIGINT)
    assert await sandbox.value("x") == "1"


async def test_what_was_asked_is_not_held_once_it_is_answered(sandbox):
    for number in range(3):
        await sandbox.run(f"# {'x' * 100_000}", context=f"c{number}", env={"BIG": "y" * 10_000})
    for kernel in sandbox.kernels._kernels.values():
        assert [(running.message.code, running.message.env) for running in kernel._remembered.values()] == [("", {})]
    for number in range(3):
        await sandbox.kernels.stop(StopKernel("r", "python", f"c{number}"))
    assert (sandbox.kernels._locks, sandbox.kernels._here, sandbox.kernels._cancelled) == ({}, {}, set())
