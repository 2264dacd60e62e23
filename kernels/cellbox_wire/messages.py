"""Jupyter messages as bytes: signed, and valid JSON whatever a cell puts into them."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_DELIMITER = b"<IDS|MSG>"
_VERSION = "5.4"


@dataclass(frozen=True)
class Request:
    """A message of a client. routing: the frames by which a socket knows it."""

    routing: list[bytes]
    header: dict[str, Any]
    metadata: dict[str, Any]
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        """Its type."""
        return str(self.header["msg_type"])


class Messages:
    """Packs and unpacks the messages of one kernel. key: of the connection file; empty: nothing is signed."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._session = uuid.uuid4().hex
        self._count = 0

    def pack(
        self, kind: str, content: dict[str, Any], parent: dict[str, Any], metadata: dict[str, Any] | None = None
    ) -> list[bytes]:
        """Return the frames of a message, without those that route it."""
        self._count += 1
        header = {
            "msg_id": f"{self._session}_{self._count}",
            "session": self._session,
            "username": "kernel",
            "date": datetime.now(UTC).isoformat(),
            "msg_type": kind,
            "version": _VERSION,
        }
        parts = [_bytes(part) for part in (header, parent, metadata or {}, content)]
        return [_DELIMITER, self._signature(parts), *parts]

    def unpack(self, frames: list[bytes]) -> Request | None:
        """Return the message, or None if it is not one of somebody who has the key."""
        try:
            start = frames.index(_DELIMITER)
            signature, *parts = frames[start + 1 : start + 6]
            if not hmac.compare_digest(signature, self._signature(parts)):
                return None
            header, _, metadata, content = map(json.loads, parts)
        except (ValueError, RecursionError):
            return None
        if not all(isinstance(part, dict) for part in (header, metadata, content)) or "msg_type" not in header:
            return None
        return Request(frames[:start], header, metadata, content)

    def _signature(self, parts: list[bytes]) -> bytes:
        if not self._key:
            return b""
        return hmac.new(self._key, b"".join(parts), hashlib.sha256).hexdigest().encode()


def _bytes(value: Any) -> bytes:
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
