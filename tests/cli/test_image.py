"""``cellbox image`` where there is nothing to do it with, and what its progress looks like."""

from __future__ import annotations

import io
import sys

import pytest

from interpreter import cli
from interpreter.cli.image import Progress


class Terminal(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("arguments", [["build"], ["save", "x.tar"], ["load", "x.tar"]])
def test_without_an_engine_it_fails_with_a_sentence(arguments, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert cli.main(["image", *arguments]) == cli.FAILED
    assert capsys.readouterr().err == (
        f"no container engine answers at unix://{tmp_path}/none.sock: start it, or set DOCKER_HOST\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_wrong_settings_are_wrong_usage(monkeypatch, capsys):
    monkeypatch.setenv("SANDBOX_IMAGES", "two")
    assert cli.main(["image", "inputs"]) == cli.WRONG
    assert "SANDBOX_IMAGES" in capsys.readouterr().err


def test_an_action_is_needed(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["image"])
    assert ended.value.code == cli.WRONG
    assert "{build,inputs,save,load}" in capsys.readouterr().err


def test_a_terminal_shows_one_line_that_changes_and_is_gone(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    progress = Progress()
    progress.say("1/2 FROM base")
    progress.say("2/2 RUN " + "x" * 500)
    progress.end()
    shown = terminal.getvalue()
    assert "\n" not in shown
    first, second, last = shown.split("\r\x1b[K")[1:]
    assert first.endswith("1/2 FROM base")
    assert len(second) < 500
    assert last == ""


def test_elsewhere_there_is_a_line_for_each_step(capsys):
    progress = Progress()
    for line in ("1/2 FROM base", "2/2 RUN pip", "2/2 Collecting numpy", "2/2 Collecting scipy"):
        progress.say(line)
    progress.end()
    assert [line.split("s] ")[1] for line in capsys.readouterr().err.splitlines()] == ["1/2 FROM base", "2/2 RUN pip"]
