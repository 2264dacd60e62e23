"""The supervisor: a small process between sandboxd and a tenant program, so that nothing of the program outlives it.

It is a child subreaper: whatever the program leaves behind, double-forked or in sessions of its own, becomes its child.
It reports the program's pid, its end, and that all descendants are gone. It ends everything when sandboxd says so or is
no more. One kind serves one program of any sort; the other serves stateless Python programs, one after the other, and has
the process of the next one ready.

Promises: exit status 0 means that all is clean; it never handles output and keeps no descriptor of a program.
Leaves to sandboxd: clocks. To the zygote: what is left when the tenant, who has the same user, kills this process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import socket
from typing import NoReturn

from . import afterfork, ending, osproc, preloaded, programs, stateless
from .orphans import Kin
from .programs import Command, ForkedKernel, Program, PythonRun

_ABOVE = 64
"""Received descriptors are moved above this, so that putting one in its place never overwrites another."""

_GO = b"g"
_SWEEP_EVERY_MS = 3
_REST_MS = 3
"""Between a run and the fork for the next: the answer goes out first, which on few cores takes a quarter off its time."""
_IGNORED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
_ALL_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def serve_one(control: socket.socket) -> NoReturn:
    """Be the supervisor of the one program that comes over ``control``. For a fresh fork of the zygote."""
    wake, kin = _become_supervisor(control)
    request, descriptors = _receive(control)
    if not request:
        os._exit(0)
    program = programs.decode(request)
    kin.begin()
    try:
        os.chdir(program.cwd)
        pid = _spawn(program, descriptors) if isinstance(program, Command) else os.fork()
    except OSError as error:
        _tell(control, programs.FAILED, error.errno or errno.EIO)
        os._exit(0)
    if pid == 0:
        _become_kernel(program, descriptors)
    _close(descriptors)
    _tell(control, programs.STARTED, pid)
    _watch(control, wake, kin, pid)
    os._exit(0)


def serve_runs(control: socket.socket, environment: dict[str, str]) -> NoReturn:
    """Be the supervisor of each stateless Python program that comes over ``control``. For a fresh fork of the zygote.

    environment: of most programs, set ahead of time. Raises afterfork.Unwind in the forks that become programs: no caller
    may catch it.
    """
    wake, kin = _become_supervisor(control)
    preloaded.put_aside()
    afterfork.set_environment(environment)
    stay = True
    while stay:
        order, their_order = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:
            break  # at its limit of processes; sandboxd sees the socket close
        if pid == 0:
            control.close()
            order.close()
            _become_run(their_order)
        their_order.close()
        if _outlived(control, wake, pid):
            stay = _serve_run(control, order, wake, kin, pid)
        order.close()
        _wait_for_request(control, _REST_MS)
    os._exit(0)


def _serve_run(control: socket.socket, order: socket.socket, wake: int, kin: Kin, pid: int) -> bool:
    """Give the next request to ``pid``, which is ready, and see it to its end; False if there will be no more."""
    request, descriptors = _receive(control)
    if not request:
        osproc.kill(pid)
        return False
    kin.begin()
    try:
        os.chdir(programs.decode(request).cwd)
        socket.send_fds(order, [request], descriptors)
    except OSError as error:  # the directory has gone, or the tenant has killed what was ready
        osproc.kill(pid)
        _tell(control, programs.FAILED, error.errno or errno.EIO)
        return False
    _close(descriptors)
    _tell(control, programs.STARTED, pid)
    # Only now: what a tenant's code does first may be to stop us, and then nobody would learn that it has begun.
    with contextlib.suppress(OSError):
        order.send(_GO)
    return _watch(control, wake, kin, pid)


def _become_supervisor(control: socket.socket) -> tuple[int, Kin]:
    """Say that we are there; return a descriptor that becomes readable when a child has ended, and what comes out of them."""
    os.setsid()
    kin = Kin()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _tell(control, programs.READY)
    return afterfork.wake_on_child(), kin


def _outlived(control: socket.socket, wake: int, pid: int) -> bool:
    """Wait for a request, or its end; False if ``pid``, which is ready for it, was killed by then."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if wake in ready:
            afterfork.drain(wake)
            if _reap(pid)[1] is not None:
                return False
        if control.fileno() in ready:
            return True


def _wait_for_request(control: socket.socket, within_ms: int) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.poll(within_ms)


def _receive(source: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next request, b"" at the end, and its descriptors. Blocks: what is ready waits here."""
    while True:
        try:
            request, descriptors = osproc.receive_with_descriptors(
                source, programs.MAX_REQUEST, programs.MAX_DESCRIPTORS
            )
        except ConnectionResetError:
            return b"", []
        if request == programs.KILL:
            continue  # meant the program before, which had just ended
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for descriptor in descriptors]
        _close(descriptors)
        return request, moved


def _spawn(command: Command, descriptors: list[int]) -> int:
    """Start a command in a session of its own, with ``descriptors`` as 0, 1, 2, … and no others; return its pid."""
    path = shutil.which(command.argv[0], path=command.env.get("PATH", os.defpath))
    if path is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    actions = [(os.POSIX_SPAWN_DUP2, descriptor, place) for place, descriptor in enumerate(descriptors)]
    pid = os.posix_spawn(
        path, command.argv, command.env, file_actions=actions, setsid=True, setsigmask=[], setsigdef=_ALL_SIGNALS
    )
    osproc.make_first_to_go(pid)
    return pid


def _become_kernel(program: Program, descriptors: list[int]) -> NoReturn:
    afterfork.leave_supervisor()
    afterfork.take_over(descriptors)
    if not isinstance(program, ForkedKernel):
        raise TypeError("stateless programs are served by serve_runs")
    afterfork.settle(program.env, ["kernel.py", "-f", program.connection_file])
    ending.finish(preloaded.kernel(program.name).run(program.connection_file))


def _become_run(order: socket.socket) -> NoReturn:
    """Be ready, and become the stateless program that comes over ``order``. Ends by raising afterfork.Unwind."""
    afterfork.leave_supervisor()
    stateless.rehearse()
    request, descriptors = _receive(order)
    if not request:
        os._exit(0)
    if order.recv(1) != _GO:
        os._exit(0)
    order.detach()  # closed with all others
    program = programs.decode(request)
    os.chdir(program.cwd)
    afterfork.take_over(descriptors)
    if not isinstance(program, PythonRun):
        raise TypeError("only stateless programs are served here")
    stateless.begin(program)


def _watch(control: socket.socket, wake: int, kin: Kin, program: int) -> bool:
    """Return when the program and all its descendants are gone, however long that takes; False if sandboxd is gone too."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake, select.POLLIN)
    over, connected, ended = False, True, 0
    while True:
        any_left, status = _reap(program)
        if status is not None:
            over, ended = True, status
        if not any_left and not kin.orphaned():
            _tell(control, programs.CLEAN, ended)
            return connected
        if status is not None:
            _tell(control, programs.ENDED, status)
        if over:
            kin.kill()
        for descriptor, _ in poll.poll(_SWEEP_EVERY_MS if over else None):
            if descriptor == wake:
                afterfork.drain(wake)
                continue
            over = True  # told so, or sandboxd is no more
            if not _hear(control):
                poll.unregister(control)
                connected = False


def _reap(program: int) -> tuple[bool, int | None]:
    """Reap what has ended. Return whether any child is left, and how the program ended if it is among them."""
    status = None
    while True:
        try:
            pid, waited = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False, status
        if pid == 0:
            return True, status
        if pid == program:
            status = os.waitstatus_to_exitcode(waited)


def _tell(control: socket.socket, kind: bytes, value: int = 0) -> None:
    try:
        control.send(programs.pack(kind, value))
    except OSError:
        return  # sandboxd is no more: the same end is read from the socket, and acted on


def _hear(control: socket.socket) -> bool:
    """Read what sandboxd said, which can only be ``KILL``; False if it is no more."""
    try:
        return bool(control.recv(len(programs.KILL)))
    except ConnectionResetError:
        return False


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
