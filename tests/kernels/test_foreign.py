"""Kernels that know nothing of us: any kernelspec that is installed in the sandbox.

``stock`` is ipykernel as it comes; ``xpython`` (C++) and ``deno`` (Rust) listen on tcp only. These two are in an environment of
their own, which ``make test`` makes.
"""

import json
import os
import socket

import pytest
from sandboxd import kernelspecs, ports
from sandboxd.protocol import Hello, KernelGone, OutputLimits, Refused, StopKernel, decode_from_sandbox, encode

from tests.kernels.conftest import PYTHON, REPOSITORY

SLOW_TO_START = 30.0
OTHERS = REPOSITORY / ".venv-foreign/bin"


def install(sandbox, name, argv, **more):
    folder = sandbox.root / "u/.local/share/jupyter/kernels" / name
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": name, "language": "x"} | more))


def installed(sandbox, name, argv, **more):
    """Install a kernel of ``OTHERS``; return what runs a cell in it."""
    program = OTHERS / argv[0]
    if not program.exists():
        pytest.skip(f"{name} is not installed: make test")
    install(sandbox, name, [str(program), *argv[1:]], **more)

    async def run(code, **options):
        return await sandbox.run(code, language=name, **{"timeout_s": SLOW_TO_START, **options})

    return run


@pytest.fixture
def xpython(sandbox):
    """Sends two messages for each print; SIGINT kills it."""
    return installed(sandbox, "xpython", ["python", "-m", "xpython_launcher", "-f", "{connection_file}"])


@pytest.fixture
def deno(sandbox):
    """A kernel in Rust, interrupted by a message."""
    argv = ["deno", "jupyter", "--kernel", "--conn", "{connection_file}"]
    return installed(sandbox, "deno", argv, interrupt_mode="message")


def value(outcome):
    assert outcome.status == "ok", outcome
    return next((entry.data["text/plain"] for entry in outcome.results if entry.type == "result"), None)


@pytest.fixture
def stock(sandbox):
    """ipykernel as it comes, which keeps its own streams and shows colours."""
    install(sandbox, "stock", [str(PYTHON), "-m", "ipykernel_launcher", "-f", "{connection_file}"])

    async def run(code, **options):
        return await sandbox.run(code, language="stock", timeout_s=SLOW_TO_START, **options)

    return run


async def test_everything_of_a_cell(stock):
    outcome = await stock("import sys\nprint('out')\nprint('err', file=sys.stderr)\ndisplay('d')\n5")
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("ok", 0, "new")
    assert (outcome.stdout, outcome.stderr[-4:]) == ("out\n", "err\n")
    assert [(entry.type, entry.data["text/plain"]) for entry in outcome.results] == [
        ("display", "'d'"),
        ("result", "5"),
    ]
    failed = await stock("1/0")
    assert (failed.status, failed.exit_code, failed.kernel) == ("error", 1, "kept")
    assert failed.error.name == "ZeroDivisionError"
    assert "\x1b" not in "".join(failed.error.traceback) + failed.stderr
    assert (await stock("len?")).stdout.count("Return the number of items") == 1
    interrupted = await stock("import os; os._exit(4)")
    assert (interrupted.status, interrupted.reason, interrupted.exit_code) == ("died", "exit", 4)


async def test_interrupt_and_stop(sandbox, stock):
    await stock("x = 1")
    outcome = await sandbox.run("import time; time.sleep(30)", language="stock", timeout_s=0.3)
    assert (outcome.status, outcome.kernel) == ("timeout", "kept")
    assert (await sandbox.kernels.stop(StopKernel("r", "stock", "default"))).existed
    assert list(sandbox.root.glob("k*")) == []


async def test_xeus_python(sandbox, xpython):
    first = await xpython("import sys\nx = 41\nprint('out')\nprint('err', file=sys.stderr)\nx + 1")
    assert (first.kernel, first.stdout, first.stderr, value(first)) == ("new", "out\n", "err\n", "42")
    failed = await xpython("1/0")
    assert (failed.status, failed.exit_code, failed.kernel) == ("error", 1, "kept")
    assert (failed.error.value, failed.error.traceback[-1][:17]) == ("division by zero", "ZeroDivisionError")
    shown = await xpython("from IPython.display import display, HTML\ndisplay(HTML('<b>'))")
    assert [(entry.type, entry.data["text/html"]) for entry in shown.results] == [("display", "<b>")]
    assert value(await sandbox.run("1", language="xpython", context="other")) == "1"
    assert value(await xpython("x")) == "41"
    died = await xpython("import os; print('last', flush=True); os._exit(3)")
    assert (died.status, died.reason, died.exit_code, died.kernel) == ("died", "exit", 3, "lost")
    assert value(await xpython("'x' in globals()")) == "False"


async def test_an_interrupt_that_a_kernel_does_not_survive_is_a_timeout_that_lost_the_state(sandbox, xpython):
    await xpython("x = 1")
    outcome = await xpython("while True: pass", timeout_s=0.3)
    assert (outcome.status, outcome.exit_code, outcome.reason, outcome.kernel) == ("timeout", 124, "timeout", "lost")
    assert value(await xpython("'x' in globals()")) == "False"
    assert not sandbox.told(KernelGone)


async def test_a_message_for_each_print_is_complete(xpython):
    outcome = await xpython("for i in range(400): print(i)", limits=OutputLimits(text=2_000_000, results=0, spill=0))
    assert outcome.stdout == "".join(f"{number}\n" for number in range(400))
    assert not outcome.truncated


async def test_deno(sandbox, deno):
    first = await deno("let x = 41; console.log('out'); console.error('err'); x + 1")
    assert (first.kernel, first.stdout, first.stderr, value(first)) == ("new", "out\n", "err\n", "42")
    failed = await deno("throw new TypeError('no')")
    assert (failed.status, failed.exit_code, failed.error.name, failed.error.value) == ("error", 1, "TypeError", "no")
    shown = await deno("await Deno.jupyter.display(Deno.jupyter.html`<b>`)")
    assert [(entry.type, entry.data["text/html"]) for entry in shown.results] == [("display", "<b>")]
    interrupted = await deno("while (true) {}", timeout_s=0.3, grace_s=4.0)
    assert (interrupted.status, interrupted.exit_code, interrupted.kernel) == ("timeout", 124, "kept")
    assert value(await deno("x")) == "41"
    # As it is, it hears no message now. How long a process of its size takes to go is another question.
    stubborn = (await sandbox.execute("await new Promise(() => {})", language="deno", timeout_s=0.2)).outcome
    assert (stubborn.status, stubborn.reason, stubborn.kernel) == ("timeout", "timeout", "lost")
    died = await deno("Deno.exit(3)")
    assert (died.status, died.reason, died.exit_code, died.kernel) == ("died", "exit", 3, "lost")
    assert value(await deno("typeof x")) == '"undefined"'


async def test_an_interrupt_by_message(sandbox):
    """No signal: a kernel that dies of one and hears the message lives on."""
    argv = [
        "sh",
        "-c",
        'trap "exit 9" INT; "$0" -m ipykernel_launcher -f "$1" & wait $!',
        str(PYTHON),
        "{connection_file}",
    ]
    install(sandbox, "asked", argv, interrupt_mode="message")
    await sandbox.run("x = 1", language="asked", timeout_s=SLOW_TO_START)
    outcome = await sandbox.run("while True: pass", language="asked", timeout_s=0.3, grace_s=4.0)
    assert (outcome.status, outcome.kernel) == ("timeout", "kept")
    assert value(await sandbox.run("x", language="asked")) == "1"


async def test_where_it_listens(sandbox, stock):
    """On the loopback, with a key that only its own private folder tells."""
    for context in ("default", "other"):
        await stock("1", context=context)
    files = sorted(sandbox.root.glob("k*/c.json"))
    assert [file.parent.stat().st_mode & 0o777 for file in files] == [0o700, 0o700]
    one, other = (json.loads(file.read_text()) for file in files)
    assert (one["transport"], one["ip"]) == ("tcp", "127.0.0.1")
    numbers = [place[name] for place in (one, other) for name in place if name.endswith("_port")]
    assert len(set(numbers)) == 10
    assert one["key"] != other["key"]
    assert min(len(one["key"]), len(other["key"])) == 32


@pytest.mark.parametrize("taken", [1, 2])
async def test_a_kernel_whose_port_somebody_took_is_started_with_others(stock, monkeypatch, taken):
    with socket.socket() as tenant:
        tenant.bind(("127.0.0.1", 0))
        tenant.listen()
        free, made = ports.free, []

        def choose(count):
            chosen = list(free(count))
            if len(made) < taken:
                chosen[3] = tenant.getsockname()[1]
            made.append(chosen)
            return tuple(chosen)

        monkeypatch.setattr(ports, "free", choose)
        assert value(await stock("40 + 2")) == "42"
    assert len(made) == taken + 1


async def test_a_kernel_that_never_gets_its_ports_is_refused(sandbox, stock, monkeypatch):
    with socket.socket() as tenant:
        tenant.bind(("127.0.0.1", 0))
        tenant.listen()
        monkeypatch.setattr(ports, "free", lambda count: (tenant.getsockname()[1],) * count)
        refused = await sandbox.execute("1", language="stock")
    assert isinstance(refused, Refused)
    assert (refused.code, refused.message) == ("kernel_start_failed", "the stock kernel found its ports taken")
    assert list(sandbox.root.glob("k*")) == []


@pytest.mark.parametrize("options", [{"env": {"A": "b"}}, {"cwd": "/"}, {"stdin": "x"}, {"allow_input": True}])
async def test_what_it_cannot_honour_is_refused_by_name(sandbox, options):
    install(sandbox, "other", ["true"])
    refused = await sandbox.execute("1", language="other", **options)
    assert isinstance(refused, Refused)
    assert refused.code == "unsupported_field"
    assert refused.message.startswith(next(iter(options)))


@pytest.mark.parametrize("argv", [["false"], ["/nonexistent"], ["sh", "-c", "kill -9 $$"]])
async def test_a_kernel_that_does_not_start_is_refused(sandbox, argv):
    install(sandbox, "broken", argv)
    refused = await sandbox.execute("1", language="broken")
    assert isinstance(refused, Refused)
    assert refused.code == "kernel_start_failed"
    assert "/" not in refused.message
    assert list(sandbox.root.glob("k*")) == []


@pytest.mark.parametrize("text", ["", "[]", '{"argv": []}', '{"argv": 5}', "{" * 10_000])
async def test_a_broken_kernelspec_is_none(sandbox, text):
    folder = sandbox.root / "u/.local/share/jupyter/kernels/bad"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(text)
    refused = await sandbox.execute("1", language="bad")
    assert isinstance(refused, Refused)
    assert refused.code == "unknown_language"


def fill_with_kernels(kernels):
    for number in range(100):
        (kernels / f"k{number}").mkdir()
        (kernels / f"k{number}/kernel.json").write_text('{"argv": ["true"]}')


def large_file(kernels):
    (kernels / "x").mkdir()
    with (kernels / "x/kernel.json").open("wb") as file:
        file.truncate(2**33)


def name_that_is_no_text(kernels):
    folder = os.fsencode(kernels) + b"/\xff\xfe"
    os.mkdir(folder)
    with open(folder + b"/kernel.json", "w") as file:
        file.write('{"argv": ["true"]}')


HOSTILE_FOLDERS = {
    "a pipe for a file": lambda kernels: ((kernels / "x").mkdir(), os.mkfifo(kernels / "x/kernel.json")),
    "a device for a file": lambda kernels: (
        (kernels / "x").mkdir(),
        (kernels / "x/kernel.json").symlink_to("/dev/zero"),
    ),
    "a folder for a file": lambda kernels: (kernels / "x/kernel.json").mkdir(parents=True),
    "a pipe for a folder": lambda kernels: os.mkfifo(kernels / "x"),
    "a large file": large_file,
    "a name that is no text": name_that_is_no_text,
    "a long name": lambda kernels: (kernels / ("x" * 255)).mkdir(),
    "too many": fill_with_kernels,
    "a link to itself": lambda kernels: (kernels.rmdir(), kernels.symlink_to(kernels)),
    "a pipe for all": lambda kernels: (kernels.rmdir(), os.mkfifo(kernels)),
}


@pytest.mark.parametrize("make", HOSTILE_FOLDERS.values(), ids=HOSTILE_FOLDERS)
async def test_no_folder_of_kernels_keeps_a_sandbox_from_starting(sandbox, make):
    """Read at each start, before the hello: what blocks or fails here would cost the scope every later sandbox."""
    kernels = sandbox.root / "u/.local/share/jupyter/kernels"
    kernels.mkdir(parents=True)
    make(kernels)
    found = kernelspecs.find(sandbox.config)
    assert found["python"].forked
    hello = Hello(version=1, kernels=sorted(found), stateless=[])
    assert decode_from_sandbox(encode(hello)[4:]) == hello


async def test_a_kernel_of_a_tenant_is_none_of_ours_whatever_it_says(sandbox):
    claims = {"marks": True, "forked": True, "child": True, "fields": ["env", "cwd", "stdin"]}
    install(sandbox, "liar", ["true"], metadata={"cellbox": claims}, interrupt_mode="message")
    install(sandbox, "python", ["true"], metadata={"cellbox": claims})
    found = kernelspecs.find(sandbox.config)
    assert (found["liar"].marks, found["liar"].forked, found["liar"].fields) == (False, False, frozenset())
    assert (found["liar"].child, found["bash"].child, found["python"].child) == (False, True, False)
    assert found["liar"].interrupted_by_message
    assert found["python"].folder == REPOSITORY / "kernels/python"


def test_which_of_ours_are_forked():
    assert [folder.name for folder in kernelspecs.forked(REPOSITORY / "kernels")] == ["bash", "node", "python"]
