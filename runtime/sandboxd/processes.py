"""Starting, watching and ending the processes that run tenant code, from inside sandboxd.

Owns the socket to the zygote (``zygote.py``) and one control socket per supervisor (``supervise.py``). A program is spawned
by asking the zygote for a supervisor and handing that one the program over its own control socket, so the zygote itself
never sees a byte of a request; one supervisor is kept ready once the first program has run.

Promises: ``Process.wait`` and ``Process.gone`` end, whatever the tenant does to its own processes or to the supervisor:
all that can be done from inside is done, and ``gone`` says whether it was enough.
Leaves to its users: timeouts of programs, reading output, and what an exit status means.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from typing import NamedTuple

from . import osproc, programs, zygote
from .programs import Command, Program, PythonKernel, PythonRun

__all__ = ["Command", "Exited", "Process", "Program", "PythonKernel", "PythonRun", "SpawnError", "Zygote"]

CLEAN_WITHIN_S = 1.0
"""From the end of a program, or the first ``kill``, to the end of all its descendants."""

START_WITHIN_S = 5.0
"""From the request to the program's pid. A fork takes milliseconds; a starved machine a second."""

_SPARE_FOR_S = 10.0
"""A supervisor kept ready saves 3 ms of a run and costs a megabyte: not kept while nothing happens."""


class SpawnError(Exception):
    """The program could not be started. Text: one sentence for the caller. errno: of the call that failed, if one did."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class Exited(NamedTuple):
    """status: exit code, or minus the number of the signal that ended it; None: unknown, since the supervisor is gone."""

    status: int | None


class Process:
    """A spawned program and everything that came out of it. Made by ``Zygote.spawn``."""

    def __init__(self, supervisor: _Supervisor, pid: int) -> None:
        self.pid = pid
        """Of the program, which leads a session and a process group of that number."""
        self._supervisor = supervisor

    async def wait(self) -> Exited:
        """Return how the program ended, once it has. Any number may wait, at any time; cancelling is harmless."""
        return await asyncio.shield(self._supervisor.exited)

    async def gone(self) -> bool:
        """Return True once the program and all its descendants are ended and reaped.

        False if that is not so ``CLEAN_WITHIN_S`` after the program's end (or after the first ``kill``), or if the supervisor was
        killed: then the sandbox is to be stopped from outside. Any number may wait, at any time.
        """
        return await asyncio.shield(self._supervisor.clean)

    def signal_group(self, number: int) -> None:
        """Send a signal to the program's process group; nothing happens once the program has ended."""
        if not self._supervisor.exited.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the program and every descendant, now. May be repeated; returns at once, ``gone`` says when it is done."""
        self.signal_group(signal.SIGKILL)
        self._supervisor.kill()

    def descendants(self) -> list[tuple[int, int]]:
        """Return (pid, start time in ticks since boot) of every live process below the program. Reads /proc, about 1 ms."""
        return [(entry.pid, entry.started) for entry in osproc.below(self.pid)]


class Zygote:
    """The way to new processes. ``requests``: our end of the socket to the zygote. To be used in the loop's thread."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        requests.setblocking(False)
        self._spare: _Supervisor | None = None
        self._spare_timer: asyncio.TimerHandle | None = None

    async def spawn(
        self, program: Program, *, stdin: int, stdout: int, stderr: int, extra: Sequence[int] = ()
    ) -> Process:
        """Start ``program``; return once it exists.

        stdin, stdout, stderr become its descriptors 0, 1, 2 and ``extra`` its descriptors 3, 4, …; the caller closes its own.
        It starts with default signals, an own session, and no other descriptor. Raises SpawnError. Cancelled: nothing is left.
        """
        request = programs.encode(program)
        descriptors = [stdin, stdout, stderr, *extra]
        if len(request) > programs.MAX_REQUEST:
            raise SpawnError("The environment is too large.")
        supervisor = self._take_spare()
        if supervisor is None or not supervisor.send(request, descriptors):
            supervisor = self._fork()
            if not supervisor.send(request, descriptors):
                raise SpawnError("The sandbox cannot start processes any more.")
        try:
            async with asyncio.timeout(START_WITHIN_S):
                pid = await asyncio.shield(supervisor.started)
        except TimeoutError:
            supervisor.abandon()
            raise SpawnError(f"The program did not start within {START_WITHIN_S:.0f} s.") from None
        except BaseException:
            supervisor.abandon()
            raise
        self._keep_spare()
        return Process(supervisor, pid)

    def close(self) -> None:
        """Start no more. Programs that run are ended by their supervisors, which see their sockets end."""
        self._drop_spare()
        self._requests.close()

    def _take_spare(self) -> _Supervisor | None:
        if self._spare_timer is not None:
            self._spare_timer.cancel()
        spare, self._spare = self._spare, None
        return spare

    def _keep_spare(self) -> None:
        if self._spare is None:
            with contextlib.suppress(SpawnError):
                self._spare = self._fork()
                self._spare_timer = asyncio.get_running_loop().call_later(_SPARE_FOR_S, self._drop_spare)

    def _drop_spare(self) -> None:
        spare = self._take_spare()
        if spare is not None:
            spare.abandon()

    def _fork(self) -> _Supervisor:
        """Ask the zygote for a supervisor. It need not exist yet when this returns."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._requests, [zygote.SPAWN], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise SpawnError("The sandbox cannot start processes now.", error.errno) from error
        return _Supervisor(ours)


class _Supervisor:
    """Our side of one supervisor: what it reported, and what we make of its silence.

    started: the program's pid, or SpawnError. exited, clean: as ``Process`` tells them; both are always set in the end.
    """

    def __init__(self, control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._control = control
        self._pid = 0
        self._pidfd = -1
        self._timer: asyncio.TimerHandle | None = None
        self.started: asyncio.Future[int] = loop.create_future()
        self.exited: asyncio.Future[Exited] = loop.create_future()
        self.clean: asyncio.Future[bool] = loop.create_future()
        control.setblocking(False)
        loop.add_reader(control, self._readable)

    def send(self, request: bytes, descriptors: Sequence[int]) -> bool:
        """Hand over the program; False if the supervisor is gone already."""
        try:
            socket.send_fds(self._control, [request], descriptors)
        except OSError:
            self.abandon()
            return False
        return True

    def kill(self) -> None:
        """Have everything below the supervisor killed, and be content with no more than ``CLEAN_WITHIN_S``."""
        if self.clean.done():
            return
        with contextlib.suppress(OSError):
            self._control.send(programs.KILL)
        self._expect_clean()

    def abandon(self) -> None:
        """Close the socket: the supervisor ends everything below it and itself."""
        self._close(started_error="The program was not started.")

    def _readable(self) -> None:
        try:
            data = self._control.recv(64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(started_error="No process could be started in the sandbox: its limit may be reached.")
            return
        kind, value, self._pid = programs.unpack(data)
        if kind == programs.STARTED:
            self._watch(value)
            if not self.started.done():
                self.started.set_result(value)
        elif kind == programs.FAILED:
            self._close(started_error=os.strerror(value), errno=value)
        elif kind == programs.ENDED:
            self._set_exited(value)
            self._expect_clean()
        else:
            self._close(clean=True)

    def _watch(self, pid: int) -> None:
        """Notice the program's end without the supervisor too: the tenant may have stopped that one."""
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            return  # reaped already, or no pidfd here (then a frozen supervisor is noticed by the timeout's kill)
        self._loop.add_reader(self._pidfd, self._ended)

    def _ended(self) -> None:
        self._close_pidfd()
        self._expect_clean()

    def _expect_clean(self) -> None:
        if self._timer is None and not self.clean.done():
            self._timer = self._loop.call_later(CLEAN_WITHIN_S, self._overdue)

    def _overdue(self) -> None:
        """The supervisor is stopped, or something escapes it: have the zygote kill what becomes its own thereby.

        While the socket is open its other end is alive, so the number still means that process.
        """
        if self._pid:
            osproc.kill(self._pid)
        self._close()

    def _set_exited(self, status: int | None) -> None:
        self._close_pidfd()
        if not self.exited.done():
            self.exited.set_result(Exited(status))

    def _close(self, *, clean: bool = False, started_error: str = "", errno: int | None = None) -> None:
        """Settle what is open, and close. May be called again."""
        if self._timer is not None:
            self._timer.cancel()
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
            self._control.close()
        if not self.started.done():
            self.started.set_exception(SpawnError(started_error, errno))
            self.started.exception()  # a spare has nobody who waits for it
        self._set_exited(None)
        if not self.clean.done():
            self.clean.set_result(clean)

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
