"""What an execution is asked, and how its end inside the sandbox becomes the answer that the caller gets.

Plain values and functions: no waiting, no clock, no I/O.
Leaves to sandboxes/kernels.py what became of the kernel, and to http the shape of requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, Literal
from urllib.parse import quote_from_bytes

import msgspec
from msgspec import Raw, Struct
from sandboxd.protocol import Change, FilesIncomplete, Outcome, Reason, Result, Status, UserError

from interpreter.executions.jsontext import checked
from interpreter.keys import KernelKey, Key

Phase = Literal["queued", "running", "finished"]
State = Literal["new", "kept", "lost"]

OUT_OF_MEMORY = "out of memory: the sandbox had used all it may have, so a program in it was killed"

HEAVY_RESULTS = 100
HEAVY_JSON = 256 * 1024


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One request to run code, checked and completed by HTTP.

    language: canonical name. timeout_s: of the run, already within its bounds. queue_timeout_s: in a busy kernel's queue.
    execution_id: the caller's own, or None for one of ours. stream: its events are wanted as they come.
    allow_input: the caller can answer when it asks for input. files: by path, written into the workspace before the run; what
    ``requirements.txt`` among them names is installed then.
    """

    scope: str
    language: str
    code: str
    timeout_s: float
    session: str | None = None
    queue_timeout_s: float = 30.0
    env: Mapping[str, str] = field(default_factory=dict)
    stateful: bool = False
    context: str = "default"
    cwd: str | None = None
    stdin: str | None = None
    execution_id: str | None = None
    stream: bool = False
    allow_input: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Whose sandbox it runs in."""
        return Key(self.scope, self.session)

    @property
    def kernel(self) -> KernelKey | None:
        """The kernel it runs in; None for a stateless one."""
        return KernelKey(self.language, self.context) if self.stateful else None

    def digest(self) -> bytes:
        """Return what is the same for another request only if that is, under one ``execution_id``, a repetition of this one."""
        identity = (self.scope, self.session, self.language, self.code, self.stateful, self.context)
        return hashlib.sha256(repr(identity).encode("utf-8", "backslashreplace")).digest()


class Timing(Struct, frozen=True):
    """Milliseconds. queued_ms: for the kernel's turn. started_ms: for sandbox and kernel. run_ms: of the code."""

    queued_ms: int = 0
    started_ms: int = 0
    run_ms: int = 0


class ErrorInfo(Struct, frozen=True):
    """An uncaught error of the user's code."""

    name: str
    value: str
    traceback: list[str]


class Answer(Struct, frozen=True):
    """The 200 body of an exec, fields in the order of the contract. ``results`` are ready to be encoded."""

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool
    truncated: bool
    duration_ms: int
    execution_id: str
    status: Status
    results: list[dict[str, Any]]
    error: ErrorInfo | None
    execution_count: int | None
    context: str | None
    state: State | None
    generation: int | None
    reason: Reason | None
    output_bytes: dict[str, int]
    files: list[dict[str, Any]]
    files_incomplete: FilesIncomplete | None
    egress_denied: list[dict[str, Any]]
    timing: Timing

    def to_json(self) -> bytes:
        """Return it as JSON, UTF-8, without a lone surrogate."""
        return _json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> Answer:
        """Return the answer whose ``to_json`` was ``text``: its own will be the same again. Raises msgspec.DecodeError."""
        return _kept.decode(text)

    def summary(self) -> dict[str, Any]:
        """Return the fields of the ``finished`` event: all but ``stdout``, ``stderr`` and ``results``."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in _NOT_IN_SUMMARY}

    def size(self) -> int:
        """About how many bytes of memory it holds: a text with one character outside the BMP takes four for each."""
        results = sum(_held(value) for entry in self.results for value in _values(entry))
        results += _DENIED_BYTES * len(self.egress_denied)
        error = 0 if self.error is None else sum(map(getsizeof, self.error.traceback)) + getsizeof(self.error.value)
        files = sum(_HELD_BY_CHANGE + getsizeof(entry["path"]) for entry in self.files)
        return 1000 + getsizeof(self.stdout) + getsizeof(self.stderr) + results + error + files


_DENIED_BYTES = 600
"""Of one refusal on the way out."""
_NOT_IN_SUMMARY = ("stdout", "stderr", "results", "execution_id")
_HELD_BY_CHANGE = 300
"""Bytes of memory, besides its path."""
_json = msgspec.json.Encoder()


class _Kept(Answer, frozen=True):
    """An answer that was read back: its results are JSON texts, to be written again as they are."""

    results: list[Raw]  # type: ignore[assignment]  # nothing looks into results but to_json and size


_kept = msgspec.json.Decoder(_Kept)


def _values(entry: dict[str, Any] | Raw) -> list[Any]:
    return [entry] if isinstance(entry, Raw) else list(entry.get("data", {}).values())


def _held(value: str | Raw) -> int:
    return getsizeof(value) if isinstance(value, str) else memoryview(value).nbytes


@dataclass(frozen=True, slots=True)
class Life:
    """What an answer says of its kernel; all None for a stateless run. reason: why it was lost, if ``state`` says so."""

    state: State | None = None
    generation: int | None = None
    reason: Reason | None = None


def with_cause(outcome: Outcome) -> Outcome:
    """Return ``outcome`` saying at the end of its ``stderr``, and in ``error``, what nobody inside could say any more: that
    memory ran out."""
    if outcome.reason != "oom":
        return outcome
    line = ("" if outcome.stderr.endswith("\n") or not outcome.stderr else "\n") + OUT_OF_MEMORY + "\n"
    return msgspec.structs.replace(
        outcome,
        stderr=outcome.stderr + line,
        stderr_bytes=outcome.stderr_bytes + len(line),
        error=outcome.error or UserError("OutOfMemory", OUT_OF_MEMORY, []),
    )


def answer(
    execution_id: str,
    request: ExecRequest,
    outcome: Outcome,
    life: Life,
    timing: Timing,
    *,
    egress_denied: Sequence[dict[str, Any]] = (),
) -> Answer:
    """Return the answer to ``request`` that ended as ``outcome``.

    A death's own reason goes before the kernel's; JSON kinds that are no JSON, or too deep, are named as omitted.
    """
    results, omitted = entries(outcome.results)
    error = outcome.error
    return Answer(
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        exit_code=outcome.exit_code,
        timed_out=outcome.status == "timeout",
        truncated=outcome.truncated or omitted,
        duration_ms=outcome.run_ms,
        execution_id=execution_id,
        status=outcome.status,
        results=results,
        error=None if error is None else ErrorInfo(error.name, error.value, error.traceback),
        execution_count=outcome.execution_count if request.stateful else None,
        context=request.context if request.stateful else None,
        state=life.state,
        generation=life.generation,
        reason=outcome.reason or life.reason,
        output_bytes={"stdout": outcome.stdout_bytes, "stderr": outcome.stderr_bytes},
        files=[_changed(change) for change in outcome.files],
        files_incomplete=outcome.files_incomplete,
        egress_denied=list(egress_denied),
        timing=timing,
    )


def _changed(change: Change) -> dict[str, Any]:
    size = None if change.change == "deleted" else change.size
    try:
        return {"path": change.path.decode(), "change": change.change, "size": size}
    except UnicodeDecodeError:
        shown, raw = change.path.decode(errors="replace"), quote_from_bytes(change.path)
        return {"path": shown, "change": change.change, "size": size, "raw": raw}


def entries(results: list[Result]) -> tuple[list[dict[str, Any]], bool]:
    """Return rich outputs as an answer has them, and whether something of them had to be left out here."""
    found: list[dict[str, Any]] = []
    omitted = False
    for result in results:
        if result.type == "omitted":
            found.append({"type": "omitted", "mime": result.mime, "bytes": result.size})
            omitted = True
            continue
        data: dict[str, Any] = dict(result.data)
        for mime, text in result.json.items():
            embedded = checked(text)
            if embedded is None:
                found.append({"type": "omitted", "mime": mime, "bytes": len(text.encode())})
                omitted = True
            else:
                data[mime] = embedded
        metadata = checked(result.metadata)
        if metadata is None or not bytes(metadata).lstrip().startswith(b"{"):
            metadata = Raw(b"{}")
        entry: dict[str, Any] = {"type": result.type, "data": data, "metadata": metadata}
        if result.display_id is not None:
            entry["display_id"] = result.display_id
        found.append(entry)
    return found, omitted


def heavy(outcome: Outcome) -> bool:
    """Whether ``answer`` may take longer than a few milliseconds, so that it belongs into a thread."""
    results = outcome.results
    return len(results) > HEAVY_RESULTS or sum(len(t) for r in results for t in r.json.values()) > HEAVY_JSON


def ended(
    request: ExecRequest,
    status: Literal["timeout", "died", "interrupted", "cancelled"],
    *,
    run_ms: int = 0,
    stdout: str = "",
    stderr: str = "",
    reason: Reason | None = None,
) -> Outcome:
    """Return the outcome of an execution whose end the sandbox did not tell; the outputs are what is known of them."""
    exit_code = {"timeout": 124 if request.stateful else 137, "died": 137, "interrupted": 130, "cancelled": 130}[status]
    return Outcome(
        status=status,
        exit_code=exit_code,
        run_ms=run_ms,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=len(stdout.encode()),
        stderr_bytes=len(stderr.encode()),
        reason=reason,
    )
