"""What went wrong in a cell, in words: as Python itself would print it, of bounded length, without colours."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from .streams import sanitized

_MAX_LINES = 100
"""Of one traceback: a recursion through two functions has a thousand frames, and nobody reads them."""

_MAX_LINE = 2_000
_MAX_VALUE = 100_000
_SIGNAL_HANDLER = str(Path(__file__).with_name("kernel.py"))
"""An interrupt is raised in here, which says nothing about where the cell was."""

_MACHINERY = ("IPython.", "ipykernel.", "cellbox_kernel.")


class Described(NamedTuple):
    """name: of the exception's class. value: its text. traceback: lines, the last ones saying name and value."""

    name: str
    value: str
    traceback: list[str]


def describe(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Described:
    """Word ``error``; never raises, whatever its ``__str__`` does."""
    if kind.__name__ == "UsageError":  # of a magic: where it is raised inside IPython says nothing
        trace = None
    lines = _lines(kind, error, _of_user(trace))
    if len(lines) > _MAX_LINES:
        half = _MAX_LINES // 2
        left_out = len(lines) - 2 * half
        lines = [*lines[:half], f"  [... {left_out} lines left out ...]", *lines[-half:]]
    return Described(sanitized(kind.__name__), _text(error), [sanitized(line)[:_MAX_LINE] for line in lines])


def exit_code(error: SystemExit) -> int:
    """Return what the process would have ended with, had it been a program."""
    code = error.code
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _text(error: BaseException) -> str:
    try:
        return sanitized(str(error))[:_MAX_VALUE]
    except BaseException:  # noqa: BLE001 - it is the user's method
        return "<no text: its __str__ failed>"


def _lines(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> list[str]:
    try:
        shown = traceback.TracebackException(kind, error, trace, compact=True)
        if kind is KeyboardInterrupt and shown.stack and shown.stack[-1].filename == _SIGNAL_HANDLER:
            shown.stack.pop()
        text = "".join(shown.format())
    except BaseException as failed:  # noqa: BLE001 - user code runs in there
        text = f"{kind.__name__}: {_text(error)}\n(no traceback: {type(failed).__name__} while making it)"
    return text.splitlines()


def _of_user(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames that led to the user's code; all of them if there is none of his."""
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(_MACHINERY):
        trace = trace.tb_next
    return trace
