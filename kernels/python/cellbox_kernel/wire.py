"""How messages become bytes: fast, and valid JSON whatever a cell puts into them."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
from jupyter_client.jsonutil import json_default

from .streams import sanitized

_encoder = msgspec.json.Encoder(enc_hook=json_default)


def pack(message: Any) -> bytes:
    """Return ``message`` as JSON. NaN and infinities become null, lone surrogates U+FFFD."""
    try:
        return _encoder.encode(message)
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError):
        return json.dumps(_clean(message), default=json_default, ensure_ascii=False, allow_nan=False).encode()


def unpack(data: bytes | memoryview) -> Any:
    """Return what ``pack`` packed."""
    return msgspec.json.decode(data)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return sanitized(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {_clean(key) if isinstance(key, str) else str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value
