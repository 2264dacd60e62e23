"""What crosses the link between the service and a sandbox: framed, bounded, schema-checked messages.

Both ends use this module and nothing else of each other. A frame is a 4-byte big-endian length and that many bytes of
msgpack; the length is checked before the body is read. Every string, list and integer has a bound, unknown fields and
extension types are refused, so a hostile peer can end its own connection and no more.

Promises: ``decode`` raises ``ProtocolError`` and nothing else, whatever the bytes.
Leaves to its users: who may send what when, budgets per execution, and looking ids up.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

VERSION = 3
LINK_SOCKET = "link.sock"
"""Name of the socket in the link directory (``/run/cellbox`` inside)."""
EGRESS_SOCKET = "egress"  # the proxy's, if there is a way out

MAX_FRAME_TO_SANDBOX = 40 * 2**20
"""A whole request body is at most 32 MiB; msgpack adds little to it."""

FRAME_MARGIN = 4 * 2**20
"""What a frame from a sandbox may hold beyond outputs and results: an error, the names of what was left out, msgpack."""

MAX_TEXT = 256 * 1024
"""Bytes of one piece of output that is told as it comes."""

MAX_PROMPT = 10_000
MAX_INPUT = 64 * 1024
"""Characters."""

MAX_RESULTS = 2_000
MAX_KINDS = 20
MAX_MIME = 200
"""Characters, of a display's id too."""

MAX_RUNNING = 500
"""Executions of one sandbox at a time, those that wait for a kernel in it included."""

MAX_KNOWN = 1_000
"""Executions that run or are not settled. A sandbox takes no more than that, since it must not forget one of these: one that it
does not know has not run."""

MAX_ALIVE = 64

MAX_CHANGES = 1_000
MAX_CHANGE_PATH = 4096
"""Bytes."""

MAX_ERROR_LINES = 200
MAX_ERROR_LINE = 2_000
"""Characters: a line of minified code is no help to anybody."""

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size
"""Before the body of each frame."""

Id = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Sentence = Annotated[str, Meta(max_length=2000)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
ExitCode = Annotated[int, Meta(ge=-(2**31), le=2**32)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Status = Literal["ok", "error", "timeout", "interrupted", "died", "cancelled"]
Reason = Literal["oom", "crash", "exit", "killed", "timeout", "idle", "deleted", "restart"]
StreamName = Literal["stdout", "stderr"]


class ProtocolError(Exception):
    """The peer sent something that no honest peer sends. The connection that carried it is closed."""


class Message(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag=True):
    """Base of all messages: immutable, tagged with the class name."""


class Part(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what messages are made of."""


# --- how a sandbox is told what it is -------------------------------------------------------------------------------


class BootConfig(Part):
    """The one argument of the boot process, as JSON. Holds no secret: the tenant can read it.

    link: path of the socket to dial. workspace: directory of the session. user: long-term directory of the scope.
    kernels: directory of our kernelspecs. runtime: private directory for connection files and ipc sockets (short path).
    environment: variables of the tenant's programs, complete. seccomp: install the filter first of all.
    redial: dial again when the link has ended without ``Shutdown``; else its end ends everything. orphan_s: end everything when
    no service has come back for so long; 0: never, somebody outside sees to it. egress: path of the proxy's socket, if any.
    """

    link: str
    workspace: str
    user: str
    kernels: str
    runtime: str
    environment: dict[str, str]
    seccomp: bool = True
    redial: bool = True
    orphan_s: float = 0.0
    egress: str = ""


# --- service -> sandbox ---------------------------------------------------------------------------------------------


class OutputLimits(Part):
    """Bytes of UTF-8. ``text`` is for stdout and stderr each, with the line that says what was left out; ``results`` for kinds,
    their names, metadata and ids; ``spill`` for what is told as it comes, of each stream and of rich outputs."""

    text: Count
    results: Count
    spill: Count


class Execute(Message):
    """Run ``code``. The kernel of (language, context) is started at need if ``stateful``; a stateless run is fresh.

    The service sends one execution at a time for a kernel. Answered by ``Finished`` or ``Refused``: once on each link until
    the answer is settled. An id that is known is not run again; if it has ended, the answer is sent again.
    timeout_s: of the run only. grace_s: from the interrupt to the end of the kernel. stream: tell its output as it comes.
    allow_input: somebody can answer ``Asked``.
    """

    id: Id
    language: Name
    code: str
    timeout_s: Seconds
    grace_s: Seconds
    limits: OutputLimits
    stateful: bool = False
    context: Id = "default"
    env: dict[str, str] = {}
    cwd: str | None = None
    stdin: str | None = None
    allow_input: bool = False
    stream: bool = False


class Cancel(Message):
    """End execution ``id``: interrupt it (stateful, with the ladder of a timeout) or kill it (stateless)."""

    id: Id


class Input(Message):
    """What execution ``id`` reads, for the last ``Asked``. Without effect where it does not wait for any."""

    id: Id
    text: Annotated[str, Meta(max_length=MAX_INPUT)]


class Settled(Message):
    """The answers of these executions are recorded, or nobody wants them: they need not be kept, or sent again."""

    ids: Annotated[list[Id], Meta(max_length=MAX_KNOWN)]


class StopKernel(Message):
    """End the kernel of (language, context), and start a new one if ``restart``. Answered by ``KernelStopped``.

    What runs in it ends as ``cancelled``. An absent kernel is answered with ``existed`` false.
    """

    request: Id
    language: Name
    context: Id
    restart: bool = False


class Shutdown(Message):
    """End everything and exit."""


ToSandbox = Execute | Cancel | Input | Settled | StopKernel | Shutdown


# --- sandbox -> service ---------------------------------------------------------------------------------------------


class Known(Part):
    """An execution that the sandbox was given over an earlier link. preparing: it waits for a kernel to start, and ``Started``
    will say when that is there."""

    id: Id
    state: Literal["running", "finished"]
    preparing: bool = False


class Alive(Part):
    """A kernel that runs or is being started."""

    language: Name
    context: Id


class Hello(Message):
    """First message on each link, once. kernels, stateless: names of the kernels and of the stateless interpreters there are.

    known: what runs and what has ended, unless it is settled, each id once; what else was sent did not run, and will not.
    alive: the kernels. On a later link the answers of all that has ended follow, the ends of kernels that may not have been
    heard, and the output of what runs, from its start.
    """

    version: Annotated[int, Meta(ge=0, le=2**31)]
    kernels: Annotated[list[Name], Meta(max_length=64)]
    stateless: Annotated[list[Name], Meta(max_length=16)]
    known: Annotated[list[Known], Meta(max_length=MAX_KNOWN)] = []
    alive: Annotated[list[Alive], Meta(max_length=MAX_ALIVE)] = []


class Preparing(Message):
    """``id`` waits for a kernel to start: the clock of its timeout does not run until ``Started``."""

    id: Id


class Started(Message):
    """The code of ``id`` begins to run. Sent only after ``Preparing``: otherwise it began on arrival."""

    id: Id


class Progress(Message):
    """Output so far of an execution that takes long, so that little is lost if the sandbox dies. At most the first
    half of the text limit per stream; sent at most four times a second; never needed when ``Finished`` comes."""

    id: Id
    stream: StreamName
    text: Annotated[str, Meta(max_length=2**20)]


class Output(Message):
    """Output of an execution as it comes: of one that is to be streamed from the first byte on, of others from the first byte on
    once it is more than the answer may hold. Ends at ``limits.spill`` bytes, or with the link that asked for it."""

    id: Id
    stream: StreamName
    text: Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]


class UserError(Part):
    """An uncaught error of the user's code, without ANSI codes."""

    name: Annotated[str, Meta(max_length=1000)]
    value: Annotated[str, Meta(max_length=100_000)]
    traceback: Annotated[list[Annotated[str, Meta(max_length=MAX_ERROR_LINE)]], Meta(max_length=MAX_ERROR_LINES)]


Mime = Annotated[str, Meta(max_length=MAX_MIME)]
Kinds = Annotated[dict[Mime, str], Meta(max_length=MAX_KINDS)]


class Result(Part):
    """One rich output. ``data`` holds text kinds as they are, ``json`` the JSON kinds as JSON texts; both by MIME type.

    ``omitted``: did not fit the limit; then ``data`` is empty and ``mime`` and ``size`` say what is missing.
    """

    type: Literal["result", "display", "update", "omitted"]
    data: Kinds = {}
    json: Kinds = {}
    metadata: Annotated[str, Meta(max_length=1_000_000)] = "{}"
    display_id: Mime | None = None
    mime: Mime | None = None
    size: Count | None = None


DisplayKind = Literal["display", "update_display", "result"]


class Displayed(Message):
    """A rich output of an execution that is streamed, as it comes. entries: what fits of it, and what does not as omitted."""

    id: Id
    kind: DisplayKind
    entries: Annotated[list[Result], Meta(max_length=MAX_KINDS + 2)]
    execution_count: Count | None = None


class Cleared(Message):
    """An execution that is streamed takes back what it has displayed: now, or with its next output (``wait``)."""

    id: Id
    wait: bool = False


class Asked(Message):
    """An execution waits for ``Input``. Sent only where ``allow_input`` said so."""

    id: Id
    prompt: Annotated[str, Meta(max_length=MAX_PROMPT)] = ""
    password: bool = False


FilesIncomplete = Literal["too_many_changes", "too_many_entries", "unreadable", "not_known"]


class Change(Part):
    """What became of a file of the workspace, a link itself counted as one. size: in bytes, of a plain file that is there."""

    path: Annotated[bytes, Meta(min_length=1, max_length=MAX_CHANGE_PATH)]
    change: Literal["created", "changed", "deleted"]
    size: Count = 0


class Outcome(Part):
    """How an execution ended. ``stdout`` and ``stderr`` are cut to the text limit; ``*_bytes`` count all of it.

    files: what changed in the workspace meanwhile; files_incomplete: why that may not be all.

    kernel (stateful): ``new`` it was started for this execution, ``kept`` it was there before; ``lost``: whether it was
    there before or not, it is gone now.
    """

    status: Status
    exit_code: ExitCode
    run_ms: Count
    stdout: str = ""
    stderr: str = ""
    stdout_bytes: Count = 0
    stderr_bytes: Count = 0
    truncated: bool = False
    reason: Reason | None = None
    results: Annotated[list[Result], Meta(max_length=MAX_RESULTS)] = []
    error: UserError | None = None
    execution_count: Count | None = None
    kernel: Literal["new", "kept", "lost"] | None = None
    files: Annotated[list[Change], Meta(max_length=MAX_CHANGES)] = []
    files_incomplete: FilesIncomplete | None = None


class Finished(Message):
    """The end of execution ``id``. sandbox_unsafe: something of it could not be ended from inside; stop the sandbox."""

    id: Id
    outcome: Outcome
    sandbox_unsafe: bool = False


class Refused(Message):
    """Execution ``id`` did not run. ``code`` is one of API.md's: ``cwd_not_found``, ``unknown_language``,
    ``kernel_start_failed``, ``unsupported_field``."""

    id: Id
    code: Literal["cwd_not_found", "unknown_language", "kernel_start_failed", "unsupported_field", "run_start_failed"]
    message: Sentence


class KernelGone(Message):
    """A kernel ended between executions. sandbox_unsafe: as in ``Finished``; may be said of one that was told before.

    The last one of a kernel is said again on each later link, until the kernel runs anew.
    """

    language: Name
    context: Id
    reason: Reason
    sandbox_unsafe: bool = False


class KernelStopped(Message):
    """Answer to ``StopKernel``. sandbox_unsafe: as in ``Finished``."""

    request: Id
    existed: bool
    sandbox_unsafe: bool = False


class StillWriting(Message):
    """A background job of some kernel goes on writing, so the sandbox is in use. Sent at most four times a second."""


Streamed = Output | Displayed | Cleared | Asked
"""What tells of an execution that is not over."""

FromSandbox = (
    Hello | Preparing | Started | Progress | Streamed | Finished | Refused | KernelGone | KernelStopped | StillWriting
)


# --- frames ---------------------------------------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder()


def _no_extensions(code: int, _data: memoryview) -> Any:
    raise msgspec.ValidationError(f"extension type {code}")


_to_sandbox: msgspec.msgpack.Decoder[ToSandbox] = msgspec.msgpack.Decoder(ToSandbox, ext_hook=_no_extensions)
_from_sandbox: msgspec.msgpack.Decoder[FromSandbox] = msgspec.msgpack.Decoder(FromSandbox, ext_hook=_no_extensions)


def encode(message: ToSandbox | FromSandbox) -> bytes:
    """Return the frame of ``message``, its length first. Strings must not hold lone surrogates."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def longest_frame(*, text: int, results: int) -> int:
    """Return how long the body of a frame from a sandbox may be, by the ``OutputLimits`` of its executions."""
    return results + 2 * text + FRAME_MARGIN


def decode_to_sandbox(body: bytes) -> ToSandbox:
    """Return the message in ``body``, which the service sent. Raises ProtocolError."""
    return _decode(_to_sandbox, body)


def decode_from_sandbox(body: bytes) -> FromSandbox:
    """Return the message in ``body``, which a sandbox sent. Raises ProtocolError."""
    return _decode(_from_sandbox, body)


async def read_frame(reader: asyncio.StreamReader, *, limit: int) -> bytes | None:
    """Return the body of the next frame, or None at an orderly end between frames.

    limit: bytes. Raises ProtocolError for a longer or a broken-off frame; nothing of a longer one is read.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise ProtocolError("the connection ended inside a frame's length") from error
    if length > limit:
        raise ProtocolError(f"a frame of {length} bytes; the limit is {limit}")
    try:
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise ProtocolError("the connection ended inside a frame") from error


_M = TypeVar("_M")


def _decode(decoder: msgspec.msgpack.Decoder[_M], body: bytes) -> _M:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
        raise ProtocolError(f"not a message: {type(error).__name__}") from error
