"""The rich outputs of one execution, in order, within a limit of bytes.

Promises: at most ``limit`` bytes of kinds are kept; each kind that is left out is named with its size.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from .channels import clean
from .protocol import Result

_MAX_ENTRIES = 9_999
_MAX_KINDS = 64
_MAX_NAME = 200
_MAX_METADATA = 1_000_000
_BASE64 = ("image/", "audio/", "video/", "application/pdf")


class Transient(Struct):
    """What a display says about itself beside its data."""

    display_id: Raw = Raw(b"null")


class Bundle(Struct):
    """Content of display_data, update_display_data and execute_result."""

    data: dict[str, Raw]
    metadata: Raw = Raw(b"{}")
    transient: Transient = msgspec.field(default_factory=Transient)


bundle_decoder = msgspec.json.Decoder(Bundle)


class Results:
    """Collects. Sizes are bytes of the kinds' text as it goes into the answer."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: list[tuple[Result, int]] = []
        self._clear_next = False
        self.truncated = False
        """Whether something was left out."""

    def add(self, kind: Literal["result", "display"], bundle: Bundle) -> None:
        """Add a display or the value of the last expression."""
        if self._clear_next:
            self._entries = []
            self._clear_next = False
        self._append(*self._fitted(kind, bundle))

    def update(self, bundle: Bundle) -> None:
        """Replace what has the bundle's ``display_id``; if that is of an earlier execution, add an ``update``."""
        identity = _display_id(bundle)
        places = [at for at, (entry, _) in enumerate(self._entries) if identity and entry.display_id == identity]
        if not places:
            self._append(*self._fitted("update", bundle))
            return
        for at in places:
            old, _ = self._entries[at]
            self._entries[at] = (Result(type="omitted", display_id=identity), 0)
            kind: Literal["result", "display", "update"] = "display" if old.type == "omitted" else old.type
            entry, size, omitted = self._fitted(kind, bundle)
            if entry is not None:
                self._entries[at] = (entry, size)
            elif omitted:
                self._entries[at] = (omitted[0], 0)

    def clear(self, *, wait: bool) -> None:
        """Forget what there is: now, or once the next output comes."""
        if wait:
            self._clear_next = True
        else:
            self._entries = []

    def entries(self) -> list[Result]:
        """Return what there is, in order."""
        return [entry for entry, _ in self._entries]

    def _append(self, entry: Result | None, size: int, omitted: list[Result]) -> None:
        new = ([(entry, size)] if entry is not None else []) + [(item, 0) for item in omitted]
        room = _MAX_ENTRIES - len(self._entries)
        self._entries += new[:room]
        lost = new[room:]
        if lost:  # one entry stands for all that came after too many
            self.truncated = True
            size = sum(size + (item.size or 0) for item, size in lost)
            if len(self._entries) == _MAX_ENTRIES:
                self._entries.append((Result(type="omitted", mime="*/*", size=0), 0))
            last, _ = self._entries[-1]
            self._entries[-1] = (Result(type="omitted", mime="*/*", size=(last.size or 0) + size), 0)

    def _fitted(
        self, kind: Literal["result", "display", "update"], bundle: Bundle
    ) -> tuple[Result | None, int, list[Result]]:
        """Return the entry with the kinds that fit, smallest first, its size, and entries for those that do not."""
        room = self._limit - sum(size for _, size in self._entries)
        texts = [(name, *_text(name, raw)) for name, raw in list(bundle.data.items())[:_MAX_KINDS]]
        kept: dict[str, dict[str, str]] = {"data": {}, "json": {}}
        fits = set()
        size = 0
        for name, _, text in sorted(texts, key=lambda item: len(item[2])):
            length = len(text.encode())
            if len(name) <= _MAX_NAME and size + length <= room:
                fits.add(name)
                size += length
        omitted = []
        for name, field, text in texts:
            if name in fits:
                kept[field][name] = text
            else:
                self.truncated = True
                identity = _display_id(bundle) if not fits else None
                omitted.append(
                    Result(type="omitted", mime=name[:_MAX_NAME], size=len(text.encode()), display_id=identity)
                )
        if not fits:
            return None, 0, omitted
        metadata = bytes(bundle.metadata).decode()
        entry = Result(
            type=kind,
            data=kept["data"],
            json=kept["json"],
            metadata=metadata if len(metadata) <= _MAX_METADATA and metadata.startswith("{") else "{}",
            display_id=_display_id(bundle),
        )
        return entry, size, omitted


def _display_id(bundle: Bundle) -> str | None:
    identity = _loaded(bundle.transient.display_id)
    return identity[:_MAX_NAME] if isinstance(identity, str) else None


def _text(name: str, raw: Raw) -> tuple[Literal["data", "json"], str]:
    """Return where a kind belongs and its text there: JSON kinds as JSON, others as they are."""
    value = None if name == "application/json" or name.endswith("+json") else _loaded(raw)
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "".join(value)
    if not isinstance(value, str):
        text = bytes(raw).decode()
        return "json", text if "\\ud" not in text.lower() else json.dumps(clean(json.loads(text)), ensure_ascii=False)
    if name.startswith(_BASE64) and not name.endswith("+xml"):
        value = "".join(value.split())
    return "data", value


def _loaded(raw: Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return clean(json.loads(bytes(raw)))  # a lone surrogate, the one thing that got here and is no JSON
