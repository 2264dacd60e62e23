"""Requests and answers as clients see them: the models, their limits, and one sentence for each field.

Promises: light to import (pydantic, which the client has too, and nothing of the service); what the models do not know
is refused by name, and numbers are numbers, never strings or booleans. The OpenAPI document is made from these models.
Leaves to http/: which status an error has, settings' limits (code, timeouts), and turning a request into work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

NAME = r"^[A-Za-z0-9_-]{1,64}$"
NAME_RULE = "must be 1 to 64 letters (A-Z, a-z), digits, '_' or '-'"
MAX_BODY_BYTES = 32 * 2**20
MAX_ENV_BYTES = 64 * 2**10
MAX_PATH_BYTES = 4096
MAX_INPUT = 64 * 1024
MAX_FILES = 100
"""Of one execution."""
DEFAULT_QUEUE_TIMEOUT_S = 30.0
MAX_QUEUE_TIMEOUT_S = 3600.0

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _empty_is_none(value: Any) -> Any:
    return None if value == "" else value


Name = Annotated[str, Field(pattern=NAME)]
Session = Annotated[
    Annotated[str, Field(pattern=NAME)] | None,
    BeforeValidator(_empty_is_none),
    Field(description="One conversation inside the scope; absent, null or empty for none.", examples=["chatA"]),
]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Request(BaseModel):
    """Base of what clients send: exact types, no field that is not known."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    HINTS: ClassVar[Mapping[str, str]] = {}
    """What whoever leaves a field out is told besides: what it may be, or what else may have been meant."""


class Base64Content(Request):
    """Bytes of a file."""

    base64: str = Field(description="In base64, as in RFC 4648, padded.")


def _content(value: Any) -> Any:
    given = value["base64"] if isinstance(value, dict) and value.keys() == {"base64"} else value
    if not isinstance(given, str):
        raise ValueError('must be text or {"base64": …}')
    return value


FileContent = Annotated[str | Base64Content, BeforeValidator(_content)]


class ExecBody(Request):
    """One execution."""

    scope: Name = Field(description="Who owns the data, a user for example.", examples=["u1"])
    session: Session = None
    language: str = Field(
        description="`python`, `node` or `bash`, in any case; also `py`, `python3`, `javascript`, `js`, `nodejs`, "
        "`sh`, `shell`. With `stateful` also the name of another kernel that is installed in the sandbox.",
        examples=["python"],
    )
    code: str = Field(description="The code, up to SANDBOX_MAX_CODE_KB as UTF-8.", examples=["x = 41\nx + 1"])
    timeout: Seconds | None = Field(
        default=None,
        description="Seconds the code may run, fractions allowed; absent, null or 0 for SANDBOX_DEFAULT_TIMEOUT; more "
        "than SANDBOX_MAX_TIMEOUT is lowered to it. Waiting and starting do not count.",
        examples=[30],
    )
    queue_timeout: Seconds | None = Field(
        default=None,
        description="Seconds to wait for a busy kernel, 30 if absent or null, at most 3600; then 429, nothing has run.",
        examples=[30],
    )
    env: dict[str, str] | None = Field(
        default=None,
        description="Extra variables of this execution; 64 KiB in all.",
        examples=[{"FOO": "bar"}],
    )
    stateful: bool | None = Field(
        default=None,
        description="false (default): a fresh interpreter. true: the kernel of (sandbox, language, context), which "
        "keeps variables, imports, functions and the working directory.",
        examples=[True],
    )
    context: Name | None = Field(
        default=None,
        description="One of several kernels of a language; `default` if absent or null.",
        examples=["default"],
    )
    cwd: str | None = Field(
        default=None,
        description="Directory of this execution, relative to `/opt/workspace` or absolute inside the sandbox.",
        examples=["/opt/workspace"],
    )
    stdin: str | None = Field(
        default=None,
        description="Text the program may read (stateless, and stateful node and bash); otherwise stdin is at end of file.",
    )
    execution_id: Name | None = Field(
        default=None,
        description="An id of the caller's, unique in its scope: the same request again returns the first execution.",
        examples=["run-1"],
    )
    files: dict[str, FileContent] | None = Field(
        default=None,
        description="Files by path, 100 at most: written into the workspace before the run, all or none. What a "
        "`requirements.txt` among them names is installed then; where that fails the code does not run.",
        examples=[{"data/in.csv": "city,n\nOslo,3\n", "logo.png": {"base64": "iVBORw0KGgo="}}],
    )
    detach: bool | None = Field(
        default=None, description="true: 202 at once with `execution_id`; the answer is fetched from /v1/executions."
    )
    allow_input: bool | None = Field(
        default=None,
        description="true: when the code reads input, an `input_request` event asks for it, and the run waits for the answer.",
    )

    @field_validator("code")
    @classmethod
    def _no_byte_order_mark(cls, value: str) -> str:
        return value.removeprefix("\ufeff")

    @field_validator("env")
    @classmethod
    def _env_can_be_set(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        size = 0
        for name, text in (value or {}).items():
            if _ENV_NAME.fullmatch(name) is None:
                raise ValueError(f"has the name {name[:64]!a}, which is not of the form [A-Za-z_][A-Za-z0-9_]*")
            if "\0" in text:
                raise ValueError(f"has a NUL in {name[:64]}")
            size += len(name) + len(text.encode())
        if size > MAX_ENV_BYTES:
            raise ValueError(f"is {size} bytes in all; the limit is {MAX_ENV_BYTES}")
        return value

    @field_validator("cwd")
    @classmethod
    def _cwd_can_be_a_path(cls, value: str | None) -> str | None:
        if value is not None and (not value or "\0" in value or len(value.encode()) > MAX_PATH_BYTES):
            raise ValueError(f"must be a path of 1 to {MAX_PATH_BYTES} bytes without NUL")
        return value


class InputBody(Request):
    """What an execution reads."""

    text: str = Field(description="One line, without its line break.", max_length=MAX_INPUT, examples=["yes"])


class NoBody(Request):
    """An empty body or ``{}``."""


# --- queries --------------------------------------------------------------------------------------------------------


def _truth(value: Any) -> Any:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


Flag = Annotated[bool, BeforeValidator(_truth)]


class NoQuery(Request):
    """No query."""


class ExecutionQuery(Request):
    """Where an execution is looked up."""

    scope: Name | None = Field(default=None, description="Required for ids that callers made.")


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}", value) else value


class EventsQuery(ExecutionQuery):
    """Which events of an execution."""

    after: Annotated[int, BeforeValidator(_number), Field(ge=-1)] | None = Field(
        default=None, description="The `seq` of the last event that the caller has; -1 or absent for none."
    )


class SocketQuery(Request):
    """Whose executions a WebSocket is for."""

    scope: Name = Field(description="Who owns the data.")
    session: Session = None


class AttachMessage(Request):
    """Over a WebSocket: follow an execution of its scope."""

    id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    execution_id: Name
    after: Annotated[int, Field(ge=-1)] | None = None


class SessionQuery(Request):
    """Which sandbox of a scope."""

    session: Session = None


class KernelQuery(Request):
    """Which kernel of a language."""

    session: Session = None
    context: Annotated[Name, BeforeValidator(lambda value: value or "default")] = Field(
        default="default", description="The kernel's context."
    )


class ForceQuery(Request):
    """How to remove."""

    force: Flag = Field(default=False, description="Remove even while an execution is queued or running.")


class PurgeQuery(ForceQuery):
    """How, and how much, to remove."""

    purge: Flag = Field(default=False, description="Delete the data as well.")


# --- answers --------------------------------------------------------------------------------------------------------

Status = Literal["ok", "error", "timeout", "interrupted", "died", "cancelled"]
Reason = Literal["oom", "crash", "exit", "killed", "timeout", "idle", "deleted", "restart"]
State = Literal["new", "kept", "lost"]
FilesIncomplete = Literal["too_many_changes", "too_many_entries", "unreadable", "not_known"]


class AnswerModel(BaseModel):
    """Base of what the service sends."""

    model_config = ConfigDict(frozen=True)


class Result(AnswerModel):
    """One rich output."""

    type: Literal["result", "display", "update", "omitted"] = Field(
        description="`result`: value of the last expression."
    )
    data: dict[str, Any] | None = Field(default=None, description="A Jupyter MIME bundle; binary kinds in base64.")
    metadata: dict[str, Any] | None = Field(default=None, description="Metadata of the bundle.")
    display_id: str | None = Field(default=None, description="Id of the display, if it has one.")
    mime: str | None = Field(default=None, description="`omitted` only: the kind that did not fit.")
    bytes: int | None = Field(default=None, description="`omitted` only: its size.")


class UserError(AnswerModel):
    """An uncaught error of the user's code, without ANSI codes."""

    name: str = Field(description="Its class.")
    value: str = Field(description="Its text.")
    traceback: list[str] = Field(description="Its traceback, in pieces.")


class FileChange(AnswerModel):
    """What became of a file of the workspace."""

    path: str = Field(description="Where it is, or was; U+FFFD stands for bytes that are not UTF-8.")
    change: Literal["created", "changed", "deleted"] = Field(description="What became of it.")
    size: int | None = Field(description="Bytes of a plain file, 0 for a link and the like; null for what is deleted.")
    raw: str | None = Field(
        default=None, description="Its percent-encoded bytes, where the path is not UTF-8; works in a URL."
    )


class EgressDenied(AnswerModel):
    """What was refused on the way out of the sandbox."""

    host: str = Field(description="As the program named it; empty for all that no room was left for.")
    port: int = Field(description="Its port.")
    reason: str = Field(description="Why: `not_allowed`, `denied_by_rule`, `port`, `private_address`, …")
    count: int = Field(description="How often.")


class OutputBytes(AnswerModel):
    """What was written, before any cut."""

    stdout: int = Field(description="Bytes.")
    stderr: int = Field(description="Bytes.")


class Timing(AnswerModel):
    """Where the time went, in milliseconds."""

    queued_ms: int = Field(description="Waiting for the kernel's turn.")
    started_ms: int = Field(description="Starting the sandbox and kernel.")
    run_ms: int = Field(description="Running the code.")


class ExecAnswer(AnswerModel):
    """How an execution ended. Errors of the user's code are here, never HTTP errors."""

    stdout: str = Field(description="What was written to stdout, also by children; cut to SANDBOX_MAX_OUTPUT_KB.")
    stderr: str = Field(description="The same of stderr.")
    exit_code: int = Field(description="0 if the code did well; 124 or 137 after a timeout, 130 after an interrupt.")
    timed_out: bool = Field(description="Whether `timeout` ended it.")
    truncated: bool = Field(description="Whether stdout, stderr or results were cut.")
    duration_ms: int = Field(description="Milliseconds the code ran.")
    execution_id: str = Field(description="The caller's id, or one made here.")
    status: Status = Field(description="How it ended.")
    results: list[Result] = Field(description="Rich outputs in order; empty for stateless executions.")
    error: UserError | None = Field(description="The uncaught error, or null.")
    execution_count: int | None = Field(description="The kernel's counter; null for stateless executions.")
    context: str | None = Field(description="The kernel's context; null for stateless executions.")
    state: State | None = Field(
        description="`new` kernel, `kept`, or `lost` (said once, with `reason`); null if stateless."
    )
    generation: int | None = Field(description="Lives of this kernel from 1; null for stateless executions.")
    reason: Reason | None = Field(description="Why it died or the state was lost, or null.")
    output_bytes: OutputBytes = Field(description="Bytes written, before any cut.")
    files: list[FileChange] = Field(
        description="What changed in the workspace while it ran, sorted by path: 1000 files at most, no directories."
    )
    files_incomplete: FilesIncomplete | None = Field(
        default=None, description="Why `files` may not have all of it, or null."
    )
    egress_denied: list[EgressDenied] = Field(
        description="What was refused on the way out of the sandbox while this ran: at most 100 kinds, and the number of others."
    )
    timing: Timing = Field(description="Where the time went.")


class InputRequest(AnswerModel):
    """What code that reads input asks for."""

    prompt: str = Field(description="What it shows to whoever is to answer.")
    password: bool = Field(description="Whether the answer is not to be shown.")


class ExecutionView(AnswerModel):
    """An execution; with the fields of an exec's answer once it has finished."""

    phase: Literal["queued", "running", "finished"] = Field(description="Where it is.")
    execution_id: str = Field(description="Its id.")
    input_request: InputRequest | None = Field(
        default=None, description="Only while it waits for an answer: POST it to /v1/executions/{execution_id}/input."
    )


class Accepted(AnswerModel):
    """What was taken."""

    execution_id: str = Field(description="The execution that it is about.")
    phase: Literal["queued", "running", "finished"] = Field(description="Where that is.")


class ErrorBody(AnswerModel):
    """Why a request was not served."""

    code: str = Field(description="One of a fixed set, for programs.", examples=["session_busy"])
    message: str = Field(description="One sentence for the caller.")
    retryable: bool = Field(description="Whether the same call may succeed later.")


class KernelInfo(AnswerModel):
    """A kernel that runs."""

    language: str = Field(description="Its language.")
    context: str = Field(description="Its context.")
    state: Literal["starting", "idle", "busy"] = Field(description="What it does.")
    generation: int | None = Field(description="Which life of it this is, from 1; null until it has started.")
    execution_count: int | None = Field(description="Executions so far.")
    started_at: str | None = Field(description="RFC 3339, UTC; null until it has started.")
    last_used_at: str | None = Field(description="RFC 3339, UTC; null until it has started.")


class SessionInfo(AnswerModel):
    """A sandbox that runs."""

    session: str | None = Field(description="Its session; null for the session-less one.")
    state: Literal["starting", "idle", "busy"] = Field(description="What it does.")
    backend: str = Field(description="What made it.")
    started_at: str = Field(description="RFC 3339, UTC.")
    last_used_at: str = Field(description="RFC 3339, UTC.")
    expires_at: str | None = Field(description="When it is removed if nobody uses it; null while in use.")
    kernels: list[KernelInfo] = Field(description="Its kernels.")
    memory_bytes: int | None = Field(description="Memory in use; null where the host does not count.")


class SessionList(AnswerModel):
    """The sandboxes of a scope."""

    sessions: list[SessionInfo] = Field(description="The sandboxes.")


class KernelList(AnswerModel):
    """The kernels of a sandbox."""

    kernels: list[KernelInfo] = Field(description="The kernels.")


class Removed(AnswerModel):
    """What was removed."""

    removed: int = Field(description="How many; 0 when there was nothing.")
    purged: bool = Field(
        description="Whether no data is left; false without `purge`, and while some could not be removed yet."
    )


class Interrupted(AnswerModel):
    """Whether something was interrupted."""

    interrupted: bool = Field(description="false for an idle kernel.")


class Restarted(AnswerModel):
    """Whether the kernel was restarted."""

    restarted: bool = Field(description="true.")


class Health(AnswerModel):
    """Whether the service can serve."""

    status: str = Field(description="`ok`, or what is wrong.")
    version: str = Field(description="Version of the service.")
    runtime: str = Field(description="What makes the sandboxes.")
    warnings: list[str] | None = Field(
        default=None, description="What is weak about the runtime, as said at the start; for who sends a key."
    )
