"""Jupyter messages as bytes: signed, and valid JSON whatever a cell puts into them."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import math
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

_DELIMITER = b"<IDS|MSG>"
_VERSION = "5.4"
_SESSION = uuid.uuid4().hex
_numbers = itertools.count(1)
_PARTS = ("header", "parent_header", "metadata", "content")


@dataclass(frozen=True)
class Request:
    """A message of a client. routing: the frames by which a socket knows it."""

    routing: list[bytes]
    header: dict[str, Any]
    metadata: dict[str, Any]
    content: dict[str, Any]

    @classmethod
    def of(cls, routing: list[bytes], parts: dict[str, Any]) -> Self | None:
        """Return the message of these parts, or None if it is none."""
        header, metadata, content = (parts.get(name) for name in ("header", "metadata", "content"))
        if not (isinstance(header, dict) and isinstance(metadata, dict) and isinstance(content, dict)):
            return None
        return cls(routing, header, metadata, content) if "msg_type" in header else None

    @property
    def kind(self) -> str:
        """Its type."""
        return str(self.header["msg_type"])


class Messages:
    """Packs and unpacks the messages of one kernel. key: of the connection file; empty: nothing is signed."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def pack(
        self, kind: str, content: dict[str, Any], parent: dict[str, Any], metadata: dict[str, Any] | None = None
    ) -> list[bytes]:
        """Return the frames of a message, without those that route it."""
        parts = [packed(part) for part in message(kind, content, parent, metadata).values()]
        return [_DELIMITER, self._signature(parts), *parts]

    def unpack(self, frames: list[bytes]) -> Request | None:
        """Return the message, or None if it is not one of somebody who has the key."""
        try:
            start = frames.index(_DELIMITER)
            signature, *parts = frames[start + 1 : start + 6]
            if not hmac.compare_digest(signature, self._signature(parts)):
                return None
            named = dict(zip(_PARTS, map(json.loads, parts), strict=True))
        except (ValueError, RecursionError):
            return None
        return Request.of(frames[:start], named)

    def _signature(self, parts: list[bytes]) -> bytes:
        if not self._key:
            return b""
        return hmac.new(self._key, b"".join(parts), hashlib.sha256).hexdigest().encode()


def message(
    kind: str, content: dict[str, Any], parent: dict[str, Any], metadata: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the parts of a new message, by name and in their order. parent: the header of its request."""
    header = {
        "msg_id": f"{_SESSION}_{next(_numbers)}",
        "session": _SESSION,
        "username": "kernel",
        "date": datetime.now(UTC).isoformat(),
        "msg_type": kind,
        "version": _VERSION,
    }
    return dict(zip(_PARTS, (header, parent, metadata or {}, content), strict=True))


def loaded(data: bytes) -> dict[str, Any]:
    """Return the object in JSON ``data``; an empty one where there is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def packed(value: Any) -> bytes:
    """Return ``value`` as JSON. NaN and infinities become null, lone surrogates U+FFFD."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:  # of both kinds
        return json.dumps(_clean(value), ensure_ascii=False, separators=(",", ":")).encode()


def _clean(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {_clean(key): _clean(item) for key, item in value.items()}
        case list() | tuple():
            return [_clean(item) for item in value]
    return value
