"""What a fork of the zygote does to become a process like any other, and what it needs between forks.

Used by supervisors (``wake_on_child``) and by the Python programs forked from them (``take_over``, ``settle``).
"""

from __future__ import annotations

import io
import logging
import os
import random
import signal
import sys
import threading
import time
from typing import Any, TextIO

from . import osproc, paths

_HIGHEST = 2**20
_PYTHON_IGNORES = {signal.SIGPIPE, signal.SIGXFSZ}
_PYTHON_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


class Unwind(BaseException):
    """Raised in a fork that becomes a program, to leave every frame of ours; ``sys.excepthook`` goes on from there."""


# --- SIGCHLD ends a poll --------------------------------------------------------------------------------------------

_wake_writer = -1


def wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child has ended. Once per process."""
    global _wake_writer
    reader, _wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(_wake_writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _notice)
    return reader


def close_wake(reader: int) -> None:
    """Close what ``wake_on_child`` made in the parent. For a fork, after ``signal.set_wakeup_fd(-1)``."""
    os.close(reader)
    os.close(_wake_writer)


def drain(reader: int) -> None:
    """Read what woke us."""
    try:
        while os.read(reader, 512):
            pass
    except BlockingIOError:
        return


def _notice(_number: int, _frame: object) -> None:
    """Python writes to the wake-up descriptor only for signals that have a handler."""


# --- becoming a program ---------------------------------------------------------------------------------------------


def leave_supervisor() -> None:
    """Make a fork of a supervisor a process of its own: session, and signals as a Python has them at its start."""
    signal.set_wakeup_fd(-1)
    for number in _PYTHON_SIGNALS:
        if number in _PYTHON_IGNORES:
            signal.signal(number, signal.SIG_IGN)
        elif number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        elif signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    os.setsid()


def take_over(descriptors: list[int]) -> None:
    """Make these the descriptors 0, 1, 2, … and close all others; others of the same user may look in from now on.

    Nothing of ours may be left open when the first byte of tenant code runs.
    """
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place, inheritable=place < 3)
    os.closerange(len(descriptors), _HIGHEST)
    osproc.set_dumpable(dumpable=True)
    osproc.make_first_to_go()


def rehearse() -> None:
    """Do what ``take_over`` does, as far as nobody notices."""
    osproc.set_dumpable(dumpable=False)
    osproc.make_first_to_go()


def settle(env: dict[str, str], argv: list[str]) -> None:
    """Give this process the state that a Python started with ``env`` and ``argv`` has before its first line runs."""
    set_environment(env)
    if "TZ" in env:
        time.tzset()
    sys.argv = argv
    sys.orig_argv = ["python", *argv]
    _open_streams()
    paths.restore()
    _use_proxies()
    random.seed()
    logging._startTime = time.time()  # type: ignore[attr-defined]  # private to CPython
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # private to CPython


def _use_proxies() -> None:
    """Do what the start of an interpreter does for them."""
    if use_proxies := getattr(sys.modules.get("sitecustomize"), "use_proxies", None):
        use_proxies()


def set_environment(env: dict[str, str]) -> None:
    """Make ``env`` the environment of this process, with as few changes as that takes."""
    now = dict(os.environ)
    if now != env:
        for name in now.keys() - env.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in env.items() if now.get(name) != value})


class _Baseline:
    """What a plain interpreter has, noted before anything else was imported."""

    def __init__(self) -> None:
        self.encoding = sys.stdout.encoding
        self.errors = {"stdin": sys.stdin.errors, "stdout": sys.stdout.errors, "stderr": sys.stderr.errors}


_baseline = _Baseline()


def _open_streams() -> None:
    """Make sys.stdin, stdout and stderr anew, as the interpreter does at its start for what is no terminal."""
    buffered = not os.environ.get("PYTHONUNBUFFERED")
    for name, descriptor, mode in (("stdin", 0, "rb"), ("stdout", 1, "wb"), ("stderr", 2, "wb")):
        stream = _stream(name, descriptor, mode, buffered=buffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(name: str, descriptor: int, mode: str, *, buffered: bool) -> TextIO:
    size = -1 if buffered or mode == "rb" else 0
    buffer: Any = open(descriptor, mode, size, closefd=False)  # noqa: SIM115 - lives as long as the process
    getattr(buffer, "raw", buffer).name = f"<{name}>"
    stream: Any = io.TextIOWrapper(
        buffer,
        encoding=_baseline.encoding,
        errors=_baseline.errors[name],
        newline="\n",
        line_buffering=buffered and name == "stderr",
        write_through=not buffered,
    )
    stream.mode = mode[0]
    return stream  # type: ignore[no-any-return]  # TextIOWrapper, which a variable class hides
