"""What is marked ``alone`` may be too slow twice, and nothing may be wrong once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
CONFTEST = """
import pytest
from tests import attempts

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    return attempts.run(item, nextitem)

def pytest_terminal_summary(terminalreporter):
    attempts.summarize(terminalreporter)
"""
FILE = """
import pathlib
import pytest
from tests.attempts import in_time

log = pathlib.Path("log")

@pytest.fixture
def fresh():
    yield
    with log.open("a") as file:
        file.write("x")

{mark}
def test_it(fresh):
    ran = len(log.read_text()) if log.exists() else 0
    {check}
"""


SLOW = 'in_time({failing} - ran, 0.5, f"attempt {{ran}}")'
WRONG = 'assert ran >= {failing}, f"attempt {{ran}}"'


@pytest.mark.parametrize("processes", [[], ["-n", "1"]])
@pytest.mark.parametrize(
    ("mark", "check", "failing", "ran", "told"),
    [
        ("@pytest.mark.alone", SLOW, 0, 1, "1 passed"),
        ("@pytest.mark.alone", SLOW, 2, 3, "1 passed"),
        ("@pytest.mark.alone", SLOW, 3, 3, "1 failed"),
        ("@pytest.mark.alone", WRONG, 1, 1, "1 failed"),
        ("", SLOW, 1, 1, "1 failed"),
    ],
)
def test_what_was_too_slow_has_three_attempts_and_what_is_wrong_has_one(
    tmp_path: Path, mark: str, check: str, failing: int, ran: int, told: str, processes: list[str]
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone: by itself\n")
    (tmp_path / "test_it.py").write_text(FILE.format(mark=mark, check=check.format(failing=failing)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", *processes],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert len((tmp_path / "log").read_text()) == ran
    assert [f"attempt {number}" in done.stdout for number in range(3)] == [number < failing for number in range(3)]
