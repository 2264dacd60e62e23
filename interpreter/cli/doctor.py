"""``cellbox doctor``: what a service with these settings would meet on this machine, and what to type where that is wrong.

Promises: changes nothing, starts no sandbox, needs no service and no engine; every line that is not ok says what to do.
Leaves to doctor_engine.py, doctor_egress.py and doctor_host.py: looking; to the start of the service: proving it with a real
sandbox.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from interpreter import app, settings
from interpreter.cli import FAILED, OK, WRONG, doctor_egress, doctor_engine, doctor_host
from interpreter.cli.findings import Finding, error, ok, warning
from interpreter.settings import Settings

_WIDTH = 118


def run(arguments: argparse.Namespace) -> int:
    """Say what was found. Exit code 1: something is wrong; 2: the settings are."""
    try:
        found = settings.load()
        app.check(found)
    except settings.SettingsError as wrong:
        print(wrong, file=sys.stderr)
        return WRONG
    findings = list(examine(found))
    errors = [each for each in findings if each.state == "error"]
    if arguments.json:
        print(json.dumps({"ok": not errors, "findings": [asdict(each) for each in findings]}, indent=2))
    else:
        for each in findings:
            _show(each)
    return FAILED if errors else OK


def examine(found: Settings) -> Iterator[Finding]:
    """Yield what there is to say, in the order in which it is to be put right."""
    engine = doctor_engine.ask(found)
    backend, finding = chosen(found, has_image=engine.image is not None)
    yield finding
    for sentence in settings.warnings(found):
        yield warning("settings", sentence, "`cellbox config` shows what each variable does")
    yield from doctor_engine.examine(found, engine, needed=backend == "docker")
    yield from doctor_egress.examine(found)
    yield from doctor_host.examine(found, backend, doctor_engine.directory(engine))


def chosen(found: Settings, *, has_image: bool) -> tuple[str, Finding]:
    """Return the backend that a service would use, and why it is the one; empty: there is none."""
    what = "backend"
    name: str = found.runtime_backend
    why = "SANDBOX_RUNTIME_BACKEND names it"
    if name == "auto":
        why = "chosen at the first start"
        name = _remembered(found.data_root)
    if not name:
        why = "a first start would choose it"
        name = "docker" if has_image else "bubblewrap" if shutil.which("bwrap") else ""
    if not name:
        return "", error(
            what,
            "neither a container engine with the image nor bubblewrap is there",
            "install Docker and type `cellbox image build`, or install bubblewrap (`apt-get install bubblewrap`)",
        )
    if name == "process":
        return name, warning(what, f"process, which isolates nothing ({why})", "name another one for code of others")
    return name, ok(what, f"{name} ({why})")


def _remembered(root: Path) -> str:
    try:
        return (root / ".backend").read_text().strip()
    except OSError:
        return ""


def _show(each: Finding) -> None:
    before = f"{each.state:8} {each.what:12} "
    print(textwrap.fill(each.text, _WIDTH, initial_indent=before, subsequent_indent=" " * len(before)))
    # What is to be typed is never broken over lines.
    for line in each.remedy.splitlines():
        print(f"{' ' * 22}{line}")
