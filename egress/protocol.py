"""What the service and the egress process tell each other: one JSON object a line, bounded, schema-checked.

Both ends use this module and nothing else of each other. The egress process is told which sandboxes there are and what
each may reach, and tells what it refused. What it tells holds words of sandboxes (host names), so both ways are checked.

Promises: ``from_service`` and ``from_egress`` raise ``ProtocolError`` and nothing else, whatever the bytes; what
``encode`` returns is one line.
Leaves to its users: what the entries of a policy mean (policy.py), and who may send what when.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

MAX_LINE = 2**20
"""Bytes, the newline included: the limit that the reader of a connection is made with."""

MAX_ENTRIES = 2_000
"""Of one list of a policy."""

NOTED_WITHIN_S = 0.2
"""How long a refusal waits to be noted before its client is told, so that the answer of the execution can hold it."""

SandboxId = Annotated[str, Meta(min_length=1, max_length=200)]
Entry = Annotated[str, Meta(min_length=1, max_length=300)]
Host = Annotated[str, Meta(max_length=300)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Sentence = Annotated[str, Meta(max_length=2000)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Entries = Annotated[tuple[Entry, ...], Meta(max_length=MAX_ENTRIES)]
Ports = Annotated[tuple[Port, ...], Meta(max_length=1_000)]

Reason = Literal[
    "not_allowed",
    "denied_by_rule",
    "port",
    "metadata_address",
    "own_address",
    "private_address",
    "reserved_address",
    "not_tls",
    "no_server_name",
    "other_server_name",
]
"""Why a sandbox was refused: for programs and metrics. The sentence beside it is for people and models."""


class ProtocolError(Exception):
    """The peer sent something that no honest peer sends, or a message is too long for a line."""


class Message(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag=True):
    """Base of all messages: immutable, tagged with the class name."""


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """What one sandbox may reach. The default reaches nothing.

    allow, deny: ``host``, ``*.host`` (what is below it, at any depth), ``*`` (the public Internet), an IP literal (IPv6 in
    brackets if a port follows); each also with ``:port``. deny beats allow. An entry of allow without a port opens
    ``ports``; one with a port opens that port, whether it is among ``ports`` or not. An entry of deny without a port
    closes all.
    private_cidrs: ranges whose private, loopback, shared (100.64/10), benchmark and documentation addresses may be
    reached under the names that are allowed.
    """

    allow: Entries = ()
    deny: Entries = ()
    ports: Ports = (80, 443)
    private_cidrs: Entries = ()


# --- from the service -----------------------------------------------------------------------------------------------


class Own(Message):
    """What no sandbox may reach, whatever its policy. Replaces what was told before, and cuts connections that are there.

    addresses: of service, host and engine, as IP literals; refused on every port. Leave loopback out: it is refused
    anyway unless a policy's private_cidrs hold it, and then ``ports`` protects the service. The addresses of the
    interfaces that the egress process sees itself are refused without being told.
    ports: of service, engine and others; refused on every address that is not public, loopback among them.
    """

    addresses: Entries = ()
    ports: Ports = ()


class Open(Message):
    """Listen for ``sandbox`` at ``path`` with ``policy``; answered by ``Opened`` or ``Failed``.

    The socket has mode 0666 and takes the place of what is at ``path``. For a sandbox that is open, the policy is
    replaced at once: connections that it still allows go on, the others are cut. When it fails, what was open stays as
    it was.
    """

    sandbox: SandboxId
    path: Annotated[str, Meta(min_length=1, max_length=1_000)]
    policy: Policy


class Close(Message):
    """Cut the connections of ``sandbox`` and remove its socket. One that is not open is closed already."""

    sandbox: SandboxId


class Synced(Message):
    """All sandboxes there are have been opened on this connection: the others are closed."""


class Noted(Message):
    """The refusal of this number is on record: its client may be told."""

    number: Count


# --- from the egress process ----------------------------------------------------------------------------------------


class Opened(Message):
    """The sandbox can connect, and its policy is in force."""

    sandbox: SandboxId


class Failed(Message):
    """An ``Open`` that could not be done. error: one sentence, such as which entry of the policy is none."""

    sandbox: SandboxId
    error: Sentence


class Denied(Message):
    """Sent before the client is told; the client waits for ``Noted``, at most ``NOTED_WITHIN_S``.

    number: of this refusal, from 1. host, port: as the client named them, lower-cased, without a dot at the end.
    """

    number: Count
    sandbox: SandboxId
    host: Host
    port: Port
    reason: Reason
    sentence: Sentence


class Counted(Message):
    """What a sandbox did since it was counted before, every few seconds while there is something to count.

    connections: that are there now; everything else is the difference. bytes_out: from the sandbox; bytes_in: to it.
    Both count what was relayed, TLS included and heads of plain HTTP not. malformed: what was answered with 400 and its
    like; failed: with 502, 503 and 504.
    """

    sandbox: SandboxId
    connections: Count
    allowed: Count
    denied: Count
    malformed: Count
    failed: Count
    bytes_in: Count
    bytes_out: Count


FromService = Own | Open | Close | Synced | Noted
FromEgress = Opened | Failed | Denied | Counted

_encoder = msgspec.json.Encoder()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (FromService, FromEgress)
}


def encode(message: Message) -> bytes:
    """Return the message as one line, its newline included. Raises ProtocolError if it is longer than MAX_LINE."""
    line = _encoder.encode(message) + b"\n"
    if len(line) > MAX_LINE:
        raise ProtocolError(f"{type(message).__name__} is longer than a line may be")
    return line


def from_service(line: bytes) -> FromService:
    """Return what the service said. Raises ProtocolError."""
    message: FromService = _decode(line, FromService)
    return message


def from_egress(line: bytes) -> FromEgress:
    """Return what the egress process said. Raises ProtocolError."""
    message: FromEgress = _decode(line, FromEgress)
    return message


def _decode(line: bytes, kind: Any) -> Any:
    if len(line) > MAX_LINE:
        raise ProtocolError("the line is too long")
    try:
        return _decoders[kind].decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ProtocolError(str(error)[:500]) from error
