"""The supervisor: a small process between sandboxd and one tenant program, so that nothing of the program outlives it.

It is a child subreaper: whatever the program leaves behind, double-forked or in sessions of its own, becomes its child. It
reports the program's pid, its end, and that all descendants are gone; then it exits. It ends everything when sandboxd says
so or is no more.

Promises: exit status 0 means that all is clean; it never handles output and keeps no descriptor of the program.
Leaves to sandboxd: clocks. To the zygote: what is left when this process is killed by the tenant, which has the same user.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import shutil
import signal
import socket
from typing import NoReturn

from . import afterfork, ending, osproc, preloaded, programs, stateless
from .programs import Command, Program, PythonKernel, PythonRun

_ABOVE = 64
"""Received descriptors are moved above this, so that putting one in its place never overwrites another."""

_SWEEP_EVERY_MS = 3
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


def run(control: socket.socket) -> NoReturn:
    """Be the supervisor of the one program that comes over ``control``. For a fresh fork of the zygote.

    Raises afterfork.Unwind in the fork that becomes a Python program: no caller may catch it.
    """
    os.setsid()
    osproc.become_subreaper()
    osproc.be_first_to_go()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    wake = afterfork.wake_on_child()
    program, descriptors = _receive(control)
    if program is None:
        os._exit(0)
    try:
        os.chdir(program.cwd)
        pid = _start(program, descriptors)
    except OSError as error:
        _tell(control, programs.FAILED, error.errno or errno.EIO)
        os._exit(0)
    for descriptor in descriptors:
        os.close(descriptor)
    _tell(control, programs.STARTED, pid)
    _watch(control, wake, pid)
    os._exit(0)


def _receive(control: socket.socket) -> tuple[Program | None, list[int]]:
    """Return the request, or None if there will be none. Blocks: a spare waits here."""
    try:
        request, descriptors, _, _ = socket.recv_fds(
            control, programs.MAX_REQUEST, programs.MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None, []
    if not request:
        return None, []
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    return programs.decode(request), moved


def _start(program: Program, descriptors: list[int]) -> int:
    """Start the program in a session of its own, with ``descriptors`` as 0, 1, 2, … and no others; return its pid."""
    if isinstance(program, Command):
        path = shutil.which(program.argv[0], path=program.env.get("PATH", os.defpath))
        if path is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        actions = [(os.POSIX_SPAWN_DUP2, descriptor, place) for place, descriptor in enumerate(descriptors)]
        return os.posix_spawn(
            path, program.argv, program.env, file_actions=actions, setsid=True, setsigmask=[], setsigdef=_ALL_SIGNALS
        )
    pid = os.fork()
    if pid == 0:
        afterfork.take_over(descriptors)
        if isinstance(program, PythonRun):
            stateless.begin(program)
        _be_kernel(program)
    return pid


def _be_kernel(program: PythonKernel) -> NoReturn:
    afterfork.settle(program.env, ["kernel.py", "-f", program.connection_file])
    ending.finish(preloaded.kernel().run(program.connection_file))


def _watch(control: socket.socket, wake: int, program: int) -> None:
    """Return when the program and all its descendants are gone, however long that takes."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake, select.POLLIN)
    ending = False
    while True:
        any_left, status = _reap(program)
        if status is not None:
            _tell(control, programs.ENDED, status)
            ending = True
        if not any_left:
            _tell(control, programs.CLEAN)
            return
        if ending:
            osproc.kill_below(os.getpid())
        for descriptor, _ in poll.poll(_SWEEP_EVERY_MS if ending else None):
            if descriptor == wake:
                afterfork.drain(wake)
            else:
                ending = True  # told so, or sandboxd is no more
                if not control.recv(len(programs.KILL)):
                    poll.unregister(control)


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
