"""``cellbox run``: a notebook, cell by cell, with real outputs.

Promises: what came until a failure is written; a file appears whole or stays as it was; a session of our own is deleted.
Leaves to outputs.py: what an event is in a notebook.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from interpreter import languages
from interpreter.cli import FAILED, OK
from interpreter.cli.calling import called, session
from interpreter.cli.outputs import Outputs
from interpreter.client import Client, InvalidRequest, Session

Notebook = dict[str, Any]
_BAR = 20
_CAUSE = 300
"""Characters of an error that are said on the terminal; the notebook has all of it."""


def run(arguments: argparse.Namespace) -> int:
    """Run it and write it. Exit code 1: a cell failed."""
    return called(arguments, lambda client: _run(client, arguments))


def _run(client: Client, arguments: argparse.Namespace) -> int:
    notebook = read(arguments.notebook)
    to: Path = arguments.output or arguments.notebook
    page = to.with_suffix(".html") if arguments.html else None
    export = _exporter() if page else None
    progress = Progress(len(code_cells(notebook)), silent=arguments.json)
    with _session(client, arguments) as where:
        try:
            failed = execute(
                notebook, where, timeout=arguments.timeout, keep_going=arguments.keep_going, progress=progress
            )
        finally:
            _write(to, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    if page and export:
        _write(page, export(notebook))
    told = {"notebook": str(to), "html": str(page) if page else None, "cells": progress.total, "failed": failed}
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        print(
            f"{to}{f' and {page}' if page else ''}: {progress.done} of {progress.total} cells run, {len(failed)} failed"
        )
    return FAILED if failed else OK


def read(file: Path) -> Notebook:
    """Return the notebook in ``file``. Raises InvalidRequest: it is none of version 4."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no JSON"
        raise InvalidRequest(f"{file} cannot be read: {reason}.", code="invalid_request") from error
    if not isinstance(found, dict) or found.get("nbformat") != 4 or not isinstance(found.get("cells"), list):
        raise InvalidRequest(f"{file} is no notebook of version 4.", code="invalid_request")
    return found


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    """Return the cells that are run."""
    return [cell for cell in notebook["cells"] if cell.get("cell_type") == "code" and _source(cell).strip()]


def execute(
    notebook: Notebook, where: Session, *, timeout: float | None, keep_going: bool, progress: Progress
) -> list[int]:
    """Run the cells in order and put their outputs into them. Return the numbers, from 1, of those that failed.

    A cell tagged ``raises-exception`` may fail. Raises CellboxError.
    """
    language = _language(notebook)
    for cell in (cell for cell in notebook["cells"] if cell.get("cell_type") == "code"):
        cell["outputs"], cell["execution_count"] = [], None
    outputs = Outputs()
    failed = []
    for number, cell in enumerate(code_cells(notebook), 1):
        outputs.begin(cell["outputs"])
        with progress.cell(number), where.stream(_source(cell), language, **_options(timeout)) as stream:
            for event in stream:
                outputs.add(event)
        cell["execution_count"] = event.execution_count
        if event.fields.get("status") != "ok" and "raises-exception" not in cell.get("metadata", {}).get("tags", []):
            if event.fields.get("status") != "error":  # a time-out, a death: nothing else in the notebook says so
                ended = {
                    "output_type": "error",
                    "ename": event.fields["status"],
                    "evalue": event.reason or "",
                    "traceback": [],
                }
                cell["outputs"].append(ended)
            progress.failed(number, cell["outputs"])
            failed.append(number)
            if not keep_going:
                break
    return failed


class Progress:
    """Says on the terminal how far it is. total: of cells. silent: says nothing."""

    def __init__(self, total: int, *, silent: bool = False) -> None:
        self.total = total
        self.done = 0
        self._bar = not silent and sys.stderr.isatty()
        self._lines = not silent and not self._bar

    @contextlib.contextmanager
    def cell(self, number: int) -> Iterator[None]:
        """Say that a cell runs, and how long it took."""
        began = time.monotonic()
        if self._bar:
            full = _BAR * self.done // self.total
            print(
                f"\r[{'█' * full}{'·' * (_BAR - full)}] cell {number} of {self.total} ",
                end="",
                file=sys.stderr,
                flush=True,
            )
        try:
            yield
            self.done += 1
        finally:
            if self._bar:
                print("\r\033[K", end="", file=sys.stderr, flush=True)
            elif self._lines:
                print(f"cell {number} of {self.total}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def failed(self, number: int, outputs: list[dict[str, Any]]) -> None:
        """Say that a cell failed, and of what."""
        if self._bar or self._lines:
            errors = [each for each in outputs if each["output_type"] == "error"]
            parts = [errors[-1]["ename"], errors[-1]["evalue"]] if errors else []
            cause = "".join(sign if sign.isprintable() else " " for sign in ": ".join(filter(None, parts))[:_CAUSE])
            print(f"cell {number} of {self.total} failed{cause and f': {cause}'}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _session(client: Client, arguments: argparse.Namespace) -> Iterator[Session]:
    if arguments.session is not None:
        yield session(client, arguments)
        return
    own = client.session("cli", f"run-{secrets.token_hex(6)}")
    try:
        yield own
    finally:
        own.remove(purge=True, force=True)


def _options(timeout: float | None) -> Any:
    return {} if timeout is None else {"timeout": timeout}


def _source(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    return "".join(source) if isinstance(source, list) else str(source)


def _language(notebook: Notebook) -> str:
    about = notebook.get("metadata", {})
    name = about.get("kernelspec", {}).get("language") or about.get("language_info", {}).get("name") or "python"
    language = languages.canonical(str(name))
    if language is None:
        raise InvalidRequest(f"The notebook is of no language that there is: {name!r}.", code="unknown_language")
    return language


def _exporter() -> Callable[[Notebook], str]:
    """Return what makes a page of a notebook. Raises InvalidRequest: it is not installed."""
    try:
        convert: Any = importlib.import_module("nbconvert")
        form: Any = importlib.import_module("nbformat")
    except ImportError as error:
        raise InvalidRequest("--html needs nbconvert: pip install 'cellbox[html]'", code="not_installed") from error
    return lambda notebook: str(convert.HTMLExporter().from_notebook_node(form.from_dict(notebook))[0])


def _write(file: Path, text: str) -> None:
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        part.write_text(text, "utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
