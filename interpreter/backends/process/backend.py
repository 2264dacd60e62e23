"""The process backend: the boot process as a plain child of the service. No isolation, no limits.

Promises: says so in ``check``; ``stop`` ends the whole tree as far as it can be found (see tree.py). Sandboxes end with the
service: nothing outside them would notice that no service ever comes back, so none is left for a next one to adopt. What a
killed service could not end is removed by the next.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from weakref import WeakSet

from sandboxd.protocol import LINK_SOCKET

from interpreter.backends import environment as environments
from interpreter.backends.base import (
    Backend,
    BackendError,
    BackendUnavailable,
    Sandbox,
    SandboxExit,
    SandboxId,
    SandboxSpec,
    Stats,
)
from interpreter.backends.boot import command, encode_config, environment_of_boot
from interpreter.backends.bubblewrap import ending
from interpreter.backends.tenant_environment import tenant_environment
from interpreter.tasks import Tasks

from . import tree

log = logging.getLogger(__name__)

_MARK = "CELLBOX_SANDBOX"
_POLL_S = 0.05
_STOP_S = 5.0


class ProcessSandbox(Sandbox):
    """The boot process and what comes of it."""

    def __init__(
        self, ident: SandboxId, process: subprocess.Popen[bytes], mark: str, private: Path, tasks: Tasks
    ) -> None:
        self.id = ident
        self._process = process
        self._mark = mark
        self._private = private
        self._exit: asyncio.Future[SandboxExit] = asyncio.get_running_loop().create_future()
        tasks.start(self._watch(), name=f"watch sandbox {ident}")

    async def stop(self) -> None:
        """Kill the boot process; return when its tree is gone."""
        if not self._exit.done():
            os.kill(self._process.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
        await asyncio.wait([self._exit], timeout=_STOP_S)
        if not self._exit.done():
            raise BackendError("a sandbox could not be ended: some of its processes are still there")

    async def wait(self) -> SandboxExit:
        """Return how it ended, once all of it has."""
        return await asyncio.shield(self._exit)

    def stats(self) -> Stats:
        """Count the processes; nobody counts the memory."""
        return Stats(None, 0, 0 if self._exit.done() else tree.count(self._process.pid, self._mark))

    async def _watch(self) -> None:
        # Asked again and again, which works on every system; this backend is for development.
        while not self._has_ended():  # noqa: ASYNC110 - see above
            await asyncio.sleep(_POLL_S)
        while not await asyncio.to_thread(tree.end, self._process.pid, self._mark, within_s=_STOP_S):
            pass  # stop() says so
        await asyncio.to_thread(shutil.rmtree, self._private, ignore_errors=True)
        status = self._process.wait()  # at once; reaped only now, so that nobody took over its pid and its group
        self._exit.set_result(SandboxExit(status if status >= 0 else 128 - status))

    def _has_ended(self) -> bool:
        if sys.platform == "darwin":  # has no waitid
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


class ProcessBackend(Backend):
    """Makes sandboxes that are none. root: data directory of the service.

    The ids of a spec are not used: everything runs as the service itself.
    """

    name = "process"
    adopts = False
    spares = False
    single_tenant = True
    limits_hold = False

    def __init__(self, *, root: Path, venv: Path | None = None, boot: Callable[[str], list[str]] | None = None) -> None:
        self._venv = venv
        self._boot = boot
        self._environment: environments.Environment | None = None
        self._tasks = Tasks()
        self._sandboxes: WeakSet[ProcessSandbox] = WeakSet()
        self._prefix = f"{_MARK}={hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]}-"

    async def check(self) -> list[str]:
        """Find the environment, and warn."""
        self._environment = await asyncio.to_thread(environments.find, self._venv)
        return [
            "the process backend isolates nothing: code runs with the rights of this service, reads and writes whatever"
            " it can, and has no limits. For code that you wrote yourself only",
            "with the process backend sandboxes end with the service: a restart costs every session its variables",
        ]

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Start the boot process with the host's own paths."""
        if self._environment is None:
            raise BackendUnavailable("the process backend has not been checked")
        mark = self._prefix + spec.id
        # In the system's own place, since paths of sockets are short.
        private = Path(tempfile.mkdtemp(prefix="cellbox-"))
        (private / "link").symlink_to(spec.link_dir)
        environment = tenant_environment(user=spec.user, venv=self._environment.venv, cpus=spec.limits.cpus)
        config = encode_config(
            link=str(private / "link" / LINK_SOCKET),
            workspace=str(spec.workspace),
            user=str(spec.user),
            kernels=str(environments.kernels()),
            runtime=str(private),
            environment={
                **spec.environment,
                **environment,
                "PATH": environment["PATH"].replace(
                    "/bin:", f"/bin:{environments.node_programs(self._environment)}:", 1
                ),
                "PIP_USER": "1",  # nothing keeps programs from writing into the environment itself
                _MARK: mark.partition("=")[2],
            },
            seccomp=False,
            redial=False,  # nothing watches from outside, so a service that is gone ends it
        )
        python = self._environment.venv / "bin" / "python3"
        boot = self._boot(config) if self._boot else command(python, environments.library(), config)
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - a vfork, a millisecond
                boot,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**environment_of_boot(), _MARK: mark.partition("=")[2]},
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(private, ignore_errors=True)
            raise BackendError("the boot process could not be started") from error
        sandbox = ProcessSandbox(spec.id, process, mark, private, self._tasks)
        self._sandboxes.add(sandbox)
        return sandbox

    async def adoptable(self) -> list[Sandbox]:
        """Return none: see above."""
        return []

    async def remove_leftovers(self, keep: frozenset[SandboxId] = frozenset()) -> int:
        """End what carries the mark of this data root."""
        return await asyncio.to_thread(self._remove_leftovers, keep)

    async def aclose(self) -> None:
        """End what runs, and our own tasks."""
        for end in await asyncio.gather(*(sandbox.stop() for sandbox in self._sandboxes), return_exceptions=True):
            if end is not None:
                log.error("a sandbox could not be ended with the service", exc_info=end)
        await self._tasks.aclose(within_s=5)

    def _remove_leftovers(self, keep: frozenset[SandboxId]) -> int:
        kept = {self._prefix + ident for ident in keep}
        found = {mark: processes for mark, processes in tree.marked(self._prefix).items() if mark not in kept}
        for mark, processes in found.items():
            for pid, started in processes:
                ending.kill_if_started_at(pid, started)
                tree.end(pid, mark, within_s=_STOP_S)
        return len(found)
