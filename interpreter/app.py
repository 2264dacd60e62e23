"""The whole service: every part built once, in order, and closed in the reverse order.

Promises: what cannot start says why in one sentence (``StartError``), leaves nothing of its own behind, and the sandboxes of an
earlier service as they are. SIGTERM drains and leaves
sandboxes to the next service; SIGINT removes them at once; both end with everything of this process closed.
Leaves to cli/serve.py: exit codes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from tornado.netutil import bind_unix_socket

import interpreter
from interpreter import descriptors, shortage, threads
from interpreter import settings as variables
from interpreter.allocator import give_back
from interpreter.backends import environment as environments
from interpreter.backends.base import Backend, BackendError, Limits
from interpreter.backends.choose import BackendConfig, Choice, choose
from interpreter.backends.tenant_environment import tenant_environment
from interpreter.descriptors import Shares, TooFewDescriptors
from interpreter.egress import entries
from interpreter.egress.own import own
from interpreter.egress.policies import PolicyError
from interpreter.egress.ways import EgressConfig
from interpreter.http.guard import Guard
from interpreter.http.operations import Api, ExecLimits
from interpreter.http.routes import application
from interpreter.http.server import ApiServer, ConnectionLimits
from interpreter.http.websocket import close_all
from interpreter.listen import Listen, bind
from interpreter.scopes.root import DataRootError
from interpreter.service import Interpreter
from interpreter.service_config import ServiceConfig
from interpreter.settings import Settings, SettingsError
from interpreter.tasks import Tasks, finish
from interpreter.wording import counted

MIB = 2**20
CLOSE_S = 30.0
ANSWERS_S = 3.0
"""For answers that are being sent when a draining service has nothing left to run."""
CONNECTIONS_CLOSE_S = 2.0
Say = Callable[[str], None]


class StartError(Exception):
    """The service cannot start here. Text: one sentence for the operator."""


def service_config(settings: Settings) -> ServiceConfig:
    """Return what the service needs of ``settings``."""
    return ServiceConfig(
        data_root=settings.data_root.resolve(),  # it may be a link; below it none is followed
        link_dir=settings.link_dir and settings.link_dir.resolve(),
        limits=Limits(settings.memory_mb, settings.cpus, settings.pids_limit, settings.tmp_mb),
        environment=tenant_environment(
            user=PurePosixPath(settings.user_mount_target),
            venv=environments.INSIDE_VENV,
            cpus=settings.cpus,
            memory_mib=settings.memory_mb,
            pip_index_url=settings.pip_index_url,
            npm_registry=settings.npm_registry,
        ),
        network=settings.network != "none",
        uid=settings.uid,
        gid=settings.gid,
        uid_base=settings.uid_base,
        quota_mib=settings.scope_quota_mb,
        idle_ttl_s=settings.idle_ttl,
        max_sessions=settings.max_sessions,
        max_concurrent=settings.max_concurrent,
        pool=settings.pool,
        max_queue=settings.max_queue,
        max_kernels=settings.max_kernels,
        grace_s=settings.interrupt_grace,
        output_bytes=settings.max_output_kb * 1024,
        result_bytes=settings.max_result_kb * 1024,
        spill_bytes=settings.max_spill_mb * MIB,
        result_ttl_s=settings.result_ttl,
        drain_timeout_s=settings.drain_timeout,
        egress=egress_config(settings),
    )


def egress_config(settings: Settings) -> EgressConfig | None:
    """Return what ``settings`` say of the way out; None: there is none."""
    if settings.network != "proxy":
        return None
    engine = os.environ.get("DOCKER_HOST") if settings.runtime_backend in ("auto", "docker") else None
    return EgressConfig(
        allowlist=settings.egress_allowlist,
        ports=settings.egress_ports,
        private_cidrs=settings.egress_private_cidrs,
        policy_file=settings.egress_policy_file,
        control=settings.egress_control,
        own=own(settings.address, engine),
        pip_index_url=settings.pip_index_url,
        npm_registry=settings.npm_registry,
    )


def check(settings: Settings) -> None:
    """Raise SettingsError for settings that no start could serve."""
    if sentences := variables.not_built(settings):
        raise SettingsError("\n".join(sentences))
    if bad := entries.wrong(settings.egress_allowlist):
        raise SettingsError(
            f"SANDBOX_EGRESS_ALLOWLIST has {bad[0][:80]!r}, which is neither host, *.host, host:port, * nor @pypi, @npm."
        )
    if bad := entries.wrong_ranges(settings.egress_private_cidrs):
        raise SettingsError(f"SANDBOX_EGRESS_PRIVATE_CIDRS has {bad[0][:80]!r}, which is no range like 10.1.0.0/16.")
    if not settings.keys and not settings.address.is_local:
        raise SettingsError(
            f"SANDBOX_API_KEY is not set and SANDBOX_LISTEN={settings.listen} can be reached from other machines: set "
            "a key (`openssl rand -hex 32` makes one), or listen on 127.0.0.1:8090."
        )


def made_key(root: Path) -> str:
    """Return the key of a service that was given none: kept in the data root, readable by its owner alone."""
    file = root / ".api-key"
    with suppress(FileNotFoundError):
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle) as kept:
            os.fchmod(kept.fileno(), 0o600)
            key = kept.read().strip()
        if len(key) >= variables.KEY_MIN_LENGTH:
            return key
        file.unlink()
    key = secrets.token_urlsafe(32)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as made:
        made.write(key + "\n")
    return key


def listeners(listen: Listen) -> list[socket.socket]:
    """Bind. Raises StartError."""
    try:
        return [bind_unix_socket(str(listen.path), mode=0o600)] if listen.path is not None else bind(listen)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        where = listen.path or f"{listen.host}:{listen.port}"
        raise StartError(f"SANDBOX_LISTEN cannot be listened on: {where}: {reason}.") from error


class Stop:
    """What the signals ask for: ``gently`` once SIGTERM came, ``now`` once SIGINT, or a second signal, came."""

    def __init__(self) -> None:
        self.gently = asyncio.Event()
        self.now = asyncio.Event()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the signals of the process."""
        loop.add_signal_handler(signal.SIGTERM, self._term)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _term(self) -> None:
        (self.now if self.gently.is_set() else self.gently).set()

    def _interrupt(self) -> None:
        self.gently.set()
        self.now.set()


async def serve(
    settings: Settings, *, say: Say = print, backend: Backend | None = None, stop: Stop | None = None
) -> None:
    """Serve until asked to stop; afterwards nothing is left but the sandboxes for the next service, unless asked to stop now.

    Raises SettingsError and StartError before anything is served.

    backend: instead of the one that the settings choose.
    """
    check(settings)
    for warning in variables.warnings(settings):
        say(f"warning: {warning}")
    if stop is None:
        stop = Stop()
        stop.listen(asyncio.get_running_loop())
    give_back()
    _start_threads()
    async with AsyncExitStack() as stack:
        try:
            choice = _choice(settings, backend)
            share = _shares(settings.max_sessions, choice.backend.name)
            if share.reduced:
                say(f"warning: {share.reduced}")
            settings = settings.model_copy(update={"max_sessions": share.sandboxes})
            say(f"cellbox {interpreter.__version__}: checking {choice.backend.name} …")
            service = Interpreter(service_config(settings), choice.backend)
            stack.push_async_callback(lambda: finish(service.release(), within_s=CLOSE_S))
            weak = await service.start()
            if weak and settings.runtime_checks == "refuse":
                raise StartError(f"Not started, since SANDBOX_RUNTIME_CHECKS is `refuse`: {'; '.join(weak)}.")
            for warning in [*weak, *service.notices]:
                say(f"warning: {warning}")
            choice.remember()
            keys = settings.keys or (made_key(settings.data_root),)
        except (BackendError, DataRootError) as error:
            raise StartError(str(error)) from error
        except PolicyError as error:
            raise StartError(
                f"SANDBOX_EGRESS_ALLOWLIST and SANDBOX_EGRESS_POLICY_FILE cannot be followed: {error}."
            ) from error
        except OSError as error:
            raise StartError(f"The data root cannot be used: {error.strerror}.") from error
        api = _api(settings, service, keys, share.limits())
        server = ApiServer(application(api), api.connections)
        sockets = listeners(settings.address)
        server.add_sockets(sockets)
        stack.push_async_callback(_close_server, server, settings.address)
        _announce(settings, choice, sockets, keys, say)
        await _until_drained(service, api, stop, say)
        if stop.now.is_set():
            await finish(service.aclose(), within_s=CLOSE_S)
        else:
            await finish(service.release(), within_s=CLOSE_S)
            say(_left(service, settings))
        await close_all(api.sockets)
        # An execution has ended before its answer is written: closing now would cut it off.
        await server.at_rest(within_s=ANSWERS_S)


async def remove_all(settings: Settings) -> int:
    """Remove the sandboxes that an earlier service left, where none runs now; return how many. Raises StartError."""
    try:
        service = Interpreter(replace(service_config(settings), egress=None), _choice(settings, None).backend)
        try:
            await service.start()
            return service.sandboxes()
        finally:
            await finish(service.aclose(), within_s=CLOSE_S)
    except (BackendError, DataRootError) as error:
        raise StartError(str(error)) from error


async def _until_drained(service: Interpreter, api: Api, stop: Stop, say: Say) -> None:
    """Serve until ``stop`` says so, then let what runs end, unless it says now."""
    await stop.gently.wait()
    api.draining = True
    if stop.now.is_set():
        say("stopping …")
        return
    say("draining: new calls are refused; waiting for what runs … (Ctrl-C: stop now)")
    tasks = Tasks()
    waits = [tasks.start(service.drain(), name="drain"), tasks.start(_wait(stop.now), name="stop now")]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await tasks.aclose(within_s=CLOSE_S)


def _left(service: Interpreter, settings: Settings) -> str:
    if not service.released:
        return "stopped; no sandbox was running"
    return (
        f"stopped; {counted(service.released, 'sandbox')} left running for the next service on this data root, to end after"
        f" {settings.idle_ttl:g} s without one (`cellbox stop --all` removes all with the service)"
    )


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _close_server(server: ApiServer, listen: Listen) -> None:
    server.stop()
    with suppress(TimeoutError):
        await asyncio.wait_for(server.close_all_connections(), CONNECTIONS_CLOSE_S)
    if listen.path is not None:
        listen.path.unlink(missing_ok=True)


def _choice(settings: Settings, backend: Backend | None) -> Choice:
    if backend is not None:
        return Choice(backend, "given")
    # Scopes get ids from the base up; the one below it is nobody's.
    probe_uid = settings.uid or settings.uid_base - 1
    config = BackendConfig(
        settings.data_root, settings.idle_ttl, probe_uid, settings.image, settings.runtime, settings.network
    )
    return choose(settings.runtime_backend, config)


def _api(settings: Settings, service: Interpreter, keys: Sequence[str], connections: ConnectionLimits) -> Api:
    host = settings.address.host
    return Api(
        service=service,
        guard=Guard(
            keys=keys,
            hosts=[*settings.allowed_hosts, *([host.lower()] if host else [])],
            origins=settings.allowed_origins,
        ),
        version=interpreter.__version__,
        limits=ExecLimits(
            settings.default_timeout,
            settings.max_timeout,
            settings.max_code_kb * 1024,
            max_upload_bytes=settings.max_upload_mb * MIB,
            max_download_bytes=settings.max_download_mb * MIB,
        ),
        connections=connections,
    )


def _announce(settings: Settings, choice: Choice, sockets: list[socket.socket], keys: Sequence[str], say: Say) -> None:
    """Say what serves where, and a line to try it with."""
    listen = settings.address
    url, curl = f"unix:{listen.path}", f"curl --unix-socket {listen.path} http://localhost"
    if listen.path is None:
        host = listen.host or "127.0.0.1"
        url = f"http://{f'[{host}]' if ':' in host else host}:{sockets[0].getsockname()[1]}"
        curl = f"curl {url}"
    say(f"backend  {choice.backend.name} ({choice.why})")
    say(f"limits   {_limits(settings, choice.backend)}")
    say(f"data     {settings.data_root}")
    say(f"serving  {url}" + ("" if listen.path else f" (the API: {url}/docs)"))
    key = "$SANDBOX_API_KEY"
    if not settings.keys:
        key = keys[0]
        say(f"key      {key} (made for you, kept in {settings.data_root / '.api-key'})")
    body = '{"scope": "u1", "language": "python", "code": "print(6 * 7)"}'
    say(f"try      {curl}/v1/exec -H \"X-API-Key: {key}\" -d '{body}'")


def _limits(settings: Settings, backend: Backend) -> str:
    """One line on what a sandbox may use."""
    if not backend.limits_hold:
        return f"none on memory, processor and processes; {counted(settings.max_sessions, 'sandbox')}"
    cores = f"{settings.cpus:g} {'core' if settings.cpus == 1 else 'cores'}"
    return (
        f"{settings.memory_mb} MiB memory, {cores}, {counted(settings.pids_limit, 'process')} per sandbox; "
        f"{counted(settings.max_sessions, 'sandbox')}"
    )


def _start_threads() -> None:
    try:
        asyncio.get_running_loop().set_default_executor(threads.started())
    except RuntimeError as error:
        raise StartError(f"The service cannot be started: {shortage.PROCESSES}.") from error


def _shares(sandboxes: int, backend: str) -> Shares:
    """Return for how many sandboxes and connections there are descriptors. Raises StartError."""
    wanted = descriptors.needed(sandboxes=sandboxes, connections=ConnectionLimits().max_connections, backend=backend)
    try:
        return descriptors.shares(descriptors.allow(wanted), sandboxes=sandboxes, backend=backend)
    except TooFewDescriptors as error:
        raise StartError(str(error)) from error
