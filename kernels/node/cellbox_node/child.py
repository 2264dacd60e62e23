"""The Node process that runs the cells, and the pipes to it.

Promises: it never outlives this process, nor any process of its own group it; messages to it never block; whatever a cell writes
into its own descriptors, what is no message is left out, and a message has at most ``_MAX_LINE`` bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cellbox_wire import Pump, ends, processes

from .memory import heap_mib

_PROGRAM = Path(__file__).parents[1] / "program/main.cjs"
_OPTIONS = [
    "--disable-warning=ExperimentalWarning",  # of the two below, and of what strips types
    "--experimental-async-context-frame",  # whose output it is, at no cost: else promises take twice as long
    "--no-force-async-hooks-checks",  # a callback of setImmediate that is interrupted would end the process
]
_MAX_LINE = 40 * 2**20
_PR_SET_PDEATHSIG = 1


class Child:
    """One Node process, running since it was made. Made in the loop's thread, which it needs to live on.

    receive: called with each message. ended: called once with the exit code, or minus the signal, when it has ended and all it
    said has been received. outputs: descriptors that become its standard output and error.
    """

    def __init__(
        self, receive: Callable[[dict[str, Any]], None], ended: Callable[[int], None], outputs: tuple[int, int]
    ) -> None:
        self._receive = receive
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._rest: list[bytes] = []
        self._size = 0
        self._unsent = b""
        theirs: list[int] = []
        try:
            requests_theirs, self._requests = _pipe(theirs, ours=1)
            answers_theirs, answers = _pipe(theirs, ours=0)
            control_theirs, self._control = _pipe(theirs, ours=1)
            passed = (requests_theirs, answers_theirs, control_theirs)
            self._process = _spawn(passed, outputs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        os.set_blocking(self._requests, False)
        os.set_blocking(self._control, False)
        self._answers = Pump(answers, self._take, prompt=True)
        ends.watch(self._process.pid, self._on_end)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, at once or as it is read."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self._write()

    def interrupt(self, number: int) -> None:
        """Interrupt the execution of that number, and what it waits for: the children in its process group."""
        with contextlib.suppress(OSError):  # full: then it has been told often enough
            os.write(self._control, b"%d\n" % number)
        self._signal(signal.SIGINT)

    def kill_children(self, since: int) -> None:
        """SIGKILL what it has started from ``since`` on, in ``processes.ticks``."""
        processes.kill_below(self._process.pid, since)

    def kill(self) -> None:
        """End it and its process group. May be repeated; ``ended`` is called when it is done."""
        self._signal(signal.SIGKILL)

    def drain(self) -> None:
        """Receive what it has said until now."""
        self._answers.drain()

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _on_end(self) -> None:
        self._signal(signal.SIGKILL)  # its group has its number as long as it is not reaped
        status = self._process.wait()
        self._answers.drain()
        self._answers.close()
        self._loop.remove_writer(self._requests)
        os.close(self._requests)
        os.close(self._control)
        self._unsent = b""
        self._ended(status)

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._requests, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # it has ended, or a cell has closed the other end: then nothing comes back
            self._unsent = b""
            self.kill()
        if self._unsent:
            self._loop.add_writer(self._requests, self._write)
        else:
            self._loop.remove_writer(self._requests)

    def _take(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = b"".join([*self._rest, line])
            self._rest, self._size = [], 0
            if whole:
                self._message(whole)
        self._size += len(rest)
        if rest and self._size <= _MAX_LINE:
            self._rest.append(rest)
        elif rest:
            self._rest = [b"?"]  # too long: no message begins so

    def _message(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(message, dict):
            self._receive(message)


def _pipe(theirs: list[int], *, ours: int) -> tuple[int, int]:
    """Return the ends of a new pipe, theirs first; ours is the one for reading (0) or writing (1)."""
    ends = os.pipe2(os.O_CLOEXEC)
    theirs.append(ends[1 - ours])
    return ends[1 - ours], ends[ours]


def _spawn(passed: tuple[int, ...], outputs: tuple[int, int]) -> subprocess.Popen[bytes]:
    heap = heap_mib()
    options = _OPTIONS if heap is None else [*_OPTIONS, f"--max-old-space-size={heap}"]
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return subprocess.Popen(
        ["node", *options, str(_PROGRAM), *map(str, passed)],  # noqa: S607 - the one on the PATH is meant
        stdin=subprocess.DEVNULL,
        stdout=outputs[0],
        stderr=outputs[1],
        pass_fds=passed,
        process_group=0,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - a busy loop would not notice the end of its pipe
        env=os.environ | {"NO_COLOR": "1", "TERM": "dumb"},
    )
