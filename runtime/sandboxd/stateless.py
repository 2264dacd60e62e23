"""A stateless Python program in a fork of the zygote, not to be told from ``python -``.

The fork leaves all frames of ours by raising ``Unwind``: the interpreter then calls ``sys.excepthook`` with an empty stack,
and the program is run from there. What ``python -`` does around a program (``pythonrun.c``, ``main.c``) is done here.

What differs, knowingly: modules of the standard library are loaded already, all runs of a sandbox hash strings alike, and
``sys.flags.unbuffered`` is 0 even where ``PYTHONUNBUFFERED`` is set and acts. The one frame of ours below the program's
passes for one of the import system, which ``warnings`` skips.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import logging
import os
import sys
from importlib.machinery import BuiltinImporter
from types import ModuleType, TracebackType
from typing import NoReturn

from . import afterfork, ending, programs
from .programs import PythonRun

_CODE = 3
"""Descriptor of the source text."""


def rehearse() -> None:
    """Do once, while nobody waits, what the program's process will do: its own copies of memory pages are made now."""
    programs.decode(programs.encode(PythonRun(dict(os.environ), "/")))
    afterfork.rehearse()
    afterfork.settle(dict(os.environ), ["-"])
    _make_main()
    with contextlib.suppress(afterfork.Unwind):
        raise afterfork.Unwind
    exec(compile(b"print(end='')", "<stdin>", "exec", dont_inherit=True), vars(sys.modules["__main__"]))  # noqa: S102 - the job
    atexit._clear()
    atexit._run_exitfuncs()
    ending.rehearse()


def begin(program: PythonRun) -> NoReturn:
    """Become the program, by raising ``Unwind``. For a fork, after ``take_over`` and ``put_aside``."""
    source = os.pread(_CODE, os.fstat(_CODE).st_size, 0)
    os.close(_CODE)
    afterfork.settle(program.env, ["-"])
    atexit._clear()
    atexit.register(logging.shutdown)
    _make_main()
    sys.excepthook = functools.partial(_drive, source)
    raise afterfork.Unwind


def _make_main() -> None:
    main = ModuleType("__main__")
    vars(main).update(
        __loader__=BuiltinImporter,
        __annotations__={},
        __builtins__=builtins,
        __file__="<stdin>",
        __cached__=None,
    )
    sys.modules["__main__"] = main


def _drive(source: bytes, _kind: object, _value: object, _trace: object) -> NoReturn:
    sys.excepthook = sys.__excepthook__
    ending.forget_last()
    error: BaseException | None = None
    try:
        exec(compile(source, "<stdin>", "exec", dont_inherit=True), vars(sys.modules["__main__"]))  # noqa: S102 - the job
    except BaseException as caught:  # noqa: BLE001 - whatever the program raises ends it
        error = caught.with_traceback(caught.__traceback__ and caught.__traceback__.tb_next)
    uncaught, error = [error], None
    status, by_interrupt = _report(uncaught)
    ending.finish(status, by_interrupt=by_interrupt)


_drive.__code__ = _drive.__code__.replace(co_filename="<frozen importlib._bootstrap>", co_name="<module>")


def _report(uncaught: list[BaseException | None]) -> tuple[int, bool]:
    """Tell on stderr about what the program raised; return its exit code and whether it is to die of SIGINT.

    Takes the exception out of the list, so that nothing of ours keeps the program's frames alive.
    """
    error = uncaught.pop()
    if error is None:
        return 0, False
    if isinstance(error, SystemExit):
        return _exit_code(error), False
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    by_interrupt = type(error) is KeyboardInterrupt
    hook = getattr(sys, "excepthook", None)
    if hook is None:
        _say("sys.excepthook is missing")
        sys.__excepthook__(type(error), error, error.__traceback__)
        return 1, by_interrupt
    failed = _call_hook(hook, error, error.__traceback__)
    if isinstance(failed, SystemExit):
        return _exit_code(failed), False
    if failed is not None:
        _say("Error in sys.excepthook:")
        sys.__excepthook__(type(failed), failed, failed.__traceback__)
        _say("\nOriginal exception was:")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return 1, by_interrupt


def _call_hook(hook: object, error: BaseException, trace: TracebackType | None) -> BaseException | None:
    """Call the program's ``sys.excepthook``; return what it raised."""
    try:
        hook(type(error), error, trace)  # type: ignore[operator]  # the program's
    except BaseException as failed:  # noqa: BLE001 - it is the program's
        return failed.with_traceback(failed.__traceback__ and failed.__traceback__.tb_next)
    return None


def _exit_code(error: SystemExit) -> int:
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF
    _say(code)
    return 1


def _say(what: object) -> None:
    for part in (what, "\n"):
        with contextlib.suppress(Exception):  # its text fails, or the stream is closed or None
            sys.stderr.write(str(part))
