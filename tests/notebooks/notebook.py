"""Runs a notebook's cells as a kernel would, in this process: what is printed, and what the last expression shows."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(file.name for file in FOLDER.glob("*.ipynb"))


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


def write(name: str, notebook: dict[str, Any]) -> None:
    (FOLDER / name).write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def outputs(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Run the code cells in order and return the outputs of each."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_run("".join(cell["source"]), names, count) for count, cell in enumerate(cells, 1)]


def _run(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    made: list[dict[str, Any]] = []
    if printed.getvalue():
        made.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)})
    if value is not None:
        data = value._repr_mimebundle_() if hasattr(value, "_repr_mimebundle_") else {"text/plain": repr(value)}
        made.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return made
