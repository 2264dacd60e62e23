"""Starting, watching and ending the processes that run tenant code, from inside sandboxd.

Owns the socket to the zygote (``zygote.py``) and one control socket per supervisor (``supervise.py``). A program is
spawned by asking the zygote for a supervisor and handing that one the program over its own control socket, so the
zygote itself never sees a byte of a request. Supervisors of stateless Python programs are used again.

Promises: ``Process.wait`` and ``Process.gone`` end once the program has, whatever the tenant does to its own processes
or to the supervisor: all that can be done from inside is done, and ``gone`` says whether it was enough.
Leaves to its users: timeouts of programs, reading output, and what an exit status means.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

from . import osproc, programs, zygote
from .programs import Command, ForkedKernel, Program, PythonRun

__all__ = ["Command", "Exited", "ForkedKernel", "Process", "Program", "PythonRun", "SpawnError", "Zygote"]

CLEAN_WITHIN_S = 1.0
"""From the end of a program, or the first ``kill``, to the end of all its descendants."""

START_WITHIN_S = 5.0
"""From the request to the program's pid. A fork takes milliseconds; a starved machine a second."""

_READY = 4
_READY_FOR_S = 10.0
"""So many supervisors of stateless programs wait for the next one, so long: each saves 10 ms and costs some memory."""


class SpawnError(Exception):
    """The program could not be started. Text: one sentence. errno: of the call that failed, if one did."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class Exited(NamedTuple):
    """status: exit code, or minus the number of the signal; None: unknown, since the supervisor is gone."""

    status: int | None


class Process:
    """A spawned program and everything that came out of it. Made by ``Zygote.spawn``."""

    def __init__(self, supervisor: _Supervisor) -> None:
        loop = asyncio.get_running_loop()
        self.pid = 0
        """Of the program, which leads a session and a process group of that number."""
        self._loop = loop
        self._supervisor = supervisor
        self._pidfd = -1
        self._timer: asyncio.TimerHandle | None = None
        self.started: asyncio.Future[None] = loop.create_future()
        """Done when the program exists; ``spawn`` has waited for it."""
        self._exited: asyncio.Future[Exited] = loop.create_future()
        self._clean: asyncio.Future[bool] = loop.create_future()

    async def wait(self) -> Exited:
        """Return how the program ended, once it has. Any number may wait, at any time; cancelling is harmless."""
        return await asyncio.shield(self._exited)

    async def gone(self) -> bool:
        """Return True once the program and all its descendants are ended and reaped.

        False if that is not so ``CLEAN_WITHIN_S`` after the program's end (or after the first ``kill``), or if the
        supervisor was killed: then the sandbox is to be stopped from outside. Any number may wait, at any time.
        """
        return await asyncio.shield(self._clean)

    def signal_group(self, number: int) -> None:
        """Send a signal to the program's process group; nothing happens once the program has ended."""
        if self.pid and not self._exited.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the program and every descendant, now. May be repeated; ``gone`` says when it is done."""
        self.signal_group(signal.SIGKILL)
        if not self._clean.done():
            self._supervisor.kill()
            self._expect_clean()

    def descendants(self, *, in_child: bool = False) -> list[tuple[int, int]]:
        """Return (pid, start time in ticks since boot) of each live process below the program. Takes about 1 ms.

        in_child: only of those below its children.
        """
        below = osproc.below(self.pid)
        return [(entry.pid, entry.started) for entry in below if not in_child or entry.parent != self.pid]

    def on_started(self, pid: int) -> None:
        """The supervisor says so. The program's end is then noticed without it too: the tenant may have stopped it."""
        self.pid = pid
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            pass  # reaped already, or no such call here: then only ``kill`` notices a stopped supervisor
        else:
            self._loop.add_reader(self._pidfd, self._on_pidfd)
        if not self.started.done():
            self.started.set_result(None)

    def on_ended(self, status: int | None) -> None:
        """The program has ended, as the supervisor says; None: nobody can say."""
        self._close_pidfd()
        if not self._exited.done():
            self._exited.set_result(Exited(status))
        self._expect_clean()

    def on_over(self, *, clean: bool, error: SpawnError) -> None:
        """No more will be known. error: to be raised if it never started."""
        self.on_ended(None)
        if self._timer is not None:
            self._timer.cancel()
        if not self.started.done():
            self.started.set_exception(error)
            self.started.exception()  # nobody may be waiting any more
        if not self._clean.done():
            self._clean.set_result(clean)

    def _on_pidfd(self) -> None:
        self._close_pidfd()
        self._expect_clean()

    def _expect_clean(self) -> None:
        if self._timer is None and not self._clean.done():
            self._timer = self._loop.call_later(CLEAN_WITHIN_S, self._supervisor.give_up)

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


class Zygote:
    """The way to new processes. ``requests``: our end of the socket to the zygote. To be used in the loop's thread."""

    def __init__(self, requests: socket.socket) -> None:
        requests.setblocking(False)
        self._requests = requests
        self._ready: list[_Supervisor] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def spawn(
        self, program: Program, *, stdin: int, stdout: int, stderr: int, extra: Sequence[int] = ()
    ) -> Process:
        """Start ``program``; return once it exists.

        stdin, stdout, stderr become its descriptors 0, 1, 2 and ``extra`` its descriptors 3, 4, …; the caller closes
        its own. It starts with default signals, an own session, and no other descriptor. Raises SpawnError. Cancelled:
        nothing is left.
        """
        request = programs.encode(program)
        if len(request) > programs.MAX_REQUEST:
            raise SpawnError("The environment is too large.")
        supervisor, process = self._hand_over(request, [stdin, stdout, stderr, *extra], isinstance(program, PythonRun))
        try:
            async with asyncio.timeout(START_WITHIN_S):
                await asyncio.shield(process.started)
        except TimeoutError:
            supervisor.give_up()
            raise SpawnError(f"The program did not start within {START_WITHIN_S:.0f} s.") from None
        except asyncio.CancelledError:
            supervisor.dismiss()
            raise
        return process

    def close(self) -> None:
        """Start no more. Programs that run are ended by their supervisors, which see their sockets end."""
        self._closed = True
        self._dismiss()
        self._requests.close()

    def _hand_over(self, request: bytes, descriptors: Sequence[int], is_run: bool) -> tuple[_Supervisor, Process]:
        while is_run and self._ready:
            supervisor = self._ready.pop(0)
            if (process := supervisor.send(request, descriptors)) is not None:
                return supervisor, process
        supervisor = self._fork(zygote.RUNS if is_run else zygote.ONE)
        process = supervisor.send(request, descriptors)
        if process is None:
            raise SpawnError("The sandbox cannot start processes any more.")
        return supervisor, process

    def _fork(self, kind: bytes) -> _Supervisor:
        """Ask the zygote for a supervisor. It need not exist yet when this returns."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    socket.send_fds(self._requests, [kind], [theirs.fileno()])
                except OSError:
                    ours.close()
                    raise
        except OSError as error:
            raise SpawnError("The sandbox cannot start processes now.", error.errno) from error
        return _Supervisor(ours, self._keep if kind == zygote.RUNS else _Supervisor.dismiss)

    def _keep(self, supervisor: _Supervisor) -> None:
        if self._closed or len(self._ready) >= _READY:
            supervisor.dismiss()
            return
        self._ready.append(supervisor)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_READY_FOR_S, self._dismiss)

    def _dismiss(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._ready:
            self._ready.pop().dismiss()


class _Supervisor:
    """Our side of one supervisor. when_idle: called once its program and all that came out of it are gone."""

    def __init__(self, control: socket.socket, when_idle: Callable[[_Supervisor], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._when_idle = when_idle
        self._pid = 0
        self._process: Process | None = None
        control.setblocking(False)
        self._loop.add_reader(control, self._readable)

    def send(self, request: bytes, descriptors: Sequence[int]) -> Process | None:
        """Hand over a program; None if the supervisor is gone already."""
        try:
            socket.send_fds(self._control, [request], descriptors)
        except OSError:
            self.dismiss()
            return None
        self._process = Process(self)
        return self._process

    def kill(self) -> None:
        """Have everything below the supervisor killed."""
        with contextlib.suppress(OSError):
            self._control.send(programs.KILL)

    def give_up(self) -> None:
        """It is stopped, or something escapes it: kill it, so that the zygote inherits and kills the rest.

        While the socket is open its other end is alive, so the number still means that process.
        """
        if self._pid and self._control.fileno() >= 0:
            osproc.kill(self._pid)
        self.dismiss()

    def dismiss(self, error: SpawnError | None = None) -> None:
        """Close the socket, upon which the supervisor ends what it has and itself. May be called again."""
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
            self._control.close()
        process, self._process = self._process, None
        if process is not None:
            process.on_over(clean=False, error=error or SpawnError("The program was not started."))

    def _readable(self) -> None:
        reset = False
        while self._control.fileno() >= 0:
            try:
                report = self._control.recv(64)
            except BlockingIOError:
                return
            except ConnectionResetError:
                if not reset:
                    reset = True
                    continue  # it ended without reading our KILL, which is said before what it sent: CLEAN, most often
                report = b""  # gVisor says so for good
            except OSError:
                report = b""
            if report:
                self._hear(*programs.unpack(report))
            else:
                self.dismiss(SpawnError("No process could be started in the sandbox: its limit may be reached."))

    def _hear(self, kind: bytes, value: int, pid: int) -> None:
        self._pid = pid
        process = self._process
        if process is None:
            return
        if kind == programs.STARTED:
            process.on_started(value)
        elif kind == programs.ENDED:
            process.on_ended(value)
        elif kind == programs.FAILED:
            self.dismiss(SpawnError(os.strerror(value), value))
        elif kind == programs.CLEAN:
            self._process = None
            process.on_ended(value)
            process.on_over(clean=True, error=SpawnError("The program was not started."))
            self._when_idle(self)
