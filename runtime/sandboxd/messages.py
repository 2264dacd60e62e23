"""Messages of Jupyter's protocol, as far as executions need them.

All that comes from a kernel may be forged by the code in it: a message that is not as it should be is as if it had not come.
"""

from __future__ import annotations

import itertools
import json
import math
import uuid
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

Channel = Literal["shell", "iopub", "stdin", "control"]

_SESSION = uuid.uuid4().hex
_numbers = itertools.count(1)


class Header(Struct):
    """The part of a header that is used."""

    msg_id: str
    msg_type: str


class Parent(Struct):
    """The request that a message belongs to; empty for none."""

    msg_id: str = ""


class Received(Struct, frozen=True):
    """A message of the kernel. content: JSON, decoded with ``decode``. place: as in ``marks``; 0: none."""

    type: str
    parent: str
    content: bytes
    place: int = 0


def header(kind: str) -> dict[str, str]:
    """Return the header of a new request. Answers name its ``msg_id`` as their parent."""
    return {
        "msg_id": f"{_SESSION}-{next(_numbers)}",
        "session": _SESSION,
        "username": "cellbox",
        "date": datetime.now(UTC).isoformat(),
        "msg_type": kind,
        "version": "5.4",
    }


def decode(message: Received, kind: msgspec.json.Decoder[Any]) -> Any:
    """Return the content as ``kind`` says, or None if it is not like that.

    JSON as Python's own encoder writes it is understood too: NaN and infinities are null, lone surrogates U+FFFD.
    """
    try:
        return kind.decode(message.content)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        pass
    try:
        return kind.decode(msgspec.json.encode(clean(json.loads(message.content.decode("utf-8", "replace")))))
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


def clean(value: Any) -> Any:
    """Return JSON ``value`` with null for NaN and infinities, and U+FFFD for lone surrogates."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {clean(key): clean(item) for key, item in value.items()}
        case list():
            return [clean(item) for item in value]
    return value
