"""An Interpreter that answers at once from a script, and a server around it on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sandboxd.protocol import Outcome

from interpreter.errors import ExecutionNotFound, ServiceError
from interpreter.executions.execution import Execution
from interpreter.executions.model import Answer, ExecRequest, Life, Timing, answer
from interpreter.files.service import Files
from interpreter.http.guard import Guard
from interpreter.http.operations import Api, ExecLimits
from interpreter.http.routes import application
from interpreter.http.server import ApiServer, ConnectionLimits
from interpreter.keys import Key
from interpreter.metrics import Metrics, Now
from interpreter.scopes.root import DataRoot
from interpreter.scopes.uids import Ids
from interpreter.service import Interpreter

KEY = "key-one-of-the-tests"
OTHER_KEY = "key-two-of-the-tests"
TIMESTAMP = "2026-10-16T10:00:00Z"


class ScriptedService(Interpreter):
    """Ends each execution at once with ``42``, unless told otherwise.

    files: of a data root of its own.
    fail: raised by every call instead. hold: executions do not end by themselves. requests: what came. cancelled: ids.
    """

    def __init__(self, root: Path) -> None:
        data = DataRoot(root, Ids(own=True))
        data.open()
        self.data = data
        self.files = Files(data, self._warmed)
        now = Now({}, {}, {}, 0, 0, 0, 0, 0, False, 0)
        self.metrics = Metrics(version="0.0.0", backend="fake", now=lambda: now)
        self.fail: Exception | None = None
        self.hold = False
        self.healthy = True
        self.warnings = ["the kernel is old"]
        self.output = "42\n"
        self.requests: list[ExecRequest] = []
        self.calls: list[tuple[Any, ...]] = []
        self.cancelled: list[str] = []
        self.submitted = asyncio.Event()
        self.was_cancelled = asyncio.Event()
        self._executions: dict[str, Execution] = {}

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.fail is not None:
            raise self.fail

    async def recall(self, execution_id: str | None, scope: str | None) -> None:
        """Everything is in memory here."""

    def submit(self, request: ExecRequest) -> Execution:
        self._called("submit", request)
        self.requests.append(request)
        named = request.execution_id is not None
        execution = Execution(request.execution_id or f"made-{len(self.requests)}", request, named=named)
        self._executions[execution.id] = execution
        execution.running()
        if not self.hold:
            execution.end(finished(execution, output=self.output), 0.0)
        self.submitted.set()
        return execution

    async def settle(self, execution: Execution) -> Answer:
        return await execution.finished()

    def execution(self, execution_id: str, scope: str | None) -> Execution:
        self._called("execution", execution_id, scope)
        try:
            return self._executions[execution_id]
        except KeyError:
            raise ExecutionNotFound("No such execution.") from None

    def cancel(self, execution: Execution) -> None:
        self.cancelled.append(execution.id)
        execution.end(finished(execution, "interrupted"), 0.0)
        self.was_cancelled.set()

    def warm(self, scope: str, session: str | None) -> None:
        self._called("warm", scope, session)

    async def _warmed(self, key: Key) -> None:
        self.warm(*key)

    async def input(self, execution: Execution, text: str) -> None:
        self._called("input", execution.id, text)

    async def scopes(self) -> list[dict[str, Any]]:
        self._called("scopes")
        return [{"scope": "u1"}]

    async def sessions(self, scope: str) -> list[dict[str, Any]]:
        self._called("sessions", scope)
        return [
            {
                "session": "chatA",
                "state": "idle",
                "backend": "fake",
                "started_at": TIMESTAMP,
                "last_used_at": TIMESTAMP,
                "expires_at": TIMESTAMP,
                "kernels": self.kernels(scope, "chatA"),
                "memory_bytes": 1,
            }
        ]

    def kernels(self, scope: str, session: str | None) -> list[dict[str, Any]]:
        self._called("kernels", scope, session)
        return [
            {
                "language": "python",
                "context": "default",
                "state": "idle",
                "generation": 1,
                "execution_count": 3,
                "started_at": TIMESTAMP,
                "last_used_at": TIMESTAMP,
            }
        ]

    async def interrupt_kernel(self, scope: str, session: str | None, language: str, context: str) -> dict[str, Any]:
        self._called("interrupt", scope, session, language, context)
        return {"interrupted": False}

    async def restart_kernel(self, scope: str, session: str | None, language: str, context: str) -> dict[str, Any]:
        self._called("restart", scope, session, language, context)
        return {"restarted": True}

    async def delete_kernel(self, scope: str, session: str | None, language: str, context: str) -> dict[str, Any]:
        self._called("delete", scope, session, language, context)
        return {"removed": 1, "purged": False}

    async def remove_session(
        self, scope: str, session: str, *, purge: bool = False, force: bool = False
    ) -> dict[str, Any]:
        self._called("remove_session", scope, session, purge, force)
        return {"removed": 1, "purged": purge}

    async def remove_sandbox(self, scope: str, *, force: bool = False) -> dict[str, Any]:
        self._called("remove_sandbox", scope, force)
        return {"removed": 1, "purged": False}

    async def remove_scope(self, scope: str, *, purge: bool = False, force: bool = False) -> dict[str, Any]:
        self._called("remove_scope", scope, purge, force)
        return {"removed": 1, "purged": purge}

    async def health(self) -> tuple[bool, dict[str, Any]]:
        if self.healthy:
            return True, {"status": "ok", "runtime": "fake"}
        return False, {"status": "unavailable", "runtime": "fake", "message": "The engine is gone."}


def finished(execution: Execution, status: Any = "ok", output: str = "42\n") -> Answer:
    outcome = Outcome(status=status, exit_code=0 if status == "ok" else 130, run_ms=3, stdout=output)
    return answer(execution.id, execution.request, outcome, Life(), Timing())


@dataclass
class Reply:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["code"])


@dataclass
class Served:
    """A running server."""

    service: ScriptedService
    api: Api
    server: ApiServer
    port: int
    key: str = KEY
    headers: dict[str, str] = field(default_factory=dict)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def raw(self, request: bytes, *, then_close: bool = False) -> Reply:
        """Send bytes as they are and read one answer."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            if then_close:
                writer.write_eof()
            return await read_reply(reader, head_only=request.startswith(b"HEAD"))
        finally:
            writer.close()

    async def call(
        self,
        method: str,
        target: str,
        body: bytes | dict[str, Any] | None = None,
        *,
        key: str | None = KEY,
        **headers: str,
    ) -> Reply:
        """Make one request; names of headers have _ for -."""
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        lines = [f"{method} {target} HTTP/1.1"]
        given = {"Host": f"127.0.0.1:{self.port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            given["X-API-Key"] = key
        if content is not None:
            given.setdefault("Content-Length", str(len(content)))
        lines += [f"{name}: {value}" for name, value in given.items()]
        return await self.raw("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (content or b""))

    async def exec(self, **fields: Any) -> Reply:
        return await self.call("POST", "/v1/exec", {"scope": "u1", "language": "python", "code": "1"} | fields)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what has no event; at most 20 s."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def read_reply(reader: asyncio.StreamReader, *, head_only: bool = False) -> Reply:
    """Read one answer; it must have a Content-Length."""
    async with asyncio.timeout(20):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = 0 if head_only else int(headers.get("content-length", "0"))
        return Reply(int(status_line.split()[1]), headers, await reader.readexactly(length))


@asynccontextmanager
async def serving(
    *,
    hosts: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
    limits: ExecLimits | None = None,
    connections: ConnectionLimits | None = None,
) -> AsyncIterator[Served]:
    """A server with a ScriptedService on a free port of 127.0.0.1."""
    with TemporaryDirectory(prefix="cellbox-files-") as root:
        service = ScriptedService(Path(root))
        api = Api(
            service=service,
            guard=Guard(keys=[KEY, OTHER_KEY], hosts=hosts, origins=origins),
            version="0.0.0",
            limits=limits or ExecLimits(),
            connections=connections or ConnectionLimits(),
        )
        server = ApiServer(application(api), api.connections)
        server.listen(0, "127.0.0.1")
        (port,) = server.ports()
        try:
            yield Served(service, api, server, port)
        finally:
            server.stop()
            async with asyncio.timeout(20):
                await server.close_all_connections()
            await service.files.aclose()
            service.data.close()


__all__ = ["KEY", "OTHER_KEY", "Reply", "ScriptedService", "Served", "ServiceError", "serving", "until"]
