"""What clients can show of a file."""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import PurePath
from typing import Any

_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"%PDF-": "application/pdf",
}
_SUFFIXES = {
    ".svg": "image/svg+xml",
    ".html": "text/html",
    ".htm": "text/html",
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".tex": "text/latex",
    ".js": "application/javascript",
}


_DEEPEST = 300
"""Levels of JSON that is shown as such: who reads it gives up at some 450, if there is something to put right in it."""


def bundle(name: str, data: bytes) -> dict[str, Any] | None:
    """Return the file's content by MIME type, and a text for those who cannot show that; None if nobody can show it."""
    kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        kind = "image/webp"
    if kind is not None:
        return {kind: base64.b64encode(data).decode(), "text/plain": name}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else _text_bundle(name, text)


def _text_bundle(name: str, text: str) -> dict[str, Any]:
    suffix = PurePath(name).suffix.lower()
    if suffix == ".json":
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
            return {"text/plain": text} | ({} if _is_deep(value) else {"application/json": value})
    kind = "image/svg+xml" if text.lstrip().startswith("<svg") else _SUFFIXES.get(suffix)
    return {"text/plain": text} if kind is None else {kind: text, "text/plain": name}


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        lists = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [item for items in lists for item in items]
        if not level:
            return False
    return True
