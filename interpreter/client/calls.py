"""Every call that a client can make, as steps: what is sent, and what the answer means.

Promises: a name or path that would lead elsewhere in the URL is refused here, whoever gave it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from interpreter import wire, wire_scopes
from interpreter.client.errors import InvalidRequest, Refused
from interpreter.client.results import Execution, FileEntry, Result, StoredFile
from interpreter.client.steps import SILENCE_S, Call, Following, Request, answered, decoded, events, new_id

M = TypeVar("M", bound=BaseModel)

ANSWER_S = 120.0
"""For an answer that waits for no code: the longest is a removal."""
_LONGEST_RUN_S = 600.0
_START_S = 150.0
"""For a sandbox to start and have its turn, and for the grace at the end of a run."""
_INSTALL_S = 300.0
_PAGE = 1000


class Options(TypedDict, total=False):
    """What ``exec``, ``run`` and ``stream`` take besides the code; the words are those of the wire contract.

    files: text, bytes or a file of this machine for each path of the workspace.
    """

    stateful: bool
    context: str
    timeout: float
    queue_timeout: float
    env: dict[str, str]
    cwd: str
    stdin: str
    files: Mapping[str, str | bytes | Path]
    execution_id: str
    allow_input: bool


@dataclass(frozen=True, slots=True)
class Where:
    """A scope, and one of its sessions. Raises InvalidRequest for what can be none."""

    scope: str
    session: str | None = None

    def __post_init__(self) -> None:
        """Judge the names."""
        _check_name("scope", self.scope)
        if self.session is not None:
            _check_name("session", self.session)

    @property
    def query(self) -> dict[str, str]:
        """The query that names the session."""
        return {} if self.session is None else {"session": self.session}


@dataclass(frozen=True, slots=True)
class Plan:
    """How calls are made. patience_s: for pauses before a call is made again."""

    patience_s: float = 10.0

    # --- executions ---------------------------------------------------------------------------------------------------

    def execute(self, where: Where, code: str, language: str, options: Options) -> Call[Result]:
        """Run code and return how it ended."""
        response = yield from answered(_exec(where, code, language, options), self.patience_s)
        return _model(Result, decoded(response))

    def submit(self, where: Where, code: str, language: str, options: Options) -> Call[str]:
        """Begin to run code and return the ``execution_id``."""
        request = _exec(where, code, language, options, detach=True)
        response = yield from answered(request, self.patience_s)
        return _model(wire.Accepted, decoded(response)).execution_id

    def stream(self, where: Where, code: str, language: str, options: Options) -> Following:
        """Run code and yield its events."""
        return events(_exec(where, code, language, options, streamed=True), self.patience_s)

    def attach(self, execution_id: str, scope: str, after: int) -> Following:
        """Yield the events of an execution that was begun before."""
        path = f"/v1/executions/{_check_name('execution_id', execution_id)}/events"
        return events(_streamed("GET", path, params={"scope": Where(scope).scope}), self.patience_s, after)

    def execution(self, execution_id: str, scope: str) -> Call[Execution]:
        """Look at an execution."""
        return self._seen("GET", execution_id, scope)

    def cancel(self, execution_id: str, scope: str) -> Call[Execution]:
        """End an execution."""
        return self._seen("DELETE", execution_id, scope)

    def _seen(self, method: str, execution_id: str, scope: str) -> Call[Execution]:
        path = f"/v1/executions/{_check_name('execution_id', execution_id)}"
        told = yield from self._json(method, path, params={"scope": Where(scope).scope}, repeatable=True)
        if isinstance(told, dict) and told.get("phase") == "finished" and "exit_code" in told:
            return Execution(execution_id=told["execution_id"], phase="finished", result=_model(Result, told))
        return _model(Execution, told)

    def answer_input(self, execution_id: str, scope: str, text: str) -> Call[None]:
        """Answer an ``input_request``."""
        path = f"/v1/executions/{_check_name('execution_id', execution_id)}/input"
        yield from self._json("POST", path, params={"scope": Where(scope).scope}, body={"text": text})

    # --- kernels and sandboxes ------------------------------------------------------------------------------------------

    def kernels(self, where: Where) -> Call[list[wire.KernelInfo]]:
        """List the kernels of a session."""
        told = yield from self._json("GET", f"/v1/kernels/{where.scope}", params=where.query, repeatable=True)
        return _model(wire.KernelList, told).kernels

    def interrupt(self, where: Where, language: str, context: str) -> Call[bool]:
        """Interrupt what runs in a kernel, and say whether anything did."""
        told = yield from self._json("POST", *_kernel(where, language, context, "/interrupt"))
        return _model(wire.Interrupted, told).interrupted

    def restart(self, where: Where, language: str, context: str) -> Call[None]:
        """Restart a kernel."""
        yield from self._json("POST", *_kernel(where, language, context, "/restart"))

    def end_kernel(self, where: Where, language: str, context: str) -> Call[None]:
        """End a kernel."""
        yield from self._json("DELETE", *_kernel(where, language, context, ""))

    def scopes(self) -> Call[list[str]]:
        """List the scopes."""
        told = yield from self._json("GET", "/v1/scopes", repeatable=True)
        return [each.scope for each in _model(wire_scopes.ScopeList, told).scopes]

    def sessions(self, scope: str) -> Call[list[wire.SessionInfo]]:
        """List the sandboxes of a scope."""
        told = yield from self._json("GET", f"/v1/scopes/{Where(scope).scope}/sessions", repeatable=True)
        return _model(wire.SessionList, told).sessions

    def remove(self, where: Where, *, purge: bool, force: bool) -> Call[wire.Removed]:
        """Remove the sandbox of a session; with purge its data too."""
        path = f"/v1/scopes/{where.scope}/" + ("sandbox" if where.session is None else f"sessions/{where.session}")
        told = yield from self._json("DELETE", path, params=_flags(purge=purge, force=force))
        return _model(wire.Removed, told)

    def remove_scope(self, scope: str, *, purge: bool, force: bool) -> Call[wire.Removed]:
        """Remove all sandboxes of a scope; with purge all its data too."""
        told = yield from self._json(
            "DELETE", f"/v1/scopes/{Where(scope).scope}", params=_flags(purge=purge, force=force)
        )
        return _model(wire.Removed, told)

    def health(self) -> Call[wire.Health]:
        """Ask whether the service can serve."""
        return _model(wire.Health, (yield from self._json("GET", "/healthz", repeatable=True)))

    # --- files --------------------------------------------------------------------------------------------------------

    def list_files(self, where: Where, path: str) -> Call[list[FileEntry]]:
        """List a directory, all of it."""
        found: list[FileEntry] = []
        params = {**where.query, "limit": str(_PAGE)}
        while True:
            told = yield from self._json("GET", _file(where, path, directory=True), params=params, repeatable=True)
            page = _model(_Listing, told)
            found += page.entries
            if page.next is None:
                return found
            params["after"] = page.next

    def read_file(self, where: Where, path: str) -> Call[bytes]:
        """Return what a file has."""
        request = Request(method="GET", path=_file(where, path), params=where.query, answer_s=ANSWER_S, repeatable=True)
        response = yield from answered(request, self.patience_s)
        _check_file(path, response)
        return response.content

    def download(self, where: Where, path: str, to: Path) -> Call[None]:
        """Store a file here; ``to`` appears when it is whole."""
        part = to.with_name(f"{to.name}.{new_id()[:8]}.part")
        request = Request(
            method="GET",
            path=_file(where, path),
            params=where.query,
            answer_s=ANSWER_S,
            repeatable=True,
            save_to=part,
        )
        try:
            _check_file(path, (yield from answered(request, self.patience_s)))
            part.replace(to)
        finally:
            part.unlink(missing_ok=True)

    def write_file(self, where: Where, path: str, content: bytes | Path) -> Call[StoredFile]:
        """Store a file there."""
        request = Request(
            method="PUT",
            path=_file(where, path),
            params=where.query,
            content=content,
            answer_s=ANSWER_S,
            repeatable=True,
        )
        return _model(StoredFile, decoded((yield from answered(request, self.patience_s))))

    def remove_file(self, where: Where, path: str) -> Call[None]:
        """Remove a file or a directory with all that is in it."""
        yield from self._json("DELETE", _file(where, path), params=where.query)

    # --- all of them -----------------------------------------------------------------------------------------------------

    def _json(
        self,
        method: str,
        path: str,
        params: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
        *,
        repeatable: bool = False,
    ) -> Call[Any]:
        request = Request(
            method=method, path=path, params=params or {}, body=body, answer_s=ANSWER_S, repeatable=repeatable
        )
        return decoded((yield from answered(request, self.patience_s)))


def stateful(options: Options) -> Any:
    """Return ``options`` with memory, unless they say otherwise."""
    return {"stateful": True, **options}


class _Listing(BaseModel):
    entries: list[FileEntry]
    next: str | None = None


def _exec(
    where: Where, code: str, language: str, options: Options, *, detach: bool = False, streamed: bool = False
) -> Request:
    """The request that runs code. It carries an id in any case, so that it can be sent again."""
    given = {"scope": where.scope, "session": where.session, "language": language, "code": code, **options}
    body = {name: value for name, value in given.items() if value is not None}
    if files := options.get("files"):
        body["files"] = {path: _content(path, content) for path, content in files.items()}
    made = not options.get("execution_id")
    if made:
        body["execution_id"] = new_id()
    if detach:
        body["detach"] = True
    if streamed:
        return _streamed("POST", "/v1/exec", body=body, id_made=made)
    waits_s = 0.0
    if not detach:
        queue_s = options.get("queue_timeout")
        waits_s = _INSTALL_S if "requirements.txt" in (options.get("files") or {}) else 0.0
        waits_s += (options.get("timeout") or _LONGEST_RUN_S) + (
            wire.DEFAULT_QUEUE_TIMEOUT_S if queue_s is None else queue_s
        )
    return Request(
        method="POST",
        path="/v1/exec",
        body=body,
        answer_s=waits_s + _START_S,
        repeatable=True,
        id_made=made,
    )


def _content(path: str, content: Any) -> str | dict[str, str]:
    """Return what a file has, as it is sent. Raises InvalidRequest."""
    if isinstance(content, Path):
        try:
            content = content.read_bytes()
        except OSError as error:
            raise InvalidRequest(f"{content} cannot be read: {error.strerror}.", code="invalid_request") from error
    if isinstance(content, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(content).decode()}
    if not isinstance(content, str):
        raise InvalidRequest(f"files[{path!r}] must be text, bytes or a Path.", code="invalid_request")
    return content


def _streamed(method: str, path: str, **fields: Any) -> Request:
    return Request(method=method, path=path, answer_s=SILENCE_S, streamed=True, repeatable=True, **fields)


def _kernel(where: Where, language: str, context: str, action: str) -> tuple[str, dict[str, str]]:
    _check_name("context", context)
    path = f"/v1/kernels/{where.scope}/{_one_part('language', language)}{action}"
    return path, {**where.query, "context": context}


def _file(where: Where, path: str, *, directory: bool = False) -> str:
    """The path in the URL of a file; of a directory it ends in a slash.

    Raises InvalidRequest for parts that a URL would swallow, and with them the scope.
    """
    parts = [part for part in path.split("/") if part] if directory else path.removeprefix("/").split("/")
    return "/".join([f"/v1/files/{where.scope}", *(_one_part("path", part) for part in parts), *[""] * directory])


def _check_file(path: str, response: httpx.Response) -> None:
    """Raise InvalidRequest for a listing, which is what a directory is answered with."""
    if "Content-Disposition" not in response.headers:
        raise InvalidRequest(f"{path!r} is a directory.", code="is_directory")


def _one_part(name: str, part: str) -> str:
    if part in ("", ".", "..") or "\0" in part:
        raise InvalidRequest(f"{name} may not have the part {part!r}.", code="invalid_request")
    return quote(part, safe="", errors="surrogateescape")


def _check_name(name: str, value: str) -> str:
    if re.fullmatch(wire.NAME, value) is None or value.endswith("\n"):
        raise InvalidRequest(f"{name} {wire.NAME_RULE}.", code="invalid_request")
    return value


def _flags(**flags: bool) -> dict[str, str]:
    return {name: "true" for name, given in flags.items() if given}


def _model(model: type[M], told: Any) -> M:
    try:
        return model.model_validate(told)
    except ValidationError as error:
        raise Refused("The answer is not of the form it has to have.", code="unreadable_answer") from error
