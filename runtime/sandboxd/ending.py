"""How a Python program in a fork ends: in the interpreter's own order, without the 20 ms of taking it apart.

What a program can notice of ``Py_FinalizeEx`` is done: threads are joined, ``atexit`` runs, streams are flushed, objects of
the program's modules are destroyed, C's buffers are written. What only frees memory is left to the system.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import traceback
from typing import NoReturn

from . import osproc

_FLUSH_FAILED = 120
"""The interpreter's exit code when standard output could not be written."""

_plain: set[str] = set()


def note_modules() -> None:
    """Note, before the program runs, which modules are not its own."""
    _plain.update(sys.modules)


def rehearse() -> None:
    """Do what an end does, as far as it changes nothing."""
    _flush(tell=False)
    _destroy()
    osproc.libc.fflush(None)


def forget_last() -> None:
    """Let ``sys`` forget the last uncaught error."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)


def finish(status: int, *, by_interrupt: bool = False) -> NoReturn:
    """End the process with exit code ``status``, or by SIGINT as an interpreter does after a KeyboardInterrupt."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # private to CPython
    except BaseException:  # noqa: BLE001 - an interrupt while joining; the interpreter goes on too
        traceback.print_exc()
    atexit._run_exitfuncs()
    lost = _flush(tell=True)
    _destroy()
    lost |= _flush(tell=False)
    osproc.libc.fflush(None)
    if by_interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(_FLUSH_FAILED if lost else status & 0xFF)


def _flush(*, tell: bool) -> bool:
    """Flush the standard streams, replaced ones too; return whether anything was lost thereby. tell: about stdout."""
    lost = False
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        stream = getattr(sys, name, None)
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception as error:  # noqa: BLE001 - a stream of the program's own
            lost = True
            if tell and name == "stdout":
                _say_ignored(stream, error)
    return lost


def _say_ignored(stream: object, error: Exception) -> None:
    try:
        about = "on flushing sys.stdout:" if sys.version_info >= (3, 13) else f"in: {stream!r}"
        sys.stderr.write(f"Exception ignored {about}\n{type(error).__name__}: {error}\n")
    except Exception:  # noqa: BLE001 - closed, replaced or None
        return


def _destroy() -> None:
    """Let go of the program's modules, so that ``__del__`` runs and files are closed."""
    forget_last()
    sys.modules.pop("__main__", None)
    for name in [name for name in sys.modules if name not in _plain]:
        del sys.modules[name]
    gc.collect()
