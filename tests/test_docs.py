"""The documents say what is there: settings, error codes, routes, names of tests; and the README's tour is executed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interpreter.cli import COMMANDS
from interpreter.http.errors import STATUS
from interpreter.http.routes import ROUTES
from interpreter.metrics import Metrics, Now
from interpreter.settings import Settings, variable
from tests.e2e.conftest import KEY, running

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path for path in [*ROOT.glob("*.md"), *(ROOT / "interpreter").rglob("*.md"), *(ROOT / "docs").rglob("*.md")]
)
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))


def document(name: str) -> str:
    return (ROOT / name).read_text()


def settings_table() -> str:
    """The README's table of settings, as it must be."""

    def shown(name: str, default: object) -> str:
        if name == "data_root":  # differs between root and others
            return "`/opt/cellbox/data` as root"
        if isinstance(default, tuple):
            default = ",".join(map(str, default))
        return f"`{default:g}`" if isinstance(default, float) else f"`{default}`" if default not in (None, "") else ""

    lines = ["| variable | default | unit | |", "| --- | --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        unit = (field.json_schema_extra or {}).get("unit", "")
        lines.append(f"| `{variable(name)}` | {shown(name, field.default)} | {unit} | {field.description} |")
    return "\n".join(lines)


def test_the_readme_has_the_table_of_settings() -> None:
    assert settings_table() in document("README.md"), f"the table must be:\n{settings_table()}"


def codes_table() -> str:
    """The wire contract's table of error codes, as it must be."""
    lines = ["| code | status | |", "| --- | --- | --- |"]
    for error, status in sorted(STATUS.items(), key=lambda item: (item[1], item[0].code)):
        sentence = " ".join((error.__doc__ or "").split())
        lines.append(f"| `{error.code}` | {status} | {sentence} |")
    return "\n".join(lines)


def test_the_wire_contract_has_the_table_of_error_codes() -> None:
    assert codes_table() in document("interpreter/API.md"), f"the table must be:\n{codes_table()}"


def routes_table() -> str:
    """The wire contract's table of routes, as it must be."""
    lines = ["| method | path | |", "| --- | --- | --- |"]
    for route in ROUTES:
        lines += [f"| `{method}` | `{route.path}` | {it.summary} |" for method, it in route.operations.items()]
    return "\n".join(lines)


def test_the_wire_contract_has_the_table_of_routes() -> None:
    assert routes_table() in document("interpreter/API.md"), f"the table must be:\n{routes_table()}"


def test_the_wire_contract_names_every_metric_and_no_other() -> None:
    now = Now({}, {}, {}, 0, 0, 0, 0, 0, False, 0)
    metrics = Metrics(version="0", backend="fake", now=lambda: now)
    there = set(re.findall(r"^# TYPE (cellbox_\w+)", metrics.text().decode(), re.MULTILINE))
    assert set(re.findall(r"`(cellbox_\w+)`", document("interpreter/API.md"))) == there
    assert set(re.findall(r"`(cellbox_\w+)`", document("README.md"))) <= there


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_that_a_document_names_exist(path: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", path.read_text()))
    files = {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    assert {name for name in named if f"def {name}(" not in TESTS and name not in files} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_document_names_exist(path: Path) -> None:
    named = set(re.findall(r"`((?:interpreter|runtime|kernels|tests)/[\w./-]+)`", path.read_text()))
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_a_document_names_exist(path: Path) -> None:
    named = set(re.findall(r"(?:`|bin/|sandbox-server )cellbox ([a-z]+)", path.read_text()))
    assert named - set(COMMANDS) == set()


def folders(top: str) -> list[str]:
    found = [entry.name for entry in (ROOT / top).iterdir() if entry.is_dir() and any(entry.glob("*.*"))]
    return [name for name in found if name != "__pycache__"]


@pytest.mark.parametrize("top", ["interpreter", "runtime", "kernels"])
def test_the_architecture_names_every_folder(top: str) -> None:
    text = document("ARCHITECTURE.md")
    assert [name for name in folders(top) if f"`{top}/{name}`" not in text] == []


def test_folders_of_tests_mirror_the_source_or_are_named() -> None:
    text = document("ARCHITECTURE.md")
    mirrored = {
        "runtime",
        "kernels",
        *folders("interpreter"),
        *(path.stem for path in (ROOT / "interpreter").glob("*.py")),
    }
    assert [name for name in folders("tests") if name not in mirrored and f"`tests/{name}`" not in text] == []


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of each fenced block."""
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield match[1], match[2]


def json_values(text: str) -> list[Any]:
    decoder, values, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        values.append(value)
    return values


def is_within(shown: Any, answer: Any) -> bool:
    """Whether ``answer`` has all that is shown; it may have more fields, and a text goes on where ``…`` stands."""
    if isinstance(shown, dict):
        return isinstance(answer, dict) and all(is_within(value, answer.get(key)) for key, value in shown.items())
    if isinstance(shown, list) and isinstance(answer, list):
        return len(shown) == len(answer) and all(map(is_within, shown, answer))
    if isinstance(shown, str) and shown.endswith("…"):
        return isinstance(answer, str) and answer.startswith(shown[:-1])
    return bool(shown == answer)


@pytest.mark.skipif(
    shutil.which("bwrap") is None or os.geteuid() != 0, reason="needs root and bubblewrap: apt-get install bubblewrap"
)
def test_the_tour_of_the_readme_works_as_typed(tmp_path: Path) -> None:
    tour = document("README.md").split("## Five minutes with curl")[1].split("\n## ")[0]
    (first, setup), *rest = blocks(tour)
    assert first == "sh"
    assert "the-key-that-make-run-showed" in setup
    with running(tmp_path) as service:

        def run(commands: str) -> str:
            script = f"set -e\n{setup}\n{commands}".replace("the-key-that-make-run-showed", KEY)
            script = script.replace("http://127.0.0.1:8090", service.url)
            return subprocess.run(
                ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
            ).stdout

        answers: list[Any] = []
        for language, content in rest:
            if language == "sh":
                answers = json_values(run(content))
            elif language == "python":
                run(f"{sys.executable} - <<'END'\n{content}END")
            else:
                shown = json_values(content)
                assert len(shown) == len(answers)
                for one, answer in zip(shown, answers, strict=True):
                    assert is_within(one, answer), f"shown {one}, answered {answer}"
                    if "image/png" in content:
                        assert any("image/png" in result["data"] for result in answer["results"])


@pytest.mark.skipif(
    shutil.which("bwrap") is None or os.geteuid() != 0, reason="needs root and bubblewrap: apt-get install bubblewrap"
)
def test_the_python_of_the_readme_prints_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chapter = document("README.md").split("## From Python")[1].split("\n## ")[0]
    with running(tmp_path) as service:
        monkeypatch.setenv("CELLBOX_URL", service.url)
        monkeypatch.setenv("CELLBOX_API_KEY", KEY)
        names: dict[str, Any] = {}
        for language, content in blocks(chapter):
            if language == "python":
                exec(content, names)
            else:
                assert capsys.readouterr().out == content
        names["client"].close()


@pytest.mark.skipif(
    shutil.which("bwrap") is None or os.geteuid() != 0, reason="needs root and bubblewrap: apt-get install bubblewrap"
)
def test_the_shell_of_the_readme_prints_what_is_shown(tmp_path: Path) -> None:
    chapter = document("README.md").split("## From the shell")[1].split("\n## ")[0]
    (_, commands), (_, shown) = blocks(chapter)
    with running(tmp_path) as service:
        environment = {**os.environ, "CELLBOX_URL": service.url, "CELLBOX_API_KEY": KEY}
        script = f'cellbox() {{ {sys.executable} -m interpreter "$@"; }}\n{commands}'
        done = subprocess.run(
            ["bash", "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        )
    assert (done.stdout, done.stderr) == (shown, "")
