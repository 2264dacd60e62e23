"""Whose output it is, and that all of it comes, in order."""

import asyncio

import pytest
from sandboxd.protocol import OutputLimits, Progress

EXACT = {
    # code: (stdout, stderr)
    'import os\nos.system("for i in 1 2 3; do echo $i; done"); print("A")': ("1\n2\n3\nA\n", ""),
    'import os\nprint("A"); os.system("echo B"); print("C"); os.write(1, b"D\\n"); print("E")': ("A\nB\nC\nD\nE\n", ""),
    "import subprocess, sys\nsubprocess.run(['echo', 'hi'], stdout=sys.stdout, stderr=sys.stderr); print(1)": (
        "hi\n1\n",
        "",
    ),
    "import subprocess, sys\nsubprocess.run('echo hi >&2', shell=True, stderr=sys.stderr)": ("", "hi\n"),
    "!echo out; echo err >&2; [ -t 1 ] || echo plain": ("out\nplain\n", "err\n"),
    "!read x; echo got: $x": ("got:\n", ""),
    "x = !echo a; echo b\nprint(x)": ("['a', 'b']\n", ""),
    "%%bash\necho hi; echo err >&2": ("hi\n", "err\n"),
    "print('\\ud800x')": ("\ufffdx\n", ""),
    "import sys\nsys.stdout.buffer.write(b'\\xff\\n'); sys.stderr.buffer.write(b'e')": ("\ufffd\n", "e"),
    "import os\nos.write(1, b'\\x1b]cellbox;')": ("\x1b]cellbox;", ""),
    "import ctypes\nctypes.CDLL(None).printf(b'from C\\n'); print('from Python')": ("from Python\nfrom C\n", ""),
    "import ctypes\nctypes.PyDLL(None).puts(b'x' * 100_000)": ("x" * 100_000 + "\n", ""),
    "import logging\nlogging.warning('careful')": ("", "WARNING:root:careful\n"),
    "import os\npid = os.fork()\nif pid == 0:\n    print('child'); os._exit(0)\nos.waitpid(pid, 0)\nprint('parent')": (
        "child\nparent\n",
        "",
    ),
    "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as s: print('in')\nprint(s.getvalue())": (
        "in\n\n",
        "",
    ),
    "import sys\nsys.stdout.close(); print('on')": ("on\n", ""),
    "import sys\nsys.__stdout__.write('x')": ("x", ""),
    "import os\nos.close(1); os.close(2); print('on')": ("on\n", ""),
    "import sys\nprint(sys.stdout.isatty(), sys.stdout.fileno(), sys.stdout.encoding, sys.stderr.fileno())": (
        "False 1 utf-8 2\n",
        "",
    ),
    "import sys, os\nsys.stdout = os.fdopen(os.dup(1), 'w'); print('own')": ("own\n", ""),
    "print('é' * 5000)": ("é" * 5000 + "\n", ""),
}


@pytest.mark.parametrize("code", EXACT)
async def test_output_is_exact(sandbox, code):
    limits = OutputLimits(text=200_000, results=0, spill=0)
    outcome = await sandbox.run(code if code.startswith("%%") else code + "\nNone", limits=limits)
    assert outcome.status == "ok", outcome.error
    assert (outcome.stdout, outcome.stderr) == EXACT[code]


BROKEN = [
    "import sys\nsys.stdout.close()",
    "import sys\nsys.stdout = open('/dev/null', 'w'); sys.stdout.close()",
    "import sys\nsys.stdout = sys.stderr = None",
    "import sys\nsys.stdout = None\n5",
    "import sys\nsys.stdout = None\ndisplay(5)",
    "import sys\nsys.stdout = None\n1/0",
    "import sys\nsys.stdout = 5",
    "import sys\nsys.stdout = sys.stderr = None\nsys.exit(1)",
    "import sys\nsys.stdin.close()",
    "import sys\nsys.stdin = None",
    "import os\nos.close(0)",
    "import os\nos.close(1); os.close(2)",
    "import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
    "import os\nos.set_blocking(1, False); os.write(1, b'x')",
    "import builtins\nprint = builtins.input = None",
    "import sys\nsys.displayhook = sys.excepthook = None",
    "del __builtins__.print",
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)",
    "import asyncio\nasyncio.get_event_loop().call_soon(exit)",
    "import asyncio\nasync def f(): raise SystemExit(3)\nt = asyncio.get_running_loop().create_task(f())",
    "import threading\nthreading.Thread(target=exit).start()",
    "import gc\nfor o in gc.get_objects(): pass\ndel o\ngc.collect()",
    "get_ipython().ast_transformers.append(5)",
    "import sys\nsys.path = None",
    "import os, site\nos.path.isdir = site.getusersitepackages = None",
    "import warnings, sys\nwarnings.simplefilter('error')",
    "import os\nos.chdir('/proc/self/task')",
    "import os, tempfile\nd = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
    "In = Out = _ = exit = quit = get_ipython = display = None",
]


@pytest.mark.parametrize("code", BROKEN)
async def test_what_a_cell_breaks_is_put_right_for_the_next(sandbox, code):
    outcome = await sandbox.run(code, timeout_s=5.0)
    assert outcome.kernel == "new"
    assert outcome.status in ("ok", "error")
    after = await sandbox.run(
        "__builtins__.__dict__.get('print', lambda *_: 0)\nimport sys\nsys.stdout.write('on\\n');"
    )
    assert (after.kernel, after.stdout) == ("kept", "on\n")
    assert await sandbox.value("sys.stdin.read()") == "''"


async def test_a_kernel_that_a_cell_broke_says_so_at_once(sandbox):
    await sandbox.run("from ipykernel.ipkernel import IPythonKernel\ndel IPythonKernel._forward_input")
    outcome = await sandbox.run("print('on')", timeout_s=5.0)
    assert (outcome.status, outcome.kernel, outcome.error.name) == ("error", "kept", "AttributeError")
    assert "in the kernel" in outcome.stderr


async def test_a_child_that_makes_the_pipe_non_blocking_costs_no_output(sandbox):
    outcome = await sandbox.run(
        "import os\nos.set_blocking(1, False)\nfor i in range(3000): print('x' * 99)",
        limits=OutputLimits(text=10**6, results=0, spill=0),
    )
    assert outcome.status == "ok"
    assert outcome.stdout_bytes == 300_000


async def test_many_small_prints_all_come(sandbox):
    outcome = await sandbox.run(
        "import sys\nfor i in range(20_000): print(i, flush=True)",
        limits=OutputLimits(text=10**6, results=0, spill=0),
    )
    assert outcome.stdout == "".join(f"{i}\n" for i in range(20_000))


async def test_a_flood_is_cut_and_counted(sandbox):
    outcome = await sandbox.run("print('x' * 10_000_000)")
    assert outcome.stdout_bytes == 10_000_001
    assert len(outcome.stdout) <= 100_000
    assert outcome.truncated
    assert "bytes left out" in outcome.stdout


async def test_output_on_the_way_is_told(sandbox):
    waiting = asyncio.get_running_loop().create_task(
        sandbox.run("print('early')\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('late')")
    )
    async with asyncio.timeout(20):
        await sandbox.until_told(Progress)
    assert not waiting.done()
    assert sandbox.told(Progress)[0].text == "early\n"
    (sandbox.workspace / "go").touch()
    assert (await waiting).stdout == "early\nlate\n"


async def test_late_output_of_a_thread_is_not_of_the_next_cell(sandbox):
    await sandbox.run(
        "import threading, time\ngo = threading.Event()\n"
        "def late():\n    go.wait(); print('from the thread')\n"
        "t = threading.Thread(target=late); t.start()"
    )
    outcome = await sandbox.run("print('a'); go.set(); t.join(); print('b')")
    assert outcome.stdout == "a\nb\n"


async def test_late_output_of_a_task_is_not_of_the_next_cell(sandbox):
    await sandbox.run(
        "import asyncio\ngo = asyncio.Event()\n"
        "async def late():\n    await go.wait(); print('from the task'); display('from the task')\n"
        "t = asyncio.create_task(late())"
    )
    outcome = await sandbox.run("print('a'); go.set(); await t; print('b')")
    assert (outcome.stdout, outcome.results) == ("a\nb\n", [])


async def test_late_displays_of_a_thread_are_not_of_the_next_cell(sandbox):
    await sandbox.run(
        "import threading\ngo = threading.Event()\n"
        "def late():\n    go.wait(); display('late')\n"
        "t = threading.Thread(target=late); t.start()"
    )
    outcome = await sandbox.run("go.set(); t.join(); display('now')")
    assert [entry.data["text/plain"] for entry in outcome.results] == ["'now'"]


async def test_a_process_pool_used_again_is_of_the_running_cell(sandbox):
    start = "from concurrent.futures import ProcessPoolExecutor\npool = ProcessPoolExecutor(1)\n"
    assert (await sandbox.run(start + "pool.submit(print, 'one').result()")).stdout == "one\n"
    assert (await sandbox.run("pool.submit(print, 'two').result()\npool.shutdown()")).stdout == "two\n"


async def test_a_thread_pool_used_again_is_of_the_cell_that_hands_in_the_call(sandbox):
    start = "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\n"
    assert (await sandbox.run(start + "pool.submit(print, 'one').result()")).stdout == "one\n"
    assert (await sandbox.run("pool.submit(print, 'two').result()")).stdout == "two\n"


async def test_an_error_in_a_thread_is_on_stderr(sandbox):
    outcome = await sandbox.run("import threading\nt = threading.Thread(target=lambda: 1/0); t.start(); t.join()")
    assert outcome.status == "ok"
    assert "ZeroDivisionError" in outcome.stderr


async def test_forged_marks_end_nothing_but_their_own(sandbox):
    code = (
        "import gc, os\n"
        "from cellbox_kernel import streams\n"
        "ours = next(o for o in gc.get_objects() if isinstance(o, streams.Streams))\n"
        "for number in (1, 2, 99): ours.end(number); ours.begin(number)\n"
        "os.write(1, ours._prefix + b't;1;1;9999\\a' + ours._prefix)\n"
        "print('x')"
    )
    outcome = await sandbox.run(code, timeout_s=5.0)
    assert outcome.kernel == "new"
    assert (await sandbox.run("print('on')")).stdout.endswith("on\n")


@pytest.mark.alone
async def test_a_backlog_of_large_displays_is_heard_to_its_end(sandbox):
    """The reply overtakes them: what is read then is older than it."""
    code = "d = {f'x/{n}': 'é' * 120_000 for n in range(19)}\nfor _ in range(100): display(d, raw=True)"
    outcome = await sandbox.run(code, limits=OutputLimits(text=0, results=0, spill=0))
    assert (outcome.status, len(outcome.results)) == ("ok", 1900)
