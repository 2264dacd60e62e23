"""What a cell's state, values, displays and errors are."""

import json

import pytest
from sandboxd.protocol import OutputLimits, Preparing, Refused, Started

from tests.attempts import in_time


async def test_state_is_kept_and_the_last_expression_is_the_value(sandbox):
    first = await sandbox.run("x = 41\nprint('out')\nx + 1")
    assert (first.status, first.exit_code, first.kernel, first.stdout) == ("ok", 0, "new", "out\n")
    assert [entry.data for entry in first.results] == [{"text/plain": "42"}]
    second = await sandbox.run("x")
    assert (second.kernel, second.execution_count) == ("kept", 2)
    assert second.results[0].data == {"text/plain": "41"}
    assert len(sandbox.told(Preparing)) == len(sandbox.told(Started)) == 1


async def test_contexts_are_apart(sandbox):
    await sandbox.run("x = 1")
    outcome = await sandbox.run("x", context="other")
    assert outcome.error.name == "NameError"
    assert outcome.kernel == "new"


@pytest.mark.parametrize("code", ["", "   \n", "# nothing", "x = 1;"])
async def test_code_without_a_value_does_nothing(sandbox, code):
    outcome = await sandbox.run(code)
    assert (outcome.status, outcome.results, outcome.stdout, outcome.stderr) == ("ok", [], "", "")


async def test_top_level_await_and_loops_of_the_cells_own(sandbox):
    await sandbox.run("import asyncio\nasync def main(): await asyncio.sleep(0.01); return 5")
    assert await sandbox.value("await main()") == "5"
    assert await sandbox.value("asyncio.run(main())") == "5"
    assert await sandbox.value("asyncio.get_event_loop().run_until_complete(main())") == "5"
    assert await sandbox.value("asyncio.new_event_loop().run_until_complete(main())") == "5"
    assert await sandbox.value("await asyncio.gather(main(), main())") == "[5, 5]"
    assert await sandbox.value("sum(await asyncio.gather(main(), main())) + asyncio.run(main())") == "15"


async def test_an_error_is_in_error_and_at_the_end_of_stderr(sandbox):
    outcome = await sandbox.run("import sys\nprint('before', file=sys.stderr, end='')\ndef f(): 1/0\nf()")
    assert (outcome.status, outcome.exit_code) == ("error", 1)
    assert (outcome.error.name, outcome.error.value) == ("ZeroDivisionError", "division by zero")
    assert outcome.error.traceback[0] == "Traceback (most recent call last):"
    assert '  File "<cell 1>", line 4, in <module>' in outcome.error.traceback
    assert "    def f(): 1/0" in outcome.error.traceback
    assert outcome.stderr == "before\n" + "\n".join(outcome.error.traceback) + "\n"
    assert "\x1b" not in outcome.stderr


UNASKED = "{} needs somebody to answer it: nobody was asked to, since the execution is without allow_input"
ERRORS = {
    "raise ExceptionGroup('eg', [ValueError(1)])": ("ExceptionGroup", "eg (1 sub-exception)"),
    "raise ValueError('\\ud800')": ("ValueError", "\ufffd"),
    "class R:\n    def __repr__(self): raise RuntimeError('broken')\nR()": ("RuntimeError", "broken"),
    "class R:\n    def __repr__(self): raise RuntimeError('broken')\ndisplay(R())": ("RuntimeError", "broken"),
    "class E(Exception):\n    def __str__(self): 1/0\nraise E": ("E", "<no text: its __str__ failed>"),
    "raise KeyboardInterrupt": ("KeyboardInterrupt", ""),
    "raise BaseException('b')": ("BaseException", "b"),
    "import asyncio\nraise asyncio.CancelledError": ("CancelledError", ""),
    "raise GeneratorExit": ("GeneratorExit", ""),
    "x = (": ("SyntaxError", "'(' was never closed (<cell 1>, line 1)"),
    "if 1:": ("IndentationError", "expected an indented block after 'if' statement on line 1 (<cell 1>, line 1)"),
    "return 5": ("SyntaxError", "'return' outside function (<cell 1>, line 1)"),
    "  x = 1\n y": ("IndentationError", "unexpected indent (<cell 1>, line 1)"),
    "%nothing": ("UsageError", "Line magic function `%nothing` not found."),
    "input()": ("StdinNotImplementedError", UNASKED.format("input()")),
    "import getpass; getpass.getpass()": ("StdinNotImplementedError", UNASKED.format("getpass()")),
    "breakpoint()": ("StdinNotImplementedError", None),
    "import pdb; pdb.set_trace()\nx = 1": ("StdinNotImplementedError", None),
    "f'{1/0}'": ("ZeroDivisionError", "division by zero"),
    "def r(n): return r(n + 1)\nr(0)": ("RecursionError", None),
    "def a(n): return b(n)\ndef b(n): return a(n)\na(0)": ("RecursionError", None),
    "raise ValueError('x' * 10**7)": ("ValueError", None),
    "await __import__('asyncio').wait_for(__import__('asyncio').sleep(5), 0.01)": ("TimeoutError", ""),
}


@pytest.mark.alone
@pytest.mark.parametrize("code", ERRORS)
async def test_every_error_is_told_once_and_the_kernel_goes_on(sandbox, code):
    name, value = ERRORS[code]
    outcome = await sandbox.run(code)
    assert (outcome.status, outcome.exit_code, outcome.error.name) == ("error", 1, name)
    assert value is None or outcome.error.value == value
    assert len(outcome.error.value) <= 100_000
    assert len(outcome.error.traceback) <= 110
    assert outcome.results == []
    in_time(outcome.run_ms, 3000)
    assert (await sandbox.run("print('on')")).stdout == "on\n"


EXITS = {
    "exit()": 0,
    "quit": 0,
    "import sys; sys.exit()": 0,
    "quit(2)": 2,
    "exit(3)": 3,
    "raise SystemExit(4)": 4,
    "import sys; sys.exit(-1)": 255,
    "import sys; sys.exit('sorry')": 1,
    "import asyncio\nasync def f(): raise SystemExit(5)\nawait f()": 5,
    "get_ipython().ask_exit()": 0,
}


@pytest.mark.parametrize("code", EXITS)
async def test_exit_ends_the_cell_and_not_the_kernel(sandbox, code):
    await sandbox.run("x = 1")
    outcome = await sandbox.run(code if code == "quit" else code + "\nprint('not reached')")
    assert (outcome.status, outcome.exit_code) == ("error" if EXITS[code] else "ok", EXITS[code])
    assert (outcome.error.name if outcome.error else None) == ("SystemExit" if EXITS[code] else None)
    assert outcome.stdout == ""
    assert outcome.stderr == ("sorry\n" if "sorry" in code else "")
    assert await sandbox.value("x") == "1"


async def test_rich_displays_come_in_order_and_updates_replace(sandbox):
    outcome = await sandbox.run(
        "from IPython.display import display, HTML, JSON\n"
        "display(HTML('<b>1</b>'))\n"
        "handle = display('first', display_id='d')\n"
        "display(JSON({'a': float('nan'), 'b': [1, '\\ud800']}))\n"
        "handle.update('second')\n"
        "3"
    )
    kinds = [(entry.type, entry.data.get("text/html") or entry.data.get("text/plain")) for entry in outcome.results]
    assert [kinds[0], kinds[1], kinds[3]] == [("display", "<b>1</b>"), ("display", "'second'"), ("result", "3")]
    assert outcome.results[1].display_id == "d"
    assert json.loads(outcome.results[2].json["application/json"]) == {"a": None, "b": [1, "\ufffd"]}
    later = await sandbox.run("handle.update('third')")
    assert [(entry.type, entry.display_id, entry.data["text/plain"]) for entry in later.results] == [
        ("update", "d", "'third'")
    ]


async def test_clear_output_forgets_results_and_leaves_text(sandbox):
    outcome = await sandbox.run(
        "from IPython.display import clear_output\nprint('text')\ndisplay(1)\nclear_output()\ndisplay(2)\n"
        "clear_output(wait=True)\ndisplay(3)"
    )
    assert [entry.data["text/plain"] for entry in outcome.results] == ["3"]
    assert outcome.stdout.startswith("text\n")


async def test_results_past_the_limit_are_named_with_their_size(sandbox):
    limits = OutputLimits(text=1000, results=1000, spill=0)
    outcome = await sandbox.run("display('a' * 100)\ndisplay('b' * 5000)\ndisplay('c' * 100)", limits=limits)
    assert [(entry.type, entry.mime, entry.size) for entry in outcome.results] == [
        ("display", None, None),
        ("omitted", "text/plain", 5002),
        ("display", None, None),
    ]
    assert outcome.truncated


async def test_a_data_frame_is_a_table(sandbox):
    outcome = await sandbox.run("import pandas\npandas.DataFrame({'a': [1, 2]})", timeout_s=60.0)
    assert "<table" in outcome.results[0].data["text/html"]
    assert "text/plain" in outcome.results[0].data


@pytest.mark.parametrize("show", ["plt.show()", "None"])
async def test_figures_are_shown_without_being_asked(sandbox, show):
    outcome = await sandbox.run(f"import matplotlib.pyplot as plt\nplt.plot([1, 2])\n{show}", timeout_s=60.0)
    assert outcome.status == "ok", outcome
    images = [entry.data["image/png"] for entry in outcome.results if "image/png" in entry.data]
    assert len(images) == 1
    assert images[0].startswith("iVBOR")
    assert "\n" not in images[0]


async def test_help_is_text(sandbox):
    outcome = await sandbox.run("len?")
    assert "Return the number of items in a container." in outcome.stdout


async def test_environment_and_directory_are_of_one_execution(sandbox):
    (sandbox.workspace / "sub").mkdir()
    show = "import os\nprint(os.environ.get('FOO'), os.path.basename(os.getcwd()), 'CELLBOX_MARKS' in os.environ)"
    assert (await sandbox.run(show, env={"FOO": "bar"}, cwd="sub")).stdout == "bar sub False\n"
    assert (await sandbox.run(show)).stdout == "None w False\n"
    assert (await sandbox.run("1/0", env={"FOO": "bar"}, cwd="sub")).status == "error"
    assert (await sandbox.run(show)).stdout == "None w False\n"
    await sandbox.run("os.chdir('sub'); os.environ['FOO'] = 'mine'")
    assert (await sandbox.run(show)).stdout == "mine sub False\n"
    await sandbox.run("os.chdir('/')", cwd="sub")
    assert (await sandbox.run("os.getcwd()")).results[0].data["text/plain"] == "'/'"


async def test_variables_reach_children(sandbox):
    assert (await sandbox.run("!echo $FOO", env={"FOO": "bar baz"})).stdout == "bar baz\n"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"cwd": "nowhere"}, "cwd_not_found"),
        ({"stdin": "text"}, "unsupported_field"),
        ({"language": "cobol"}, "unknown_language"),
    ],
)
async def test_what_cannot_be_done_is_refused(sandbox, options, code):
    refused = await sandbox.execute("1", **options)
    assert isinstance(refused, Refused)
    assert refused.code == code


async def test_nothing_of_ours_shows(sandbox):
    assert await sandbox.value("__name__") == "'__main__'"
    assert await sandbox.value("import sys; [p for p in sys.path if 'kernels' in p]") == "[]"
    assert await sandbox.value("import os; os.listdir(os.environ['HOME'])") == "[]"
    assert await sandbox.value("sys.stdin.read()") == "''"
    assert await sandbox.value("import random; random.random()") != await sandbox.value(
        "import random; random.random()", context="other"
    )


async def test_source_of_a_cell_is_found(sandbox):
    await sandbox.run("def g():\n    return 1\nclass C:\n    def m(self): return 2")
    assert (await sandbox.run("import inspect; print(inspect.getsource(g))")).stdout == "def g():\n    return 1\n\n"


async def test_chained_errors_are_set_apart_as_python_does(sandbox):
    outcome = await sandbox.run("try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e")
    between = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    assert between in outcome.stderr
    assert between in "\n".join(outcome.error.traceback)


async def test_pip_runs(sandbox):
    outcome = await sandbox.run("%pip --version")
    assert outcome.stdout.startswith("pip ")
    assert outcome.exit_code == 0
