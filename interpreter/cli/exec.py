"""``cellbox exec``: code of a file, an argument or standard input, its output as it comes, its exit code."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from interpreter import languages
from interpreter.cli.calling import UNSERVED, called, session
from interpreter.cli.printer import Printer
from interpreter.client import Client, InvalidRequest

_BY_SUFFIX = {
    ".py": "python",
    ".js": "node",
    ".mjs": "node",
    ".cjs": "node",
    ".ts": "node",
    ".sh": "bash",
    ".bash": "bash",
}


def run(arguments: argparse.Namespace) -> int:
    """Run the code and return its exit code."""
    return called(arguments, lambda client: _exec(client, arguments), failed=UNSERVED)


def _exec(client: Client, arguments: argparse.Namespace) -> int:
    code = _code(arguments)
    language = languages.canonical(arguments.language or _BY_SUFFIX.get(Path(arguments.file or "").suffix, "python"))
    asks = language == "python" and not arguments.fresh and not arguments.json and sys.stdin.isatty()
    options: dict[str, Any] = {
        "stateful": not arguments.fresh,
        "context": arguments.context,
        "timeout": arguments.timeout,
        "cwd": arguments.cwd,
        "env": _environment(arguments.env),
        "files": _files(arguments.files),
        "allow_input": asks or None,
    }
    printer = Printer(pictures=arguments.pictures, as_json=arguments.json, asks=asks)
    with session(client, arguments).stream(code, language or arguments.language, **options) as stream:
        finished = printer.follow(stream)
    if finished.fields.get("timed_out"):
        print("timeout: the code was ended", file=sys.stderr)
    elif finished.fields.get("status") == "died":
        print(f"the kernel has died: {finished.reason}", file=sys.stderr)
    return int(finished.fields["exit_code"])


def _code(arguments: argparse.Namespace) -> str:
    if arguments.code is not None:
        return str(arguments.code)
    try:
        return sys.stdin.read() if arguments.file == "-" else Path(arguments.file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InvalidRequest(f"{arguments.file} cannot be read: {reason}.", code="invalid_request") from error


def _files(given: list[str]) -> dict[str, Path] | None:
    pairs = [each.partition("=") for each in given]
    return {path or Path(name).name: Path(name) for name, _, path in pairs} or None


def _environment(given: list[str]) -> dict[str, str] | None:
    pairs = [each.partition("=") for each in given]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise InvalidRequest(f"-e {wrong[0]} is not of the form NAME=VALUE.", code="invalid_request")
    return {name: value for name, _, value in pairs} or None
