"""What runs alone, and that what has to is marked."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CONFTEST = """
import pytest
from tests import scheduling

def pytest_xdist_make_scheduler(config, log):
    return scheduling.Scheduling(config, log)

def pytest_collection_modifyitems(config, items):
    scheduling.tell_what_runs_alone(config, items)

@pytest.fixture(autouse=True)
def told(request):
    with open("log", "a") as log:
        log.write(f"+{request.node.name}\\n")
        log.flush()
        yield
        log.write(f"-{request.node.name}\\n")
"""
FILE = """
import pytest

def test_{0}_one(): pass

@pytest.mark.alone
def test_{0}_alone(): pass

def test_{0}_two(): pass
"""


def run(folder: Path, files: str, *arguments: str) -> list[str]:
    """The beginnings and ends of the tests of so many files, in two processes."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone: by itself\n")
    for name in files:
        (folder / f"test_{name}.py").write_text(FILE.format(name))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", *arguments]
    environment = {"PYTHONPATH": str(TESTS.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "log").read_text().split()


@pytest.mark.parametrize("files", ["a", "abcdefgh"])
def test_what_runs_alone_comes_last_and_one_at_a_time(tmp_path: Path, files: str) -> None:
    log = run(tmp_path, files)
    assert len(log) == 6 * len(files)
    first = min(log.index(f"+test_{name}_alone") for name in files)
    assert [line for line in log[first:] if "alone" not in line] == []
    assert [line[1:] for line in log[first::2]] == [line[1:] for line in log[first + 1 :: 2]]


@pytest.mark.parametrize("expression", ["alone", "not alone"])
def test_one_part_can_be_run_without_the_other(tmp_path: Path, expression: str) -> None:
    log = run(tmp_path, "abc", "-m", expression)
    assert len(log) == (6 if expression == "alone" else 12)


def judges_a_duration() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    pattern = re.compile(r"in_time\(|(monotonic\(\)|loop\.time\(\)) - \w+ <|(run_ms|slowest|\w+\(times\)) < ")
    for path in TESTS.rglob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
            if is_test and any(pattern.search(ast.unparse(each)) for each in node.body):
                yield path, node


def test_every_test_that_judges_a_duration_runs_alone() -> None:
    judging = list(judges_a_duration())
    assert len(judging) > 20
    wrong = [
        f"{path.relative_to(TESTS)}:{node.lineno} {node.name}: @pytest.mark.alone is missing"
        for path, node in judging
        if "pytest.mark.alone" not in map(ast.unparse, node.decorator_list)
    ]
    assert wrong == []
