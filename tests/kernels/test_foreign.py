"""Kernels that know nothing of us: any kernelspec that is installed in the sandbox."""

import json
import os

import pytest
from sandboxd import kernelspecs
from sandboxd.protocol import Hello, Refused, StopKernel, decode_from_sandbox, encode

from tests.kernels.conftest import PYTHON

SLOW_TO_START = 30.0


def install(sandbox, name, argv):
    folder = sandbox.root / "u/.local/share/jupyter/kernels" / name
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": name, "language": "x"}))


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


@pytest.mark.parametrize("options", [{"env": {"A": "b"}}, {"cwd": "/"}, {"stdin": "x"}])
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
