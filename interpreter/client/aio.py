"""``AsyncClient``: the service, for asyncio. Its methods are those of ``Client``, to be awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import httpx

from interpreter import wire
from interpreter.client.address import Address
from interpreter.client.calls import Options, Plan, Where, stateful
from interpreter.client.results import Event, Execution, FileEntry, Result, StoredFile
from interpreter.client.steps import Call, Following, Outcome, Read, Request, Wait

T = TypeVar("T")


class AsyncClient:
    """A service. Belongs to one event loop; close it, or use it as a context manager.

    url, api_key: CELLBOX_URL (http://127.0.0.1:8090) and CELLBOX_API_KEY where absent. patience_s: for pauses before a call that
    could not be served now is made again; 0 to be told at once. transport: another way to the service, a Unix socket for example.
    Every method raises CellboxError.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        patience_s: float = 10.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(transport=transport, **Address.of(url, api_key).options())
        self._plan = Plan(patience_s)

    async def exec(
        self, code: str, language: str = "python", *, scope: str, session: str | None = None, **options: Unpack[Options]
    ) -> Result:
        """Run code, without memory unless ``stateful=True``, and return how it ended. Cancelling ends it there too."""
        return await self._run(self._plan.execute(Where(scope, session), code, language, options))

    def stream(
        self, code: str, language: str = "python", *, scope: str, session: str | None = None, **options: Unpack[Options]
    ) -> AsyncStream:
        """Run code and return its events, as they come."""
        where = Where(scope, session)
        return AsyncStream(self, scope, self._plan.stream(where, code, language, options), options.get("execution_id"))

    async def submit(
        self, code: str, language: str = "python", *, scope: str, session: str | None = None, **options: Unpack[Options]
    ) -> str:
        """Begin to run code, and return the ``execution_id`` at once: for ``attach``, ``execution`` and ``cancel``."""
        return await self._run(self._plan.submit(Where(scope, session), code, language, options))

    def attach(self, execution_id: str, *, scope: str, after: int = -1) -> AsyncStream:
        """Return the events of an execution, those with a ``seq`` above ``after``."""
        return AsyncStream(self, scope, self._plan.attach(execution_id, scope, after), execution_id)

    async def execution(self, execution_id: str, *, scope: str) -> Execution:
        """Return where an execution is, with its result once it has finished."""
        return await self._run(self._plan.execution(execution_id, scope))

    async def cancel(self, execution_id: str, *, scope: str) -> Execution:
        """End an execution: interrupt it, or kill it if it is stateless. Does not wait for its end."""
        return await self._run(self._plan.cancel(execution_id, scope))

    def session(self, scope: str, session: str | None = None) -> AsyncSession:
        """Return one conversation of a scope; nothing is sent."""
        return AsyncSession(self, Where(scope, session))

    async def scopes(self) -> list[str]:
        """Return the scopes that have data or a sandbox."""
        return await self._run(self._plan.scopes())

    async def sessions(self, scope: str) -> list[wire.SessionInfo]:
        """Return the sandboxes of a scope."""
        return await self._run(self._plan.sessions(scope))

    async def remove_scope(self, scope: str, *, purge: bool = False, force: bool = False) -> wire.Removed:
        """Remove all sandboxes of a scope. purge: and its data. force: also while something runs there."""
        return await self._run(self._plan.remove_scope(scope, purge=purge, force=force))

    async def health(self) -> wire.Health:
        """Return whether the service can serve."""
        return await self._run(self._plan.health())

    async def close(self) -> None:
        """Close the connections. May be called twice."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Close it."""
        await self.close()

    async def _run(self, call: Call[T]) -> T:
        """Take the steps of ``call`` and return what it returns."""
        outcome: Outcome = None
        async with _Steps(self._http, call) as steps:
            while True:
                try:
                    step = call.send(outcome)
                except StopIteration as end:
                    value: T = end.value
                    return value
                outcome = await steps.take(step)

    async def _follow(self, call: Following) -> AsyncGenerator[Event, None]:
        """Take the steps of ``call`` and yield its events."""
        outcome: Outcome = None
        async with _Steps(self._http, call) as steps:
            while True:
                try:
                    step = call.send(outcome)
                except StopIteration:
                    return
                if isinstance(step, Event):
                    outcome = None
                    yield step
                else:
                    outcome = await steps.take(step)


class AsyncStream:
    """The events of an execution, to be iterated once. Leaving it ends nothing: ``cancel`` does."""

    def __init__(self, client: AsyncClient, scope: str, call: Following, execution_id: str | None) -> None:
        self._client = client
        self._scope = scope
        self._events = client._follow(call)
        self.execution_id = execution_id

    def __aiter__(self) -> AsyncIterator[Event]:
        """Return itself."""
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event and return it."""
        event = await anext(self._events)
        self.execution_id = event.execution_id
        return event

    async def result(self) -> Result:
        """Read on to the end, and return how it ended."""
        async for _ in self:
            pass
        found = (await self._client.execution(self._id(), scope=self._scope)).result
        assert found is not None  # noqa: S101 - its last event has come
        return found

    async def answer(self, text: str) -> None:
        """Answer its ``input_request``."""
        await self._client._run(self._client._plan.answer_input(self._id(), self._scope, text))

    async def cancel(self) -> None:
        """End the execution; its last events still come."""
        await self._client.cancel(self._id(), scope=self._scope)

    async def close(self) -> None:
        """Stop to follow. May be called twice."""
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Close it."""
        await self.close()

    def _id(self) -> str:
        if self.execution_id is None:
            raise RuntimeError("The execution has no id yet: read its first event.")
        return self.execution_id


class AsyncSession:
    """One conversation: its kernels, which remember, and its files. As a context manager it removes the sandbox at the end, also
    while something runs there; files stay."""

    def __init__(self, client: AsyncClient, where: Where) -> None:
        self._client = client
        self._where = where
        self.scope = where.scope
        self.name = where.session
        self.files = AsyncFiles(client, where)

    async def run(self, code: str, language: str = "python", **options: Unpack[Options]) -> Result:
        """Run code in the kernel of its language, and return how it ended. Cancelling interrupts it there too."""
        return await self._client.exec(code, language, scope=self.scope, session=self.name, **stateful(options))

    def stream(self, code: str, language: str = "python", **options: Unpack[Options]) -> AsyncStream:
        """Run code in the kernel of its language, and return its events as they come."""
        return self._client.stream(code, language, scope=self.scope, session=self.name, **stateful(options))

    async def submit(self, code: str, language: str = "python", **options: Unpack[Options]) -> str:
        """Begin to run code in the kernel of its language, and return the ``execution_id`` at once."""
        return await self._client.submit(code, language, scope=self.scope, session=self.name, **stateful(options))

    async def kernels(self) -> list[wire.KernelInfo]:
        """Return the kernels that run."""
        return await self._client._run(self._client._plan.kernels(self._where))

    async def interrupt(self, language: str = "python", context: str = "default") -> bool:
        """Interrupt what runs in a kernel, whose variables stay. False where nothing ran."""
        return await self._client._run(self._client._plan.interrupt(self._where, language, context))

    async def restart(self, language: str = "python", context: str = "default") -> None:
        """Restart a kernel: what runs in it ends, its variables are gone."""
        await self._client._run(self._client._plan.restart(self._where, language, context))

    async def end_kernel(self, language: str = "python", context: str = "default") -> None:
        """End a kernel: what runs in it ends, its variables are gone."""
        await self._client._run(self._client._plan.end_kernel(self._where, language, context))

    async def remove(self, *, purge: bool = False, force: bool = False) -> wire.Removed:
        """Remove the sandbox. purge: and the session's files. force: also while something runs there."""
        return await self._client._run(self._client._plan.remove(self._where, purge=purge, force=force))

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Remove the sandbox."""
        await self.remove(force=True)


class AsyncFiles:
    """The files of a session; of the scope, where there is no session. Paths are relative to that directory; names that are
    not UTF-8 are as ``os.fsdecode`` makes them."""

    def __init__(self, client: AsyncClient, where: Where) -> None:
        self._client = client
        self._where = where

    async def list(self, path: str = "") -> list[FileEntry]:
        """Return what is in a directory, all of it."""
        return await self._client._run(self._client._plan.list_files(self._where, path))

    async def read(self, path: str) -> bytes:
        """Return what a file has."""
        return await self._client._run(self._client._plan.read_file(self._where, path))

    async def write(self, path: str, content: bytes | str) -> StoredFile:
        """Store a file there; text as UTF-8."""
        data = content.encode() if isinstance(content, str) else content
        return await self._client._run(self._client._plan.write_file(self._where, path, data))

    async def upload(self, file: Path | str, path: str | None = None) -> StoredFile:
        """Store a file of this machine there, under its own name unless ``path`` names another."""
        file = Path(file)
        return await self._client._run(self._client._plan.write_file(self._where, path or file.name, file))

    async def download(self, path: str, to: Path | str) -> None:
        """Store a file of there on this machine; it appears when it is whole."""
        await self._client._run(self._client._plan.download(self._where, path, Path(to)))

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        await self._client._run(self._client._plan.remove_file(self._where, path))


class _Steps:
    """Takes the steps of one call. Holds the answer that is being read."""

    def __init__(self, http: httpx.AsyncClient, call: Call[Any] | Following) -> None:
        self._http = http
        self._call = call
        self._open: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] = _nothing()

    async def take(self, step: Request | Wait | Read) -> Outcome:
        """Take one step, and return what came of it."""
        if isinstance(step, Wait):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return await (anext(self._chunks, b"") if isinstance(step, Read) else self._send(step))
        except httpx.TransportError as error:
            return error
        except BaseException:
            if isinstance(step, Request) and step.undo is not None:
                with contextlib.suppress(httpx.TransportError):
                    await self._send(step.undo)
            raise

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Let go of the call and of the answer that is being read."""
        self._call.close()
        await self._let_go()

    async def _let_go(self) -> None:
        if self._open is not None:
            await self._open.aclose()

    async def _send(self, step: Request) -> httpx.Response:
        request = self._http.build_request(
            step.method,
            step.path,
            params=step.params,
            json=step.body,
            content=_pieces(step.content) if isinstance(step.content, Path) else step.content,
            headers=step.sent_headers(),
            timeout=step.timeout,
        )
        await self._let_go()
        self._open = response = await self._http.send(request, stream=True)
        if step.save_to is not None and response.is_success:
            with step.save_to.open("wb") as file:
                async for chunk in response.aiter_bytes():
                    file.write(chunk)
        elif step.streamed and response.is_success:
            self._chunks = response.aiter_bytes()
        else:
            await response.aread()
        return response


async def _pieces(file: Path) -> AsyncIterator[bytes]:
    with file.open("rb") as opened:
        while piece := await asyncio.to_thread(opened.read, 1 << 18):
            yield piece


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""
