"""The small process beside each bubblewrap sandbox: starts it, holds its end in hand, and outlives the service.

A program of its own (``python -I -S``, with this folder on its path). Standard input: a marshalled dict, made by
``backend.py`` (marshal, since importing json costs every start 10 ms and every sandbox a megabyte). It answers on
standard output with a line, the repr of a dict: ``{"started": pid of the namespace's first process}`` or
``{"failed": text, "errno": number or None, "step": where, "said": bytes}``; and at the end with
``{"ended": status, "oom_kills": n, "said": bytes}``. The end also stands in a file, ``<id>.ended``, for a service that was
not there to be told; who has read it removes it.

Promises: SIGTERM ends the sandbox whatever its processes do; so does the end of the service, once the lock of the data
root has not been held for the idle time; a failed start leaves nothing. A service that dies while it starts a sandbox
leaves nothing that its successor could not find: the supervisor goes on only if the service lives after the state file is
there. If it is killed itself, bubblewrap's ``--die-with-parent`` ends the sandbox, and the state file says what to remove.
Leaves to backend.py: deciding anything.
"""

from __future__ import annotations

import ctypes
import fcntl
import marshal
import os
import resource
import stat
import sys
import time
from _signal import (  # type: ignore[import-not-found]  # signal without enum, 7 ms
    SIG_BLOCK,
    SIG_UNBLOCK,
    SIGCHLD,
    SIGHUP,
    SIGINT,
    SIGKILL,
    SIGTERM,
    pthread_sigmask,
    sigtimedwait,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from interpreter.backends.bubblewrap import ending
else:
    import ending  # a neighbour, not a part of the package: that would import the whole service

_END_WITHIN_S = 4.0
_SAID_BYTES = 8192
_OOM_SCORE = "200"
"""Where the host as a whole runs out of memory, sandboxes go before everything else, and tenants' programs, which are
raised further inside, before our part of a sandbox."""

_SIGNALS = {SIGTERM, SIGINT, SIGHUP, SIGCHLD}

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_PLACE = "/tmp"  # noqa: S108 - in our private mount namespace; any directory that exists everywhere would do

_libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """The sandbox cannot be started. The text is a sentence, the number that of the system where it is known."""

    def __init__(self, text: str, errno: int | None = None) -> None:
        super().__init__(text)
        self.errno = errno


def main() -> None:
    """Run one sandbox from start to end."""
    os.umask(0o077)
    pthread_sigmask(SIG_BLOCK, _SIGNALS)
    # The first process of the namespace is reaped here if its parent dies before it, whatever the host's init does.
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with open(0, "rb", closefd=False) as file:
        spec: dict[str, Any] = marshal.loads(file.read())  # noqa: S302 - from our own backend
    groups: list[str] = [path for path, _ in spec["groups"]]
    said, said_by_child = os.pipe()
    os.set_blocking(said, False)
    os.set_blocking(said_by_child, False)  # nobody reads before the end: what does not fit is lost, never waited for
    monitor = 0
    step = "state"
    try:
        _write_state(spec, groups, None)
        if os.getppid() != spec["service"]:
            raise Failed("the service ended")
        step = "fork"
        child = _fork(spec, said_by_child)
        monitor = child.pid
        step = "cgroups"
        _make_groups(spec["groups"], enter=monitor)
        step = "namespaces"
        first = child.first()
        os.close(said_by_child)
        first_fd = os.pidfd_open(first)
        if ending.parent(first) != monitor:
            raise Failed("the sandbox ended while it started")
        step = "state"
        _write_state(spec, groups, first)
    except (Failed, OSError) as error:
        _undo(spec["state"], groups, monitor)
        _report({"failed": f"{error}", "errno": error.errno, "step": step, "said": _read(said)})
        sys.exit(1)
    _report({"started": first})
    status = _watch(monitor, spec["lock"], spec["idle_s"])
    ending.kill(first_fd)
    kills = ending.oom_kills(groups)
    gone = ending.end_groups(groups, within_s=_END_WITHIN_S)
    if status is None:
        status = _reap(monitor)
    _reap_others()
    end = {"ended": status, "oom_kills": kills, "said": _read(said)}
    try:  # noqa: SIM105 - contextlib is an import too much
        _write(spec["end"], end)
    except OSError:
        pass  # no room: whoever listens is told all the same
    if gone:
        _remove(spec["state"])
    _report(end)


def _undo(state: str, groups: list[str], monitor: int) -> None:
    """Leave nothing of a start that failed. monitor: 0 if there is none yet."""
    if monitor:
        os.kill(monitor, SIGKILL)
    if ending.end_groups(groups, within_s=_END_WITHIN_S):
        _remove(state)
    _reap_others()


def _watch(monitor: int, lock: str, idle_s: float) -> int | None:
    """Wait until the sandbox ended (return its status) or has to be ended (return None)."""
    seen = time.monotonic()
    while True:
        arrived = sigtimedwait(_SIGNALS, min(15.0, max(0.1, idle_s / 4)))
        if arrived is not None and arrived.si_signo != SIGCHLD:
            return None
        pid, raw = os.waitpid(monitor, os.WNOHANG)
        if pid:
            return _status(raw)
        if _held(lock):
            seen = time.monotonic()
        elif time.monotonic() - seen > idle_s:
            return None


def _held(lock: str) -> bool:
    """Whether a process holds the lock.

    Found in the kernel's list where possible: trying to take it could make a service's start fail in that moment. Only
    where it is not found is it tried, shared: some file systems (btrfs, overlays) have other numbers in the list.
    """
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        inode = f":{os.fstat(descriptor).st_ino} "
        if any("FLOCK" in line and inode in line for line in ending.read("/proc/locks").splitlines()):
            return True
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _reap(monitor: int) -> int:
    """Return the status of the monitor, which has been killed or is about to end."""
    deadline = time.monotonic() + _END_WITHIN_S
    while True:
        pid, raw = os.waitpid(monitor, os.WNOHANG)
        if pid:
            return _status(raw)
        if time.monotonic() > deadline:
            os.kill(monitor, SIGKILL)  # our own child, not yet reaped: the pid is still its own
            deadline += _END_WITHIN_S
        sigtimedwait({SIGCHLD}, 0.05)


def _reap_others() -> None:
    deadline = time.monotonic() + _END_WITHIN_S
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            sigtimedwait({SIGCHLD}, 0.05)


def _status(raw: int) -> int:
    code = os.waitstatus_to_exitcode(raw)
    return code if code >= 0 else 128 - code


def _make_groups(groups: list[tuple[str, list[tuple[str, str]]]], *, enter: int) -> None:
    """Make the cgroups, set their limits, and put ``enter`` into them.

    Limits are read back, since kernels ignore some of them quietly. The first entering takes the kernel some 10 ms (a
    grace period of RCU): the child stages its sources meanwhile.
    """
    for path, limits in groups:
        os.mkdir(path)
        for name, value in limits:
            file = f"{path}/{name}"
            with open(file, "w", encoding="ascii") as limit:
                limit.write(value)
            if ending.read(file).split() != value.split():
                raise Failed(f"the host did not take the limit {name}")
        with open(f"{path}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write(str(enter))


def _write_state(spec: dict[str, Any], groups: list[str], first: int | None) -> None:
    """Note what is to be found and removed, before there is anything and again when all is known."""
    state = {
        "id": spec["id"],
        "state": spec["state"],
        "boot": ending.boot_id(),
        "pid": os.getpid(),
        "start": ending.start_time(os.getpid()),
        "first": first,
        "first_start": first and ending.start_time(first),
        "groups": groups,
    }
    _write(spec["state"], state)


def _write(path: str, said: dict[str, Any]) -> None:
    """Write all of it or nothing."""
    new = path + ".new"
    try:
        with open(new, "w", encoding="utf-8") as file:
            file.write(repr(said))
        os.rename(new, path)
    except OSError:
        _remove(new)
        raise


def _remove(path: str) -> None:
    try:  # noqa: SIM105 - contextlib is an import too much
        os.unlink(path)
    except FileNotFoundError:
        pass


def _report(line: dict[str, Any]) -> None:
    try:  # noqa: SIM105 - contextlib is an import too much
        os.write(1, f"{line!r}\n".encode())
    except OSError:
        pass  # the service is gone


def _read(said: int) -> bytes:
    try:
        return os.read(said, _SAID_BYTES)
    except BlockingIOError:
        return b""


# --- the child that becomes bwrap -----------------------------------------------------------------------------------


class _Child:
    """bwrap's monitor, our child, from the fork to the moment when it runs."""

    def __init__(self, pid: int, go: int, failure: int, info: int) -> None:
        self.pid = pid
        self._go = go
        self._failure = failure
        self._info = info

    def first(self) -> int:
        """Let it go on, now that it is in its cgroups; return the pid of the first process in the namespace."""
        try:  # noqa: SIM105 - contextlib is an import too much
            os.write(self._go, b"1")
        except BrokenPipeError:
            pass  # it failed and says why
        failed = os.read(self._failure, 1000)
        text = b""
        while b"}" not in text and (more := os.read(self._info, 1000)):
            text += more
        for descriptor in (self._go, self._failure, self._info):
            os.close(descriptor)
        digits = text.partition(b'"child-pid": ')[2].partition(b"\n")[0].strip(b", }")
        if failed or not digits.isdigit():
            number, _, why = failed.decode(errors="replace").partition(" ")
            raise Failed(why or "bubblewrap could not make the sandbox", int(number or 0) or None)
        return int(digits)


def _fork(spec: dict[str, Any], said: int) -> _Child:
    go_by_child, go = os.pipe()
    failure, failure_by_child = os.pipe()
    info, info_by_child = os.pipe()
    filter_fd = os.memfd_create("filter")
    os.write(filter_fd, spec["seccomp"])
    os.lseek(filter_fd, 0, os.SEEK_SET)
    us = os.getpid()
    pid = os.fork()
    if not pid:
        try:
            os.close(go)
            descriptors = {spec["seccomp_fd"]: filter_fd, spec["info_fd"]: info_by_child, 1: said, 2: said}
            _become_bwrap(spec, us, go_by_child, descriptors)
        except BaseException as error:  # noqa: BLE001 - whatever it was, the parent must hear of it
            os.write(failure_by_child, f"{getattr(error, 'errno', None) or 0} {error!r}"[:900].encode())
        finally:
            os._exit(127)
    for descriptor in (go_by_child, failure_by_child, info_by_child, filter_fd):
        os.close(descriptor)
    return _Child(pid, go, failure, info)


def _become_bwrap(spec: dict[str, Any], us: int, go: int, descriptors: dict[int, int]) -> None:
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(_OOM_SCORE)
    if spec["uid"] is not None:
        _stage(spec)
    else:
        for path, base in spec["sources"]:
            os.close(_open_below(base, path))
    if not os.read(go, 1):
        raise Failed("the supervisor ended")
    os.umask(0o022)
    for number, value in spec["rlimits"]:
        _, hard = resource.getrlimit(number)
        lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (lowest, lowest))
    if spec["uid"] is not None:
        os.setgroups([])
        os.setresgid(spec["gid"], spec["gid"], spec["gid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    # From here to bwrap's own --die-with-parent. After the ids: changing them clears it.
    _libc.prctl(_PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != us:
        raise Failed("the supervisor ended")
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    for target, source in descriptors.items():
        os.dup2(source, target)
    pthread_sigmask(SIG_UNBLOCK, _SIGNALS)
    os.execve(spec["bwrap"], ["bwrap", *spec["arguments"]], {})  # noqa: S606 - no shell is meant


def _stage(spec: dict[str, Any]) -> None:
    """Show the sources, and nothing else of the host, in a tree that the scope's uid can walk; make it our root.

    A home of mode 0700 on the way to a source would stop bwrap, which is no longer root.
    """
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    sources = [(_open_below(base, path), bool(base)) for path, base in spec["sources"]]
    devices = [(name, os.open(f"/dev/{name}", os.O_PATH)) for name in _DEVICES]
    _mount("tmpfs", _PLACE, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m,nr_inodes=256")
    os.umask(0o022)
    os.chdir(_PLACE)
    for name in ("src", "room", "dev", "proc", "tmp"):
        os.mkdir(name)
    for number, (mode, size, files) in enumerate(spec["rooms"]):
        os.mkdir(f"room/{number}")
        limits = f"mode={mode},size={size},nr_inodes={files},uid={spec['uid']},gid={spec['gid']}"
        _mount("tmpfs", f"room/{number}", "tmpfs", _MS_NOSUID | _MS_NODEV, limits)
    for number, (source, tenant) in enumerate(sources):
        _bind(source, f"src/{number}", 0 if tenant else _MS_REC)
    for name, device in devices:
        _bind(device, f"dev/{name}", 0)
    _mount("/proc", "proc", None, _MS_BIND | _MS_REC)
    for name, target in spec["stage_links"]:
        os.symlink(target, name)
    _check(_libc.syscall(_SYS_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def _open_below(base: str, path: str) -> int:
    """Open the place of ``path`` below ``base`` without following any link under way; with no ``base`` as it is."""
    if not base:
        return os.open(path, os.O_PATH)
    place = os.open(base, os.O_PATH | os.O_DIRECTORY)
    for part in path.split("/"):
        try:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
        finally:
            os.close(place)
        place = below
    return place


def _bind(source: int, target: str, flags: int) -> None:
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(f"/proc/self/fd/{source}", target, None, _MS_BIND | flags)
    os.close(source)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), data and data.encode()), f"mount {target}")


def _check(result: int, call: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
