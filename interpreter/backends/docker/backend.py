"""The docker backend: what this engine can do, starting sandboxes as containers, and finding what an earlier service left.

Promises: every refusal says what is missing and what to do; a limit that the engine did not take over ends the start; what is in
the engine under our label and is nobody's sandbox is removed, at the latest when the engine answers again; containers of
others are never touched.
Leaves to spec.py: what a container is made of; to sandbox.py: one that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from sandboxd.protocol import LINK_SOCKET

from interpreter import shortage
from interpreter.backends import inside
from interpreter.backends.base import (
    Backend,
    BackendError,
    BackendUnavailable,
    Limits,
    Sandbox,
    SandboxExit,
    SandboxId,
    SandboxSpec,
)
from interpreter.tasks import Tasks, finish

from . import failure, gvisor, image, seen, sources, spec, weaknesses
from .engine import Answer, DiskFull, Engine, EngineError, EngineGone, Follower, Listening, NotThere, Silent
from .sandbox import DockerSandbox, exit_of

log = logging.getLogger(__name__)

_START_S = 60.0
_STARTS_AT_ONCE = 8
_PROBE_S = 20.0
_EVENTS = ["create", "die", "oom", "destroy"]
_MOST_OF_IT = Limits(memory_mib=64, pids=16, tmp_mib=1)

Boot = Callable[[str], list[str]]


class DockerBackend(Backend, Listening):
    """Makes sandboxes with a Docker engine on this host.

    root: data directory of the service, 0700. idle_s: a sandbox ends when no service has come back for so long. probe_uid:
    kernel id for the probe of ``check``, one that no scope has. address: of the engine; None: as the environment says.
    boot: makes another command of the configuration than that of the real boot process.
    """

    name = "docker"

    def __init__(
        self,
        *,
        root: Path,
        idle_s: float,
        probe_uid: int,
        image: str,
        runtime: str = "",
        network: str = "none",
        address: str | None = None,
        boot: Boot | None = None,
    ) -> None:
        self._root = root.resolve()
        self._run = self._root / ".run"
        self._idle_s = idle_s
        self._probe_uid = probe_uid
        self._place = spec.Place("", image, runtime, network)
        self._boot = boot or inside.boot_command
        self._is_root = os.geteuid() == 0
        self.single_tenant = not self._is_root
        self._engine = Engine(address)
        self._tasks = Tasks()
        self._sandboxes: dict[SandboxId, DockerSandbox] = {}
        self._starting: set[SandboxId] = set()
        self._starts = asyncio.Semaphore(_STARTS_AT_ONCE)
        self._follower: Follower | None = None
        self._warnings: list[str] | None = None
        self._notices: list[str] = []
        self._cleared = False

    @property
    def instance(self) -> str:
        """What tells containers of this data root from those of others. Known after ``check``."""
        return self._place.instance

    def is_apart(self) -> bool:
        """Whether the engine has other mounts than this process."""
        return not seen.has_our_mounts(self._engine.address)

    async def check(self) -> list[str]:
        """Prove it by starting a container with the real settings; asked again, by asking the engine for the image."""
        try:
            if self._warnings is None:
                self._warnings = await self._check()
            else:
                await self._engine.call(lambda: self._engine.client.image(self._place.image))
        except NotThere as error:
            raise BackendUnavailable(failure.no_image(self._place.image)) from error
        except EngineError as error:
            raise failure.unavailable(error, self._engine.address) from error
        except OSError as error:
            cause = shortage.told(error.errno) or "the log of the service has the reason"
            raise BackendUnavailable(f"the container engine could not be tried: {cause}") from error
        return list(self._warnings)

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Create and start a container, and see that the engine has made what it was told to."""
        return await self._start(spec, self._boot(inside.boot_config(spec, orphan_s=self._idle_s)))

    async def adoptable(self) -> list[Sandbox]:
        """Return handles on the containers with our label that run, or have run."""
        try:
            listed = await self._engine.call(lambda: self._engine.client.containers(self._label))
        except EngineError as error:
            raise failure.unavailable(error, self._engine.address) from error
        looks = [self._look(each) for each in listed if each["State"] in ("running", "paused", "exited")]
        try:
            return [sandbox for sandbox in await asyncio.gather(*looks) if sandbox is not None]
        except EngineError as error:
            raise failure.unavailable(error, self._engine.address) from error

    async def remove_leftovers(self, keep: frozenset[SandboxId] = frozenset()) -> int:
        """End and remove all other containers with our label."""
        try:
            listed = await self._engine.call(lambda: self._engine.client.containers(self._label))
        except EngineError as error:
            raise failure.unavailable(error, self._engine.address) from error
        left = [each for each in listed if each["Labels"].get(spec.SANDBOX) not in keep]
        for failed in await asyncio.gather(*(self._remove(each) for each in left), return_exceptions=True):
            # One that the engine cannot end keeps neither the others nor the service; it is asked on.
            if failed is not None and not isinstance(failed, BackendError):
                raise failed
        for probe in self._run.glob("probe-*"):
            await asyncio.to_thread(shutil.rmtree, probe, ignore_errors=True)
        self._cleared = True
        return len(left)

    def notices(self) -> list[str]:
        """Return that the image is not of this version, if it says so; one from elsewhere often does not."""
        return list(self._notices)

    def hanging(self) -> int:
        """Return how many sandboxes the engine was asked to remove some seconds ago, and has not."""
        return sum(sandbox.hanging for sandbox in self._sandboxes.values())

    async def aclose(self) -> None:
        """Let go of what runs, and close the connections to the engine."""
        if self._follower is not None:
            await self._follower.aclose()
        for sandbox in self._sandboxes.values():
            sandbox.release()
        await self._tasks.idle(within_s=5)
        await self._tasks.aclose(within_s=5)  # what was started meanwhile
        await self._engine.aclose()

    # --- events -----------------------------------------------------------------------------------------------------

    def connected(self) -> None:
        """See what has happened while nobody listened."""
        for sandbox in self._sandboxes.values():
            sandbox.ask_again()
        self._tasks.start(self._compare(), name="compare with the engine")

    def happened(self, event: Answer) -> None:
        """Pass an event on to the sandbox it is about."""
        actor = event.get("Actor") or {}
        sandbox = self._sandboxes.get(SandboxId((actor.get("Attributes") or {}).get(spec.SANDBOX, "")))
        match event.get("Action"):
            case "create":
                if sandbox is None:  # what an earlier service asked for with its last breath
                    self._tasks.start(self._compare(), name="compare with the engine")
            case "oom":
                if sandbox is not None:
                    sandbox.oom()
            case _:
                if sandbox is not None:
                    sandbox.ended()

    async def _compare(self) -> None:
        """Note what has ended, and remove what is nobody's sandbox any more."""
        before = dict(self._sandboxes)
        try:
            listed = await self._engine.call(lambda: self._engine.client.containers(self._label))
        except EngineError as error:
            log.warning("the engine does not say which sandboxes there are", extra={"error": repr(error)})
            return
        there = {SandboxId(each["Labels"].get(spec.SANDBOX, "")): each for each in listed}
        for ident, sandbox in before.items():
            if ident not in self._starting and there.get(ident, {}).get("State") not in ("running", "paused"):
                sandbox.ended()
        for ident, each in there.items():
            known = self._sandboxes.get(ident)
            wanted = ident in self._starting or (known is not None and not known.unwanted)
            if self._cleared and not wanted:
                self._tasks.start(self._remove(each), name=f"remove leftover {ident}", expected=BackendError)

    async def _remove(self, container: Answer) -> None:
        ident = SandboxId(container["Labels"].get(spec.SANDBOX, ""))
        sandbox = self._sandboxes.get(ident) or self._handle(ident, container["Id"])
        await sandbox.stop()

    async def _look(self, container: Answer) -> Sandbox | None:
        """Return a handle on a container; None where it has gone, or the engine is stuck with it and answers of others."""
        ident = SandboxId(container["Labels"].get(spec.SANDBOX, ""))
        try:
            state = await self._engine.call(lambda: self._engine.looks.inspect(container["Id"])["State"])
        except NotThere:
            return None
        except EngineError as error:
            if isinstance(error, EngineGone) and not isinstance(error, Silent):
                raise
            log.warning("a sandbox cannot be taken over", extra={"sandbox": ident, "error": repr(error)})
            return None
        sight = seen.look(container["Id"], state["Pid"]) if state["Running"] else exit_of(state)
        return self._adopt(ident, container["Id"], sight)

    # --- starting ---------------------------------------------------------------------------------------------------

    async def _start(self, wanted: SandboxSpec, command: list[str]) -> Sandbox:
        if self._follower is None:
            raise BackendUnavailable("the docker backend has not been checked")
        uid, gid = self._ids(wanted)
        sandbox = DockerSandbox(wanted.id, "", self._engine, self._tasks, self._forget)
        self._sandboxes[wanted.id] = sandbox
        self._starting.add(wanted.id)
        sights: list[seen.Seen] = []
        try:
            async with self._starts:
                work = self._engine.call(lambda: sights.append(self._make(sandbox, wanted, command, uid, gid)))
                await finish(work, within_s=_START_S)
            sandbox.see(sights.pop())
        except BaseException as error:
            for sight in sights:
                _drop(sight)
            await finish(self._undo(sandbox), within_s=_START_S)
            if isinstance(error, EngineError | sources.Planted | OSError):
                # One line for each call while an engine is away or full: what raised it is no news.
                trace = None if isinstance(error, EngineGone | DiskFull) else error
                told = {"sandbox": wanted.id, "error": repr(error)}
                log.error("a sandbox could not be started", extra=told, exc_info=trace)
                raise failure.of_start(error, self._place.image, self._engine.address) from error
            raise
        finally:
            self._starting.discard(wanted.id)
        return sandbox

    def _make(self, sandbox: DockerSandbox, wanted: SandboxSpec, command: list[str], uid: int, gid: int) -> seen.Seen:
        """Create and start the container; return what the host shows of it. Blocking."""
        shown = spec.binds(wanted, self._accounts(uid, gid))
        config = spec.container(wanted, self._place, shown, command, uid=uid, gid=gid)
        container = sandbox.container = self._engine.client.create(spec.name(self._place, wanted.id), config)
        sources.check(shown, self._root)
        self._engine.client.start(container)
        made = self._engine.client.inspect(container)
        if wrong := spec.ignored(config["HostConfig"], made["HostConfig"]):
            raise failure.Ignored(wrong)
        sight = seen.look(container, made["State"]["Pid"])
        if wrong := seen.wrong_limits(sight.groups, spec.kernel_limits(wanted.limits, self._place.runtime)):
            _drop(sight)
            raise failure.Ignored(wrong)
        return sight

    async def _undo(self, sandbox: DockerSandbox) -> None:
        """Remove what a failed start has left, now or once the engine answers."""
        try:
            await sandbox.stop()
        except BackendError:
            log.warning("what is left of a failed start goes later", extra={"sandbox": sandbox.id})

    def _ids(self, wanted: SandboxSpec) -> tuple[int, int]:
        if not self._is_root:
            if wanted.uid not in (None, os.geteuid()):
                raise BackendError("only root can give a sandbox another uid")
            return os.geteuid(), os.getegid()
        if not wanted.uid or not wanted.gid:
            raise BackendError("a sandbox never runs with the ids of root")
        return wanted.uid, wanted.gid

    def _accounts(self, uid: int, gid: int) -> spec.Accounts:
        """Return the files with the names of the ids, made at need. They are never changed. Blocking."""
        folder = self._root / ".accounts"
        folder.mkdir(mode=0o755, exist_ok=True)
        texts = {"passwd": spec.passwd(uid, gid), "group": spec.group(gid)}
        for kind, text in texts.items():
            file = folder / f"{uid}-{gid}.{kind}"
            if not file.exists():
                part = folder / f".{secrets.token_hex(8)}"
                part.write_text(text)
                part.chmod(0o644)
                part.rename(file)
        return spec.Accounts(folder / f"{uid}-{gid}.passwd", folder / f"{uid}-{gid}.group")

    def _adopt(self, ident: SandboxId, container: str, sight: seen.Seen | SandboxExit) -> Sandbox:
        """Return a handle. One that has ended stays in the engine until it is stopped: each service is told of its end."""
        known = self._sandboxes.get(ident)
        if known is not None and isinstance(sight, seen.Seen):
            _drop(sight)
            return known
        sandbox = self._handle(ident, container)
        if isinstance(sight, seen.Seen):
            sandbox.see(sight)
        else:
            sandbox.has_ended(sight)
        return sandbox

    def _handle(self, ident: SandboxId, container: str) -> DockerSandbox:
        sandbox = DockerSandbox(ident, container, self._engine, self._tasks, self._forget)
        self._sandboxes[ident] = sandbox
        return sandbox

    def _forget(self, sandbox: DockerSandbox) -> None:
        if self._sandboxes.get(sandbox.id) is sandbox:
            del self._sandboxes[sandbox.id]

    @property
    def _label(self) -> str:
        return f"{spec.INSTANCE}={self._place.instance}"

    # --- checking ---------------------------------------------------------------------------------------------------

    async def _check(self) -> list[str]:
        place = self._place
        version, info = await self._engine.call(self._engine.client.about)
        if refusal := weaknesses.refusal(version, info, runtime=place.runtime, network=place.network):
            raise BackendUnavailable(refusal)
        made = await self._engine.call(lambda: self._engine.client.image(place.image))
        if await asyncio.to_thread(image.is_current, made) is False:
            self._notices = [failure.other_inputs(place.image)]
        if place.network != "none":
            try:
                await self._engine.call(lambda: self._engine.client.network(place.network))
            except NotThere as error:
                raise BackendUnavailable(failure.no_network(place.network)) from error
        self._place = replace(place, instance=await asyncio.to_thread(_instance, self._root))
        if self._follower is None:
            self._follower = self._engine.follow(self._label, _EVENTS, self)
        await self._probe()
        here = self._engine.address.startswith("unix:")
        found = await asyncio.to_thread(weaknesses.found, version, info, runtime=place.runtime, here=here)
        if self.single_tenant:
            found.append(
                "not running as root: one scope only, and its code runs under this user's own uid. Run as root to serve"
                " several scopes apart"
            )
        return found

    async def _probe(self) -> None:
        place = self._run / f"probe-{secrets.token_hex(4)}"
        place.mkdir(mode=0o755, parents=True)
        uid = self._probe_uid if self._is_root else None
        try:
            for name in ("workspace", "user", "link"):
                (place / name).mkdir(mode=0o755)
                if uid is not None and name != "link":
                    os.chown(place / name, uid, uid)
            ident = SandboxId(secrets.token_hex(8))
            wanted = SandboxSpec(ident, uid, uid, place / "workspace", place / "user", place / "link", _MOST_OF_IT)
            with _listening(place / "link" / LINK_SOCKET):
                sandbox = await self._start(wanted, self._probing())
                try:
                    async with asyncio.timeout(_PROBE_S):
                        end = await sandbox.wait()
                finally:
                    await sandbox.stop()
            if end.status != 0:
                log.error("the probe failed", extra={"status": end.status})
                raise BackendUnavailable(self._probe_failed())
        except TimeoutError as error:
            raise BackendUnavailable(self._probe_failed()) from error
        except BackendUnavailable:
            raise
        except BackendError as error:
            raise BackendUnavailable(str(error)) from error
        finally:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)

    def _probing(self) -> list[str]:
        """Return what proves that containers run, and with gVisor that they reach their link."""
        is_gvisor = self._place.runtime == gvisor.NAME
        return gvisor.connects(str(inside.LINK / LINK_SOCKET)) if is_gvisor else ["/usr/bin/true"]

    def _probe_failed(self) -> str:
        if self._place.runtime != gvisor.NAME:
            return failure.PROBE_FAILED
        return gvisor.refusal(failure.GVISOR_PROBE_FAILED, network=self._place.network)


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[None]:
    """Listen there, as the service does for a sandbox. The path may be longer than a socket's address."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"/proc/self/fd/{directory}/{path.name}")
            path.chmod(0o666)
            listener.listen(1)
            yield
    finally:
        os.close(directory)


def _instance(root: Path) -> str:
    """Return what names the data root among all that this engine serves, now and later. Blocking."""
    file = root / ".instance"
    if not file.exists():
        part = root / ".instance.part"
        part.write_text(secrets.token_hex(16))
        part.rename(file)
    return hashlib.sha256(os.fsencode(root) + b"\0" + file.read_bytes()).hexdigest()[:16]


def _drop(sight: seen.Seen | SandboxExit) -> None:
    """Close what was seen and is of no use."""
    if isinstance(sight, seen.Seen) and sight.process >= 0:
        os.close(sight.process)
