"""The zygote: the boot process after it has imported everything, forking supervisors for sandboxd.

As pid 1 (or child subreaper) it also inherits what a killed supervisor leaves behind. It has forked only sandboxd and
supervisors, so any other child is such a stray and is killed at once.

Promises: one thread, no event loop, no zmq context: a fork of it is as good as new. It reads one byte and one descriptor per
request, never anything a tenant wrote.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from . import afterfork, osproc, supervise

ONE = b"1"
"""A supervisor of one program of any sort."""
RUNS = b"r"
"""A supervisor of stateless Python programs, one after the other."""

_SWEEP_EVERY_MS = 5
_END_WITHIN_S = 2.0


def serve(requests: socket.socket, daemon: int, environment: dict[str, str]) -> int:
    """Fork a supervisor for each descriptor that comes over ``requests``; return how ``daemon`` ended, once it has.

    The return is an exit status: its own, or 128+n after signal n.

    environment: of tenants' programs. Raises afterfork.Unwind in forks that become Python programs: no caller may catch it.
    """
    wake = afterfork.wake_on_child()
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    poll.register(wake, select.POLLIN)
    children = {daemon}
    ended: dict[int, int] = {}
    sweeping = False
    while True:
        for descriptor, _ in poll.poll(_SWEEP_EVERY_MS if sweeping else None):
            if descriptor == wake:
                afterfork.drain(wake)
            elif not _fork(requests, wake, children, environment):
                poll.unregister(requests)  # sandboxd is ending
        sweeping |= _reap(children, ended)
        if daemon in ended:
            return ended[daemon]
        ended.clear()
        if sweeping:
            sweeping = _kill_strays(children)


def end() -> None:
    """Kill everything below this process, within 2 s. As pid 1 exiting does the same, at once."""
    deadline = time.monotonic() + _END_WITHIN_S
    while os.getpid() != 1 and time.monotonic() < deadline:
        seen = osproc.kill_below(os.getpid())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if not seen:
            time.sleep(_SWEEP_EVERY_MS / 1000)


def _fork(requests: socket.socket, wake: int, children: set[int], environment: dict[str, str]) -> bool:
    """Fork one supervisor; False if no more requests can come. When the fork fails sandboxd sees its socket close."""
    request, descriptors = osproc.receive_with_descriptors(requests, len(ONE), 1)
    if not request:
        return False
    for descriptor in descriptors:
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            signal.set_wakeup_fd(-1)
            requests.close()
            afterfork.close_wake(wake)
            control = socket.socket(fileno=descriptor)
            if request == RUNS:
                supervise.serve_runs(control, environment)
            supervise.serve_one(control)
        os.close(descriptor)
        if pid > 0:
            children.add(pid)
    return True


def _reap(children: set[int], ended: dict[int, int]) -> bool:
    """Reap what has ended; return whether there may be strays: an unknown child, or a supervisor that was killed.

    ended: gets the exit status of each, 128+n for signal n.
    """
    strays = False
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return strays
        if pid == 0:
            return strays
        strays |= pid not in children or status != 0
        code = os.waitstatus_to_exitcode(status)
        ended[pid] = code if code >= 0 else 128 - code
        children.discard(pid)


def _kill_strays(children: set[int]) -> bool:
    """SIGKILL every child that was not forked here; return whether there was one."""
    own = os.getpid()
    strays = [entry.pid for entry in osproc.table() if entry.parent == own and entry.pid not in children]
    for pid in strays:
        osproc.kill(pid)
    return bool(strays)
