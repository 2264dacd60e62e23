"""``Client``: the service, for programs that wait for each call."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

import httpx

from interpreter import wire
from interpreter.client.address import Address
from interpreter.client.calls import Options, Plan, Where, stateful
from interpreter.client.results import Event, Execution, FileEntry, Result, StoredFile
from interpreter.client.steps import Call, Following, Outcome, Read, Request, Wait

T = TypeVar("T")


class Client:
    """A service. May be used by several threads; close it, or use it as a context manager.

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
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(transport=transport, **Address.of(url, api_key).options())
        self._plan = Plan(patience_s)

    def exec(
        self, code: str, language: str = "python", *, scope: str, session: str | None = None, **options: Unpack[Options]
    ) -> Result:
        """Run code, without memory unless ``stateful=True``, and return how it ended. Ctrl-C ends it there too."""
        return self._run(self._plan.execute(Where(scope, session), code, language, options))

    def stream(
        self, code: str, language: str = "python", *, scope: str, session: str | None = None, **options: Unpack[Options]
    ) -> Stream:
        """Run code and return its events, as they come."""
        where = Where(scope, session)
        return Stream(self, scope, self._plan.stream(where, code, language, options), options.get("execution_id"))

    def submit(
        self, code: str, language: str = "python", *, scope: str, session: str | None = None, **options: Unpack[Options]
    ) -> str:
        """Begin to run code, and return the ``execution_id`` at once: for ``attach``, ``execution`` and ``cancel``."""
        return self._run(self._plan.submit(Where(scope, session), code, language, options))

    def attach(self, execution_id: str, *, scope: str, after: int = -1) -> Stream:
        """Return the events of an execution, those with a ``seq`` above ``after``."""
        return Stream(self, scope, self._plan.attach(execution_id, scope, after), execution_id, after)

    def execution(self, execution_id: str, *, scope: str) -> Execution:
        """Return where an execution is, with its result once it has finished."""
        return self._run(self._plan.execution(execution_id, scope))

    def cancel(self, execution_id: str, *, scope: str) -> Execution:
        """End an execution: interrupt it, or kill it if it is stateless. Does not wait for its end."""
        return self._run(self._plan.cancel(execution_id, scope))

    def session(self, scope: str, session: str | None = None) -> Session:
        """Return one conversation of a scope; nothing is sent."""
        return Session(self, Where(scope, session))

    def scopes(self) -> list[str]:
        """Return the scopes that have data or a sandbox."""
        return self._run(self._plan.scopes())

    def sessions(self, scope: str) -> list[wire.SessionInfo]:
        """Return the sandboxes of a scope."""
        return self._run(self._plan.sessions(scope))

    def remove_scope(self, scope: str, *, purge: bool = False, force: bool = False) -> wire.Removed:
        """Remove all sandboxes of a scope. purge: and its data. force: also while something runs there."""
        return self._run(self._plan.remove_scope(scope, purge=purge, force=force))

    def health(self) -> wire.Health:
        """Return whether the service can serve."""
        return self._run(self._plan.health())

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._http.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close it."""
        self.close()

    def _run(self, call: Call[T]) -> T:
        """Take the steps of ``call`` and return what it returns."""
        outcome: Outcome = None
        with _Steps(self._http, call) as steps:
            while True:
                try:
                    step = call.send(outcome)
                except StopIteration as end:
                    value: T = end.value
                    return value
                outcome = steps.take(step)

    def _follow(self, call: Following) -> Generator[Event, None, None]:
        """Take the steps of ``call`` and yield its events."""
        outcome: Outcome = None
        with _Steps(self._http, call) as steps:
            while True:
                try:
                    step = call.send(outcome)
                except StopIteration:
                    return
                if isinstance(step, Event):
                    outcome = None
                    yield step
                else:
                    outcome = steps.take(step)


class Stream:
    """The events of an execution, to be iterated once. Leaving it ends nothing: ``cancel`` does."""

    def __init__(self, client: Client, scope: str, call: Following, execution_id: str | None, after: int = -1) -> None:
        self._client = client
        self._scope = scope
        self._events = client._follow(call)
        self.execution_id = execution_id
        self._read = after

    def __iter__(self) -> Iterator[Event]:
        """Return itself."""
        return self

    def __next__(self) -> Event:
        """Wait for the next event and return it. After a Ctrl-C meanwhile it may be called again: no event is lost."""
        try:
            event = next(self._events)
        except KeyboardInterrupt:
            if self.execution_id is not None:  # that ended the reading: it can go on behind what has come
                self._events = self._client._follow(
                    self._client._plan.attach(self.execution_id, self._scope, self._read)
                )
            raise
        self.execution_id, self._read = event.execution_id, max(self._read, event.seq)
        return event

    def result(self) -> Result:
        """Read on to the end, and return how it ended."""
        for _ in self:
            pass
        found = self._client.execution(self._id(), scope=self._scope).result
        assert found is not None  # noqa: S101 - its last event has come
        return found

    def answer(self, text: str) -> None:
        """Answer its ``input_request``."""
        self._client._run(self._client._plan.answer_input(self._id(), self._scope, text))

    def cancel(self) -> None:
        """End the execution; its last events still come."""
        self._client.cancel(self._id(), scope=self._scope)

    def close(self) -> None:
        """Stop to follow. May be called twice."""
        self._events.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close it."""
        self.close()

    def _id(self) -> str:
        if self.execution_id is None:
            raise RuntimeError("The execution has no id yet: read its first event.")
        return self.execution_id


class Session:
    """One conversation: its kernels, which remember, and its files. As a context manager it removes the sandbox at the end, also
    while something runs there; files stay."""

    def __init__(self, client: Client, where: Where) -> None:
        self._client = client
        self._where = where
        self.scope = where.scope
        self.name = where.session
        self.files = Files(client, where)

    def run(self, code: str, language: str = "python", **options: Unpack[Options]) -> Result:
        """Run code in the kernel of its language, and return how it ended. Ctrl-C interrupts it there too."""
        return self._client.exec(code, language, scope=self.scope, session=self.name, **stateful(options))

    def stream(self, code: str, language: str = "python", **options: Unpack[Options]) -> Stream:
        """Run code in the kernel of its language, and return its events as they come."""
        return self._client.stream(code, language, scope=self.scope, session=self.name, **stateful(options))

    def submit(self, code: str, language: str = "python", **options: Unpack[Options]) -> str:
        """Begin to run code in the kernel of its language, and return the ``execution_id`` at once."""
        return self._client.submit(code, language, scope=self.scope, session=self.name, **stateful(options))

    def kernels(self) -> list[wire.KernelInfo]:
        """Return the kernels that run."""
        return self._client._run(self._client._plan.kernels(self._where))

    def interrupt(self, language: str = "python", context: str = "default") -> bool:
        """Interrupt what runs in a kernel, whose variables stay. False where nothing ran."""
        return self._client._run(self._client._plan.interrupt(self._where, language, context))

    def restart(self, language: str = "python", context: str = "default") -> None:
        """Restart a kernel: what runs in it ends, its variables are gone."""
        self._client._run(self._client._plan.restart(self._where, language, context))

    def end_kernel(self, language: str = "python", context: str = "default") -> None:
        """End a kernel: what runs in it ends, its variables are gone."""
        self._client._run(self._client._plan.end_kernel(self._where, language, context))

    def remove(self, *, purge: bool = False, force: bool = False) -> wire.Removed:
        """Remove the sandbox. purge: and the session's files. force: also while something runs there."""
        return self._client._run(self._client._plan.remove(self._where, purge=purge, force=force))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove the sandbox."""
        self.remove(force=True)


class Files:
    """The files of a session; of the scope, where there is no session. Paths are relative to that directory; names that are
    not UTF-8 are as ``os.fsdecode`` makes them."""

    def __init__(self, client: Client, where: Where) -> None:
        self._client = client
        self._where = where

    def list(self, path: str = "") -> list[FileEntry]:
        """Return what is in a directory, all of it."""
        return self._client._run(self._client._plan.list_files(self._where, path))

    def read(self, path: str) -> bytes:
        """Return what a file has."""
        return self._client._run(self._client._plan.read_file(self._where, path))

    def write(self, path: str, content: bytes | str) -> StoredFile:
        """Store a file there; text as UTF-8."""
        data = content.encode() if isinstance(content, str) else content
        return self._client._run(self._client._plan.write_file(self._where, path, data))

    def upload(self, file: Path | str, path: str | None = None) -> StoredFile:
        """Store a file of this machine there, under its own name unless ``path`` names another."""
        file = Path(file)
        return self._client._run(self._client._plan.write_file(self._where, path or file.name, file))

    def download(self, path: str, to: Path | str) -> None:
        """Store a file of there on this machine; it appears when it is whole."""
        self._client._run(self._client._plan.download(self._where, path, Path(to)))

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        self._client._run(self._client._plan.remove_file(self._where, path))


class _Steps:
    """Takes the steps of one call. Holds the answer that is being read."""

    def __init__(self, http: httpx.Client, call: Call[Any] | Following) -> None:
        self._http = http
        self._call = call
        self._open: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def take(self, step: Request | Wait | Read) -> Outcome:
        """Take one step, and return what came of it."""
        if isinstance(step, Wait):
            time.sleep(step.seconds)
            return None
        try:
            return next(self._chunks, b"") if isinstance(step, Read) else self._send(step)
        except httpx.TransportError as error:
            return error
        except BaseException:
            if isinstance(step, Request) and step.undo is not None:
                with contextlib.suppress(httpx.TransportError):
                    self._send(step.undo)
            raise

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Let go of the call and of the answer that is being read."""
        self._call.close()
        self._let_go()

    def _let_go(self) -> None:
        if self._open is not None:
            self._open.close()

    def _send(self, step: Request) -> httpx.Response:
        request = self._http.build_request(
            step.method,
            step.path,
            params=step.params,
            json=step.body,
            content=_pieces(step.content) if isinstance(step.content, Path) else step.content,
            headers=step.sent_headers(),
            timeout=step.timeout,
        )
        self._let_go()
        self._open = response = self._http.send(request, stream=True)
        if step.save_to is not None and response.is_success:
            with step.save_to.open("wb") as file:
                for chunk in response.iter_bytes():
                    file.write(chunk)
        elif step.streamed and response.is_success:
            self._chunks = response.iter_bytes()
        else:
            response.read()
        return response


def _pieces(file: Path) -> Iterable[bytes]:
    with file.open("rb") as opened:
        while piece := opened.read(1 << 18):
            yield piece
