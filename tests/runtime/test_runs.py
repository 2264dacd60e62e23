"""Stateless runs from outside: answers, clocks, input, environment, languages, output."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxd.protocol import Cancel, OutputLimits, Progress, Refused

from tests.attempts import in_time
from tests.runtime.box import PYTHON, ROOT, VENV, Box, box
from tests.waiting import until


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with box(tmp_path_factory.mktemp("box")) as opened:
        yield opened


def test_hello_names_the_interpreters(sandbox: Box) -> None:
    assert set(sandbox.hello.stateless) == {"python", "node", "bash"}
    assert "python" in sandbox.hello.kernels


@pytest.mark.parametrize(
    ("language", "code", "stdout"),
    [
        ("python", "import sys\nprint(sys.stdin.read(), end='')", "one\ntwo\n"),
        ("node", "process.stdout.write(require('fs').readFileSync(0, 'utf8'))", "one\ntwo\n"),
        ("bash", 'read x; echo "$x"; cat', "one\ntwo\n"),
    ],
)
@pytest.mark.parametrize("given", ["one\ntwo\n", None])
def test_stdin_is_the_given_text_or_at_its_end(
    sandbox: Box, language: str, code: str, stdout: str, given: str | None
) -> None:
    outcome = sandbox.run(code, language, stdin=given).outcome
    assert outcome.stdout == (stdout if given else "\n" if language == "bash" else "")
    assert (outcome.status, outcome.stderr) == ("ok", "")


@pytest.mark.parametrize(
    ("language", "code", "exit_code"),
    [
        ("bash", "exit 3", 3),
        ("bash", "false", 1),
        ("bash", "kill -9 $$", 137),
        ("bash", "nothing_like_this", 127),
        ("node", "process.exit(4)", 4),
        ("node", "throw new Error('x')", 1),
        ("node", "process.kill(process.pid, 'SIGTERM')", 143),
        ("python", "import os; os.kill(os.getpid(), 11)", 139),
    ],
)
def test_exit_codes_are_the_process_s(sandbox: Box, language: str, code: str, exit_code: int) -> None:
    outcome = sandbox.run(code, language).outcome
    assert (outcome.exit_code, outcome.status, outcome.reason) == (exit_code, "error", None)


@pytest.mark.parametrize("language", ["python", "node", "bash"])
@pytest.mark.parametrize("given", [None, "text"])
def test_code_and_input_stand_in_no_command_line(sandbox: Box, language: str, given: str | None) -> None:
    secret = "mark_of_the_code"
    show = {
        "python": "print(open('/proc/self/cmdline').read())",
        "node": "console.log(require('fs').readFileSync('/proc/self/cmdline', 'utf8'))",
        "bash": "cat /proc/$$/cmdline",
    }
    comment = "//" if language == "node" else "#"
    outcome = sandbox.run(f"{show[language]} {comment} {secret}", language, stdin=given).outcome
    assert outcome.status == "ok", outcome.stderr
    assert secret not in outcome.stdout


@pytest.mark.parametrize("language", ["python", "node", "bash"])
def test_a_megabyte_of_code_runs(sandbox: Box, language: str) -> None:
    comment = ("//" if language == "node" else "#") + "x" * 98 + "\n"
    said = {"python": "print(5)", "node": "console.log(5)", "bash": "echo 5"}[language]
    assert sandbox.run(comment * 10_000 + said, language).outcome.stdout == "5\n"


@pytest.mark.parametrize("given", [None, "text"])
def test_node_resolves_from_the_working_directory(sandbox: Box, given: str | None) -> None:
    (sandbox.workspace / "local.js").write_text("module.exports = 6")
    (sandbox.workspace / "local.mjs").write_text("export default 7")
    common = "console.log(require('./local'), typeof module, typeof __filename)"
    assert sandbox.run(common, "node", stdin=given).outcome.stdout == "6 object string\n"
    imported = "import x from './local.mjs'\nconsole.log(x, await Promise.resolve(8), typeof require)"
    outcome = sandbox.run(imported, "node", stdin=given).outcome
    assert (outcome.stdout, outcome.stderr) == ("7 8 undefined\n", "")


@pytest.mark.parametrize("given", [None, "text"])
@pytest.mark.parametrize("end", ["process.exit(0)", "process.abort()", "process.kill(process.pid, 'SIGKILL')"])
def test_node_loses_no_output_that_was_written_before_its_end(sandbox: Box, end: str, given: str | None) -> None:
    limits = OutputLimits(text=4 * 2**20, results=0, spill=0)
    code = f"console.error('x'.repeat(1e6)); for (let i = 0; i < 20000; i++) console.log('x'.repeat(99)); {end}"
    outcome = sandbox.run(code, "node", stdin=given, limits=limits).outcome
    assert outcome.stdout == f"{'x' * 99}\n" * 20_000
    assert outcome.stderr.startswith("x" * 10**6)


def test_node_output_is_in_order_with_that_of_children(sandbox: Box) -> None:
    code = """
        const { execFileSync, spawnSync } = require('child_process'), fs = require('fs')
        console.log('a'.repeat(300000)); spawnSync('echo', ['b'], {stdio: 'inherit'}); console.log('c')
        fs.writeSync(1, 'd\\n'); process.stdout.write('e\\n')
        execFileSync(process.execPath, ['-e', 'console.log("f")'], {stdio: 'inherit'}); console.log('g')
    """
    assert sandbox.run(code, "node").outcome.stdout == "a" * 300_000 + "\nb\nc\nd\ne\nf\ng\n"


@pytest.mark.parametrize("given", [None, "text"])
def test_node_programs_see_nothing_of_ours(sandbox: Box, given: str | None) -> None:
    """A worker preloads what its parent did."""
    code = """
        const look = `[process.execArgv, Object.keys(require.cache), process.argv.slice(1), module.children]`
        const show = (what) => console.log(JSON.stringify(what))
        show(eval(look))
        for (const name of ['stdin', 'stdout', 'stderr']) {
          const { get, set, ...rest } = Object.getOwnPropertyDescriptor(process, name)
          show([rest, typeof set, get.toString().includes('defineProperty')])
        }
        const { Worker } = require('worker_threads')
        new Worker(`require('worker_threads').parentPort.postMessage(${look})`, { eval: true }).on('message', show)
    """
    outcome = sandbox.run(code, "node", stdin=given).outcome
    stream = '[{"enumerable":true,"configurable":true},"undefined",false]\n'
    assert (outcome.stderr, outcome.stdout) == ("", f'[[],[],["-"],[]]\n{stream * 3}[[],[],["[worker eval]"],[]]\n')


def test_node_errors_name_the_line(sandbox: Box) -> None:
    stderr = sandbox.run("\n\nnull.x", "node").outcome.stderr
    assert "[stdin]:3" in stderr
    assert "[stdin]:3" in sandbox.run("\n\nnull.x", "node", stdin="x").outcome.stderr


@pytest.mark.parametrize("given", [None, "text"])
@pytest.mark.parametrize(("language", "own"), [("python", set()), ("node", set()), ("bash", {"3", "255"})])
def test_programs_have_no_descriptor_of_ours(sandbox: Box, language: str, own: set[str], given: str | None) -> None:
    """Bash keeps its script open; nobody else gets more than the three."""
    code = {
        "python": "import os\nfor n in os.listdir('/proc/self/fd'):\n"
        " try: print(n, '->', os.readlink(f'/proc/self/fd/{n}'))\n except OSError: pass",
        "node": "const c = require('child_process')\nc.spawnSync('ls', ['-l', '/proc/self/fd'], {stdio: 'inherit'})",
        "bash": "ls -l /proc/self/fd /proc/$$/fd",
    }[language]
    lines = sandbox.run(code, language, stdin=given).outcome.stdout.splitlines()
    links = [line.partition(" -> ") for line in lines if " -> " in line]
    shown = {name.split()[-1]: target for name, _, target in links if "/proc/" not in target}
    assert set(shown) == {"0", "1", "2"} | own
    assert "socket" not in str(shown)


@pytest.mark.parametrize("language", ["python", "node", "bash"])
def test_env_is_added(sandbox: Box, language: str) -> None:
    code = {
        "python": "import os; print(os.environ['A'], os.environ['HOME'], os.getenv('TZ'))",
        "node": "console.log(process.env.A, process.env.HOME, process.env.TZ)",
        "bash": "echo $A $HOME $TZ",
    }[language]
    outcome = sandbox.run(code, language, env={"A": "ä b", "TZ": "Asia/Tokyo"}).outcome
    assert outcome.stdout == f"ä b {sandbox.user} Asia/Tokyo\n"
    assert sandbox.run("import os; print('A' in os.environ, os.getenv('TZ'))").outcome.stdout == "False UTC\n"


def test_a_time_zone_of_one_run_acts(sandbox: Box) -> None:
    code = "import time; print(time.localtime(0).tm_hour, time.tzname)"
    assert sandbox.run(code, env={"TZ": "JST-9"}).outcome.stdout == "9 ('JST', 'JST')\n"
    assert sandbox.run(code).outcome.stdout == "0 ('UTC', 'UTC')\n"


@pytest.mark.parametrize("given", [None, "text"])
@pytest.mark.parametrize(
    ("env", "code", "stdout"),
    [
        ({"PYTHONOPTIMIZE": "1"}, "assert False\nprint('on')", "on\n"),
        ({"PYTHONPATH": "/tmp/lib"}, "import sys; print(sys.path[:2])", "['', '/tmp/lib']\n"),
        ({"PYTHONHASHSEED": "0"}, "import sys; print(sys.flags.hash_randomization)", "0\n"),
        ({"PYTHONIOENCODING": "latin-1"}, "import sys; print(sys.stdout.encoding)", "iso8859-1\n"),
        ({"PYTHONUTF8": "1"}, "import sys; print(sys.argv, __name__, sys.flags.utf8_mode)", "['-'] __main__ 1\n"),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, "import sys; print(sys.stdin.read())", None),
        (
            {"PYTHONDONTWRITEBYTECODE": "1"},
            "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
            "True\n",
        ),
        (
            {"PYTHONDONTWRITEBYTECODE": "1"},
            "print([n for n in globals() if not n.startswith('__')])",
            "[]\n",
        ),
    ],
)
def test_variables_that_only_a_start_reads_act(
    sandbox: Box, env: dict[str, str], code: str, stdout: str | None, given: str | None
) -> None:
    outcome = sandbox.run(code, env=env, stdin=given).outcome
    assert outcome.stderr == ""
    assert outcome.stdout == (f"{given or ''}\n" if stdout is None else stdout)


def test_at_most_one_frame_of_ours_is_below_the_program(sandbox: Box) -> None:
    code = "import sys\nframe, depth = sys._getframe(), 0\nwhile frame: frame, depth = frame.f_back, depth + 1\nprint(depth)"
    assert int(sandbox.run(code).outcome.stdout) <= 2


def test_a_declared_encoding_acts(sandbox: Box) -> None:
    assert sandbox.run("# -*- coding: latin-1 -*-\nprint(len('ä'))").outcome.stdout == "2\n"


def test_cwd_is_relative_to_the_workspace(sandbox: Box) -> None:
    (sandbox.workspace / "sub").mkdir()
    assert sandbox.run("import os; print(os.getcwd())", cwd="sub").outcome.stdout == f"{sandbox.workspace}/sub\n"
    assert sandbox.run("pwd", "bash", cwd="/usr").outcome.stdout == "/usr\n"


@pytest.mark.parametrize("cwd", ["nowhere", "/nowhere", "file", "a\0b"])
def test_a_missing_cwd_is_refused(sandbox: Box, cwd: str) -> None:
    (sandbox.workspace / "file").touch()
    answer = sandbox.end(sandbox.begin("1", cwd=cwd))
    assert isinstance(answer, Refused)
    assert answer.code == "cwd_not_found"


def test_an_unknown_language_is_refused(sandbox: Box) -> None:
    answer = sandbox.end(sandbox.begin("1", "perl"))
    assert isinstance(answer, Refused)
    assert answer.code == "unknown_language"


@pytest.mark.alone
def test_runs_go_side_by_side(sandbox: Box) -> None:
    began = time.monotonic()
    waiting = [sandbox.begin(f"import time; time.sleep(0.7); print({number})") for number in range(6)]
    for number, execution in enumerate(waiting):
        assert sandbox.end(execution).outcome.stdout == f"{number}\n"
    in_time(time.monotonic() - began, 3)


def test_killing_one_run_leaves_the_others(sandbox: Box) -> None:
    killed = sandbox.begin("import time; print('half', flush=True); open('printed', 'w'); time.sleep(60)")
    other = sandbox.begin("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('whole')")
    until((sandbox.workspace / "printed").exists)
    sandbox.send(Cancel(id=killed))
    answer = sandbox.end(killed)
    assert (answer.outcome.status, answer.outcome.exit_code, answer.sandbox_unsafe) == ("interrupted", 130, False)
    assert answer.outcome.stdout == "half\n"
    (sandbox.workspace / "go").touch()
    assert sandbox.end(other).outcome.stdout == "whole\n"


def test_a_run_cancelled_at_once_ends(sandbox: Box) -> None:
    execution = sandbox.begin("import time; time.sleep(60)")
    sandbox.send(Cancel(id=execution))
    assert sandbox.end(execution).outcome.status == "interrupted"


@pytest.mark.alone
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "print('so far', flush=True)\nwhile True: pass"),
        (
            "python",
            "print('so far', flush=True)\nimport time\nwhile True:\n try: time.sleep(9)\n except BaseException: pass",
        ),
        (
            "python",
            "import signal, time\n[signal.signal(s, 1) for s in (2, 15)]\nprint('so far', flush=True)\ntime.sleep(60)",
        ),
        ("python", "print('so far', flush=True)\nimport os\nos.kill(os.getpid(), 19)"),
        ("node", "console.log('so far'); while (true) {}"),
        ("bash", "echo so far; trap '' INT TERM; sleep 60"),
        ("bash", "echo so far; sleep 60 & sleep 60"),
    ],
)
def test_a_timeout_ends_it_with_its_output(sandbox: Box, language: str, code: str) -> None:
    began = time.monotonic()
    answer = sandbox.end(sandbox.begin(code, language, timeout_s=0.8))
    in_time(time.monotonic() - began, 2.1)
    assert (answer.outcome.status, answer.outcome.exit_code, answer.sandbox_unsafe) == ("timeout", 137, False)
    assert answer.outcome.stdout == "so far\n"


def test_progress_is_told_of_what_takes_long(sandbox: Box) -> None:
    execution = sandbox.begin("import time\nfor i in range(8): print(i, flush=True); time.sleep(0.1)")
    stdout = sandbox.end(execution).outcome.stdout
    told = "".join(m.text for m in sandbox.others if isinstance(m, Progress) and m.id == execution)
    assert told
    assert stdout.startswith(told)


@pytest.mark.alone
def test_ten_megabytes_arrive(sandbox: Box) -> None:
    limits = OutputLimits(text=20 * 2**20, results=0, spill=0)
    for language, code in {
        "python": "import sys\nfor _ in range(100_000): print('x' * 99)",
        "node": "for (let i = 0; i < 100000; i++) console.log('x'.repeat(99))",
        "bash": "head -c 10000000 /dev/zero | tr '\\0' x",
    }.items():
        began = time.monotonic()
        outcome = sandbox.run(code, language, limits=limits).outcome
        assert outcome.stdout_bytes == len(outcome.stdout) == 10_000_000
        assert not outcome.truncated
        in_time(time.monotonic() - began, 2)


@pytest.mark.alone
def test_a_flood_of_large_displays_holds_nobody_up(sandbox: Box) -> None:
    code = "import time\nd = {f'x/{n}': 'é' * 120_000 for n in range(19)}\nwhile True: display(d, raw=True); time.sleep(0.01)"
    flood = sandbox.begin(code, stateful=True, timeout_s=2.0, grace_s=2.0)
    time.sleep(1.0)
    began = time.monotonic()
    assert sandbox.run("print(1)").outcome.stdout == "1\n"
    in_time(time.monotonic() - began, 0.5)
    outcome = sandbox.end(flood).outcome
    assert (outcome.status, outcome.run_ms < 4000) == ("timeout", True)


def test_what_is_too_much_is_cut(sandbox: Box) -> None:
    outcome = sandbox.run("print('x' * 5000)", limits=OutputLimits(text=1000, results=0, spill=0)).outcome
    assert outcome.truncated
    assert len(outcome.stdout) <= 1000
    assert outcome.stdout_bytes == 5001


def test_bad_bytes_are_replaced(sandbox: Box) -> None:
    assert sandbox.run(r"printf 'a\xffb\xc3'", "bash").outcome.stdout == "a\ufffdb\ufffd"


def test_runs_differ_in_what_should_be_random(sandbox: Box) -> None:
    code = "import random, secrets, uuid, tempfile, os\nprint(random.random(), secrets.token_hex(4), uuid.uuid4())"
    code += "\nprint(tempfile.mktemp(), os.getpid())"
    seen = [line for _ in range(3) for line in sandbox.run(code).outcome.stdout.splitlines()]
    assert len(set(seen)) == len(seen)


def test_the_user_s_package_wins_over_what_was_loaded(tmp_path: Path) -> None:
    with box(tmp_path) as sandbox:
        site = Path(sandbox.run("import site; print(site.USER_SITE)").outcome.stdout.strip())
        site.mkdir(parents=True)
        (site / "tornado.py").write_text("version = 'mine'")
        (site / "only_here.py").write_text("")
        code = "import sys, tornado, only_here, numpy, json\nprint(tornado.version, sys.path)"
        forked = sandbox.run(code).outcome
        assert forked.stderr == ""
        assert forked.stdout.startswith("mine ")
        path = eval(forked.stdout.removeprefix("mine "))
        assert path.index(str(site)) > path.index(next(p for p in path if p.endswith("lib-dynload")))
        assert path.index(str(site)) < path.index(next(p for p in path if p.startswith(str(VENV))))
        custom = f"{ROOT}/runtime/sandbox-site"
        fresh = subprocess.run(
            [PYTHON, "-c", "import sys; print(sys.path)"],
            env={**sandbox.environment, "PYTHONPATH": custom},
            capture_output=True,
            text=True,
            check=True,
        )
        assert [entry for entry in eval(fresh.stdout) if entry != custom] == path


def test_a_thousandth_run_is_as_the_first(sandbox: Box) -> None:
    code = "import sys, os, gc\nprint(len(sys.modules), len(os.listdir('/proc/self/fd')), len(os.environ))"
    first = sandbox.run(code).outcome.stdout
    for _ in range(50):
        sandbox.run("import json, decimal, csv; x = [0] * 1000")
    assert sandbox.run(code).outcome.stdout == first
    daemon = next(pid for pid in sandbox.processes() if _parent(pid) == sandbox.boot.pid)
    descriptors = len(os.listdir(f"/proc/{daemon}/fd"))
    for _ in range(20):
        sandbox.run("pass")
    assert len(os.listdir(f"/proc/{daemon}/fd")) <= descriptors


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
