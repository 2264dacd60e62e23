"""The bubblewrap backend: what this host can do, starting sandboxes, and removing what an earlier service left.

Promises: every refusal says what is missing and what to do; nothing falls back to something weaker in silence. The only
weaker mode, one tenant under the service's own uid where the service is not root, says so in ``check``.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import marshal
import os
import platform
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

from sandboxd import protocol

from interpreter import shortage
from interpreter.backends import environment as environments
from interpreter.backends import inside
from interpreter.backends.base import (
    Backend,
    BackendError,
    BackendUnavailable,
    Limits,
    Sandbox,
    SandboxId,
    SandboxSpec,
)
from interpreter.backends.boot import environment_of_boot
from interpreter.tasks import Tasks, finish

from . import argv, cgroups, failure, host, leftovers
from .sandbox import BubblewrapSandbox, EndedSandbox

log = logging.getLogger(__name__)

_HERE = Path(__file__).parent
_SUPERVISE = "import sys; sys.path.insert(0, sys.argv[1]); import supervisor; supervisor.main()"
"""Imported, not run as a script: only then is its compiled form kept, which saves 5 ms of each start."""

_SECCOMP = Path(protocol.__file__).with_name("seccomp.py")
_START_S = 10.0
_SECCOMP_FD, _INFO_FD = 100, 101
Boot = Callable[[str], list[str]]


class BubblewrapBackend(Backend):
    """Makes sandboxes with ``bwrap``.

    root: data directory of the service, 0700; its ``.run`` gets our state files. lock: file that the running service
    holds by flock; idle_s: a sandbox ends when nobody has held it for so long. probe_uid: kernel id for the probe of
    ``check``, one that no scope has; None: the service has no ids to give. boot: makes another command of the
    configuration than that of the real boot process.
    """

    name = "bubblewrap"

    def __init__(
        self,
        *,
        root: Path,
        lock: Path,
        idle_s: float,
        probe_uid: int | None,
        venv: Path | None = None,
        boot: Boot | None = None,
    ) -> None:
        self._root = root.resolve()
        self._run = self._root / ".run"
        self._lock = lock
        self._idle_s = idle_s
        self._probe_uid = probe_uid
        self._venv = venv
        self._boot = boot
        self._is_root = os.geteuid() == 0
        self.single_tenant = not self._is_root
        self._tasks = Tasks()
        self._sandboxes: WeakSet[BubblewrapSandbox] = WeakSet()
        self._prefix = "cellbox-" + hashlib.sha256(os.fsencode(self._root)).hexdigest()[:8] + "-"
        self._bwrap = ""
        self._filter = b""
        self._cgroups: cgroups.Cgroups | None = None
        self._environment: environments.Environment | None = None

    async def check(self) -> list[str]:
        """Prove it by starting a sandbox with the real flags, whose program ends when it sees a file in its link directory."""
        try:
            await self._check()
        except (OSError, subprocess.SubprocessError) as error:
            log.error("sandboxes cannot be tried", exc_info=error)
            cause = shortage.told(getattr(error, "errno", None)) or "the log of the service has the reason"
            raise BackendUnavailable(f"the host did not let bubblewrap be tried: {cause}") from error
        return list(self._warnings())

    async def _check(self) -> None:
        self._bwrap = await asyncio.to_thread(host.find_bwrap)
        if self._is_root and not self._probe_uid:
            raise BackendUnavailable(
                "bubblewrap as root needs ids for the scopes: set SANDBOX_UID_BASE or SANDBOX_UID, or run as another"
                " user"
            )
        found = await asyncio.to_thread(cgroups.detect)
        # Asked again while the service runs: limits that were there once are never done without.
        if found is None and (self._is_root or self._cgroups is not None):
            raise BackendUnavailable(failure.NO_CGROUPS)
        self._cgroups = found
        self._run.mkdir(mode=0o755, parents=True, exist_ok=True)
        await asyncio.to_thread(self._prepare)
        await self._probe()

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Start the supervisor and wait until the first process of the namespace exists."""
        self._refuse_wrong_ids(spec)
        boot = (self._boot or inside.boot_command)(inside.boot_config(spec))
        return await self._start(spec, boot)

    async def adoptable(self) -> list[Sandbox]:
        """Return handles on what the state files of this data root lead to."""
        alive: list[tuple[leftovers.State, int]] = []
        ended: list[tuple[SandboxId, leftovers.End]] = []

        def look() -> None:
            alive.extend(leftovers.adoptable(self._run, self._prefix))
            ended.extend(leftovers.ended(self._run, {state.id for state, _ in alive}))

        try:
            await finish(asyncio.to_thread(look), within_s=_START_S)
        except BaseException as error:
            for _, pidfd in alive:
                os.close(pidfd)
            if isinstance(error, OSError):
                cause = shortage.told(error.errno) or "the log of the service has the reason"
                raise BackendUnavailable(f"what an earlier service left could not be looked for: {cause}") from error
            raise
        found: list[Sandbox] = [self._adopt(state, pidfd) for state, pidfd in alive]
        return found + [EndedSandbox(ident, end, self._run / f"{ident}{leftovers.ENDED}") for ident, end in ended]

    async def remove_leftovers(self, keep: frozenset[SandboxId] = frozenset()) -> int:
        """End what the state files and cgroups of this data root name."""
        groups = self._cgroups.names(self._prefix) if self._cgroups else {}
        return await asyncio.to_thread(leftovers.remove, self._run, self._prefix, groups, keep, within_s=_START_S)

    def groups_left(self) -> list[str]:
        """Return the names of the cgroups that there are of this data root's sandboxes."""
        return sorted(self._cgroups.names(self._prefix)) if self._cgroups else []

    async def aclose(self) -> None:
        """End our own tasks; sandboxes that have not been stopped go on with their supervisors."""
        for sandbox in list(self._sandboxes):
            sandbox.release()
        await self._tasks.aclose(within_s=5)

    # --- starting ---------------------------------------------------------------------------------------------------

    async def _start(self, spec: SandboxSpec, boot: list[str]) -> Sandbox:
        state = self._run / f"{spec.id}{leftovers.STATE}"
        groups = self._cgroups.groups(self._prefix + spec.id, spec.limits) if self._cgroups else []
        wanted = self._supervisor_spec(spec, boot, groups, state)
        try:
            process = self._supervisor(wanted)
        except OSError as error:
            raise failure.of_error(error) from error
        try:
            supervisor = os.pidfd_open(process.pid)
        except OSError as error:
            await finish(asyncio.to_thread(_end, process, state.with_suffix(leftovers.ENDED)), within_s=2 * _START_S)
            raise failure.of_error(error) from error
        process.returncode = (
            0  # It is held by its pidfd from now on; else the object warns, when it goes, that it goes on.
        )
        paths = [path for path, _ in groups]
        sandbox = BubblewrapSandbox(spec.id, supervisor, paths, state, self._tasks, reports=process.stdout)
        self._sandboxes.add(sandbox)
        try:
            await asyncio.wait([sandbox.started], timeout=_START_S)
            report = sandbox.started.result() if sandbox.started.done() else None
            if not report or "started" not in report:
                log.error("a sandbox could not be started", extra={"sandbox": spec.id, "report": repr(report)[:4000]})
                raise failure.of_report(report)
        except BaseException:
            await finish(sandbox.stop(), within_s=_START_S)
            raise
        return sandbox

    def _adopt(self, state: leftovers.State, supervisor: int) -> Sandbox:
        file = self._run / f"{state.id}{leftovers.STATE}"
        sandbox = BubblewrapSandbox(state.id, supervisor, state.groups, file, self._tasks, first=state.first)
        self._sandboxes.add(sandbox)
        return sandbox

    def _supervisor(self, wanted: dict[str, Any]) -> subprocess.Popen[bytes]:
        source = os.memfd_create("spec")
        try:
            os.write(source, marshal.dumps(wanted))
            os.lseek(source, 0, os.SEEK_SET)
            return subprocess.Popen(  # a vfork, a millisecond
                [sys.executable, "-I", "-S", "-c", _SUPERVISE, str(_HERE)],
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        finally:
            os.close(source)

    def _supervisor_spec(
        self, spec: SandboxSpec, boot: list[str], groups: list[cgroups.Group], state: Path
    ) -> dict[str, Any]:
        if self._environment is None:
            raise BackendUnavailable("the bubblewrap backend has not been checked")
        links, top = host.top_level()
        shown = argv.binds(spec, self._environment, top)
        dropping = spec.uid is not None and self._is_root
        sources = argv.staged(len(shown)) if dropping else [str(bind.source) for bind in shown]
        writable = inside.rooms(spec.limits.tmp_mib)
        stage_links = [*links.items(), ("usr", "src/0")]
        stage_links += [
            (bind.target[1:], f"src/{number}") for number, bind in enumerate(shown) if bind.target[1:] in top
        ]
        return {
            "id": str(spec.id),
            "service": os.getpid(),
            "state": str(state),
            "end": str(state.with_suffix(leftovers.ENDED)),
            "lock": str(self._lock),
            "idle_s": self._idle_s,
            "groups": groups,
            "rlimits": host.rlimits(spec.limits, limited=bool(groups)),
            "uid": spec.uid if dropping else None,
            "gid": spec.gid,
            "sources": [self._source(bind) for bind in shown],
            "rooms": [(room.mode, room.bytes, room.files) for room in writable],
            "stage_links": stage_links,
            "bwrap": self._bwrap,
            "seccomp": self._filter,
            "seccomp_fd": _SECCOMP_FD,
            "info_fd": _INFO_FD,
            "arguments": argv.arguments(
                shown,
                sources=sources,
                roots=links,
                writable=writable,
                made=argv.staged(len(writable), argv.ROOM) if dropping else (),
                environment=environment_of_boot(),
                command=boot,
                seccomp_fd=_SECCOMP_FD,
                info_fd=_INFO_FD,
            ),
        }

    def _source(self, bind: argv.Bind) -> tuple[str, str]:
        """Return path and base: a tenant's place is walked from the data root down, and no link is followed."""
        if not bind.tenant:
            return str(bind.source), ""
        try:
            return str(bind.source.relative_to(self._root)), str(self._root)
        except ValueError:
            return str(bind.source.relative_to("/")), "/"

    def _refuse_wrong_ids(self, spec: SandboxSpec) -> None:
        if self._is_root and (not spec.uid or not spec.gid):
            raise BackendError("a sandbox never runs with the ids of root")
        if not self._is_root and spec.uid not in (None, os.geteuid()):
            raise BackendError("only root can give a sandbox another uid")

    # --- checking ---------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Find the environment and make the filter. Blocking."""
        self._environment = environments.find(self._venv)
        emitted = subprocess.run(
            [sys.executable, "-I", str(_SECCOMP), "--emit"], capture_output=True, check=False, timeout=30
        )
        if emitted.returncode or not emitted.stdout:
            raise BackendUnavailable(f"there is no system call filter for this machine ({platform.machine()})")
        self._filter = emitted.stdout

    async def _probe(self) -> None:
        uid = self._probe_uid if self._is_root else None
        place = self._run / f"probe-{secrets.token_hex(4)}"
        place.mkdir(mode=0o755)
        try:
            for name in ("workspace", "user", "link"):
                (place / name).mkdir(mode=0o755)
                if uid and name != "link":
                    os.chown(place / name, uid, uid)
            limits = Limits(memory_mib=64, pids=16, tmp_mib=1)
            ident = SandboxId(secrets.token_hex(8))
            spec = SandboxSpec(ident, uid, uid, place / "workspace", place / "user", place / "link", limits)
            try:
                sandbox = await self._start(spec, ["/bin/sh", "-c", _PROBE])
                try:
                    (place / "link" / _PROBE_SEEN).touch()  # not before: its supervisor takes hold of it while it runs
                    async with asyncio.timeout(_START_S):
                        end = await sandbox.wait()
                finally:
                    await sandbox.stop()
            except failure.HostIsShort as error:
                raise BackendUnavailable(str(error)) from error
            except BackendUnavailable:
                raise
            except (BackendError, TimeoutError) as error:
                raise BackendUnavailable(_PROBE_FAILED) from error
            if end.status != 0:
                log.error("the probe failed", extra={"status": end.status, "said": end.said[:1000]})
                raise BackendUnavailable(_PROBE_FAILED)
        finally:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)

    def _warnings(self) -> list[str]:
        found = []
        self.limits_hold = self._cgroups is not None
        if self.single_tenant:
            found.append(
                "not running as root: one scope only, and its code runs under this user's own uid. Run as root (or use"
                " Docker) to serve several scopes apart"
            )
        if not self.limits_hold:
            found.append(
                "no writable cgroups: memory, processes and CPU of a sandbox are not limited as a whole. Run under"
                " `systemd-run --user --scope -p Delegate=yes`, or as root"
            )
        return found


_PROBE_SEEN = "go"
_PROBE = f"until [ -e {inside.LINK}/{_PROBE_SEEN} ]; do sleep 0.01; done"
_PROBE_FAILED = (
    "bubblewrap cannot make sandboxes here: unprivileged user namespaces are probably switched off. See the log for"
    " what it said; check /proc/sys/user/max_user_namespaces, kernel.unprivileged_userns_clone and"
    " kernel.apparmor_restrict_unprivileged_userns, and in a container its seccomp profile"
)


def _end(process: subprocess.Popen[bytes], told: Path) -> None:
    """End a supervisor that nobody holds, and its sandbox with it. told: where it says how, which nobody asks. Blocking."""
    with process:
        process.terminate()
        try:
            process.wait(_START_S)
        except subprocess.TimeoutExpired:
            process.kill()
    told.unlink(missing_ok=True)
