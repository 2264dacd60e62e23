"""The commands that call a service, as programs, against a real one."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interpreter.cli.repl import is_whole
from tests.e2e.conftest import KEY, Cellbox, bubblewrap_is_there, running

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def cellbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cellbox]:
    if not bubblewrap_is_there():
        pytest.skip("needs root and bubblewrap: apt-get install bubblewrap")
    with running(tmp_path_factory.mktemp("calling")) as service:
        yield service


@pytest.fixture(scope="module")
def environment(cellbox: Cellbox) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SANDBOX_", "CELLBOX_"))}
    return kept | {"CELLBOX_URL": cellbox.url, "CELLBOX_API_KEY": KEY, "CELLBOX_SESSION": "ada/chat1"}


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    def command(*words: str, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "interpreter", *words],
            env=environment | variables | {"PYTHONPATH": str(Path(__file__).parents[2])},
            cwd=tmp_path,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return command


def test_exec_shows_output_and_value_and_remembers(run: Run) -> None:
    done = run("exec", "-c", "import sys\nx = 41\nprint('out')\nprint('err', file=sys.stderr)\nx + 1")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n42\n", "err\n", 0)
    assert run("exec", "-c", "x").stdout == "41\n"
    assert run("exec", "--fresh", "-c", "print(x)").returncode == 1
    assert run("exec", "-s", "ada/other", "-c", "x").returncode == 1


def test_exec_puts_files_of_this_machine_beside_the_code(run: Run, tmp_path: Path) -> None:
    (tmp_path / "n.bin").write_bytes(b"\xff")
    done = run("exec", "--file", "n.bin", "--file", "n.bin=in/too.bin", "-c", "open('n.bin', 'rb').read()")
    assert (done.stdout, done.returncode) == ("b'\\xff'\n", 0)
    assert run("exec", "--language", "bash", "-c", "ls in").stdout == "too.bin\n"
    absent = run("exec", "--file", "absent", "-c", "1")
    assert (absent.returncode, "absent cannot be read" in absent.stderr) == (125, True), absent.stderr


def test_exec_ends_with_the_exit_code_of_the_code(run: Run, tmp_path: Path) -> None:
    assert run("exec", "--language", "bash", "-c", "exit 7").returncode == 7
    assert run("exec", "-c", "1/0").stderr.endswith("ZeroDivisionError: division by zero\n")
    slow = run("exec", "--timeout", "0.3", "-c", "while True: pass")
    assert (slow.returncode, slow.stderr) == (124, "timeout: the code was ended\n")
    assert run("exec", "-c", "import os; os._exit(5)").returncode == 5
    (tmp_path / "hello.js").write_text("console.log(`${6 * 7} ${process.env.WHO}`)")
    assert run("exec", "-e", "WHO=ada", "hello.js").stdout == "42 ada\n"
    assert run("exec", "-", given="print(input)").returncode == 0


def test_exec_says_in_a_sentence_why_nothing_ran(run: Run) -> None:
    wrong = run("exec", "--language", "cobol", "-c", "1")
    assert (wrong.returncode, wrong.stderr.partition(":")[0]) == (125, "unknown_language")
    assert (
        run("exec", "missing.py").stderr == "invalid_request: missing.py cannot be read: No such file or directory.\n"
    )
    nobody = run("exec", "-c", "1", "--url", "http://127.0.0.1:1")
    assert (nobody.returncode, "cellbox serve" in nobody.stderr) == (125, True)
    assert run("exec", "-c", "1", CELLBOX_API_KEY="not-the-key-of-the-service").stderr.startswith("unauthorized: ")
    assert "Traceback" not in wrong.stderr + nobody.stderr


def test_exec_as_json_is_a_line_for_each_event(run: Run) -> None:
    events = [json.loads(line) for line in run("exec", "--json", "-c", "print(1)\n2").stdout.splitlines()]
    assert [events[0]["type"], events[-1]["type"]] == ["started", "finished"]
    assert [event["seq"] for event in events] == list(range(len(events)))


def test_exec_saves_and_names_pictures(run: Run, tmp_path: Path) -> None:
    code = "import matplotlib.pyplot as plt\nfor n in range(2):\n    plt.plot([n])\n    plt.show()"
    assert run("exec", "--pictures", "made", "-c", code).stdout == "made/001.png\nmade/002.png\n"
    assert (tmp_path / "made/002.png").read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_interrupts_the_code_and_keeps_its_variables(run: Run, environment: dict[str, str]) -> None:
    code = "kept = 1\nprint('runs', flush=True)\nwhile True: pass"
    process = subprocess.Popen(
        [sys.executable, "-m", "interpreter", "exec", "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert (process.returncode, told.splitlines()[-1].partition(":")[0]) == (130, "KeyboardInterrupt")
    assert run("exec", "-c", "kept").stdout == "1\n"


def test_ps_lists_what_runs(run: Run) -> None:
    run("exec", "-c", "1")
    header, *lines = run("ps", "ada").stdout.splitlines()
    assert header.split()[:3] == ["SCOPE", "SESSION", "STATE"]
    assert any(line.startswith("ada") and "chat1" in line and "python (idle)" in line for line in lines)
    listed = json.loads(run("ps", "--json").stdout)
    assert {"ada"} == {each["scope"] for each in listed}


def test_repl_runs_what_is_typed(run: Run) -> None:
    typed = "def f(n):\n    return n + 1\n\nf(41)\n:node\nlet a = [1].map(n => \\\n  n + 1)\na\n:nonsense\n:quit\n"
    done = run("repl", given=typed)
    assert done.stdout.startswith("42\n[ 2 ]\n")
    assert ":restart" in done.stdout
    assert (done.stderr, done.returncode) == ("", 0)


def test_repl_on_a_terminal_prompts_asks_and_keeps_its_history(environment: dict[str, str], tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "interpreter", "repl"],
        env=environment | {"XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    seen = ""

    def until(word: str) -> None:
        nonlocal seen
        while word not in seen:
            seen += os.read(master, 4096).decode()
        seen = seen.partition(word)[2]

    try:
        until("python> ")
        os.write(master, b"name = input('who? ')\n")
        until("name = input('who? ')")  # as the terminal shows what is typed
        until("who? ")
        os.write(master, b"Ada\n")
        until("python> ")
        os.write(master, b"name.upp\t()\n")
        until("'ADA'")
        until("python> ")
        os.write(master, b":quit\n")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert "name.upper()" in (tmp_path / "cellbox/history").read_text()


@pytest.mark.parametrize(
    ("language", "lines", "whole"),
    [
        ("python", ["x = 1"], True),
        ("python", ["def f():"], False),
        ("python", ["def f():", "  return 1"], False),
        ("python", ["def f():", "  return 1", ""], True),
        ("python", ["x = ("], False),
        ("python", ["'''"], False),
        ("python", ["%timeit 1"], True),
        ("python", ["1 +* 1"], True),
        ("node", ["f(1)"], True),
        ("node", ["f( \\"], False),
        ("bash", ["echo a \\", "b"], True),
    ],
)
def test_lines_that_do_not_stand_alone_are_continued(language: str, lines: list[str], whole: bool) -> None:
    assert is_whole(language, lines) is whole


def notebook(*sources: str, language: str = "python", tags: dict[int, list[str]] | None = None) -> dict[str, Any]:
    cells = [
        {
            "cell_type": "code",
            "id": f"c{number}",
            "execution_count": None,
            "metadata": {"tags": (tags or {}).get(number, [])},
            "outputs": [],
            "source": source,
        }
        for number, source in enumerate(sources)
    ]
    text = {"cell_type": "markdown", "id": "text", "metadata": {}, "source": "# Title"}
    about = {"kernelspec": {"name": "python3", "display_name": "x", "language": language}}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": about, "cells": [text, *cells]}


def test_run_writes_a_notebook_with_real_outputs(run: Run, tmp_path: Path) -> None:
    import nbformat

    code = "from IPython.display import display\nh = display({'text/plain': 'one'}, raw=True, display_id=True)"
    made = notebook("x = 41\nprint('a')\nprint('b')", code, "h.update({'text/plain': 'two'}, raw=True)\nx + 1")
    (tmp_path / "a.ipynb").write_text(json.dumps(made))
    done = run("run", "a.ipynb", "-o", "b.ipynb", "--html", CELLBOX_SESSION="")
    assert (done.returncode, done.stdout) == (0, "b.ipynb and b.html: 3 of 3 cells run, 0 failed\n"), done.stderr
    assert done.stderr.splitlines()[0].startswith("cell 1 of 3: ")
    written = nbformat.read(tmp_path / "b.ipynb", as_version=4)
    nbformat.validate(written)
    outputs = [cell.outputs for cell in written.cells if cell.cell_type == "code"]
    assert outputs[0] == [{"output_type": "stream", "name": "stdout", "text": "a\nb\n"}]
    assert outputs[1][0]["data"] == {"text/plain": "two"}
    assert (outputs[2][0]["output_type"], outputs[2][0]["data"]) == ("execute_result", {"text/plain": "42"})
    assert [cell.execution_count for cell in written.cells if cell.cell_type == "code"] == [1, 2, 3]
    assert "Title" in (tmp_path / "b.html").read_text()
    assert json.loads((tmp_path / "a.ipynb").read_text()) == made
    assert "cli" not in run("ps").stdout


def test_run_ends_at_a_cell_that_fails_and_writes_what_came(run: Run, tmp_path: Path) -> None:
    made = notebook("1/0", "print('between')\nraise KeyError('x')", "print('after')", tags={0: ["raises-exception"]})
    (tmp_path / "a.ipynb").write_text(json.dumps(made))
    done = run("run", "a.ipynb", "--json", CELLBOX_SESSION="")
    assert (done.returncode, json.loads(done.stdout)["failed"]) == (1, [2])
    cells = json.loads((tmp_path / "a.ipynb").read_text())["cells"][1:]
    assert [[output["output_type"] for output in cell["outputs"]] for cell in cells] == [
        ["error"],
        ["stream", "error"],
        [],
    ]
    assert (cells[0]["outputs"][0]["ename"], cells[1]["outputs"][0]["text"]) == ("ZeroDivisionError", "between\n")
    going = run("run", "a.ipynb", "--keep-going", "--timeout", "5", CELLBOX_SESSION="")
    assert (going.returncode, "3 of 3 cells run, 1 failed" in going.stdout) == (1, True)
    assert [line for line in going.stderr.splitlines() if "failed" in line] == ["cell 2 of 3 failed: KeyError: 'x'"]
    (tmp_path / "long.ipynb").write_text(json.dumps(notebook("raise ValueError('a\\nb' + 'x' * 9999)")))
    told = run("run", "long.ipynb", CELLBOX_SESSION="").stderr
    assert ("cell 1 of 1 failed: ValueError: a bxxx" in told, len(told) < 500) == (True, True)
    (tmp_path / "none.ipynb").write_text("{}")
    assert run("run", "none.ipynb").stderr == "invalid_request: none.ipynb is no notebook of version 4.\n"


def test_the_light_distribution_has_what_these_commands_need() -> None:
    parts = [f"interpreter.cli.{name}" for name in ("exec", "repl", "run", "files", "ps", "completion")]
    code = f"import sys; sys.modules |= dict.fromkeys(['docker', 'msgspec', 'tornado', 'nbconvert']); import {', '.join(parts)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_files_are_put_listed_got_and_removed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("n\n1\n")
    where = ("-s", "ada/files")
    assert run("files", "put", *where, "data.csv").returncode == 0
    assert json.loads(run("files", "put", *where, "--json", "-", "in/b", given="piped").stdout)["path"] == "in/b"
    assert run("exec", *where, "-c", "open('data.csv').read()").stdout == "'n\\n1\\n'\n"
    assert [line.split()[-1] for line in run("files", "ls", *where).stdout.splitlines()] == ["data.csv", "in/"]
    assert run("files", "get", *where, "in/b", "-").stdout == "piped"
    assert run("files", "get", *where, "in/b").returncode == 0
    assert (tmp_path / "b").read_text() == "piped"
    assert run("files", "rm", *where, "in").returncode == 0
    assert [each["name"] for each in json.loads(run("files", "ls", *where, "--json").stdout)] == ["data.csv"]
    gone = run("files", "get", *where, "in/b", "c")
    assert (gone.returncode, "Traceback" in gone.stderr, (tmp_path / "c").exists()) == (1, False, False)
    assert run("files", "put", *where, "missing").returncode == 2


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ex"], {"exec"}),
        (["files", "p"], {"put"}),
        (["files", "put", "--s"], {"--session"}),
        (["exec", "-s", "ada/chat1", "--la"], {"--language"}),
        (["exec", "--zz"], set()),
        (["completion", ""], {"bash"}),
    ],
)
def test_a_shell_completes_commands_and_options(words: list[str], offered: set[str]) -> None:
    script = subprocess.run(
        [sys.executable, "-m", "interpreter", "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    listed = " ".join(map(shlex.quote, ["cellbox", *words]))
    asked = f'COMP_WORDS=({listed}); COMP_CWORD={len(words)}; _cellbox; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True)
    found = {word for word in done.stdout.split() if word != "--help"}
    assert (found, done.stderr) == (offered, "")


def test_a_command_finds_the_service_of_this_machine_without_being_told(cellbox: Cellbox) -> None:
    done = cellbox.command("exec", "-s", "ada/chat1", "-c", "6 * 7")
    assert (done.stdout, done.returncode) == ("42\n", 0)
