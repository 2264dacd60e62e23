"""The rich outputs of one execution, in order, within a limit of bytes.

Promises: at most ``limit`` bytes of kinds, their names, metadata and ids are kept; what is left out is named with its size, and
those names are bounded too. So an answer always fits into a frame of the link, whatever was displayed.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from .protocol import MAX_KINDS, MAX_MIME, MAX_RESULTS, Result

_ANY = "*/*"
_METADATA = 1_000_000
_NAMES = 256 * 1024
"""Bytes for the names of what is left out; what comes after that has none."""

_BASE64 = ("image/", "audio/", "video/", "application/pdf")

Kind = Literal["result", "display", "update"]


class Transient(Struct):
    """What a display says about itself beside its data."""

    display_id: Raw = Raw(b"null")


class Bundle(Struct):
    """Content of display_data, update_display_data and execute_result."""

    data: dict[str, Raw]
    metadata: Raw = Raw(b"{}")
    transient: Transient = msgspec.field(default_factory=Transient)
    execution_count: Raw = Raw(b"null")

    def count(self) -> int | None:
        """Return the kernel's counter, where a result has it."""
        count = _loaded(self.execution_count)
        return count if isinstance(count, int) and 0 <= count <= 2**53 else None


bundle_decoder = msgspec.json.Decoder(Bundle)


class Results:
    """Collects. Sizes are bytes of text as it goes into the answer."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: list[Result] = []
        self._kept = 0  # bytes of the limit that are used
        self._named = 0  # bytes for naming what is omitted
        self._clear_next = False
        self.truncated = False
        """Whether something was left out."""

    def add(self, kind: Literal["result", "display"], bundle: Bundle) -> list[Result]:
        """Add a display or the value of the last expression; return what it became: an entry, and what did not fit."""
        if self._clear_next:
            self.clear(wait=False)
        entries = self._fitted(kind, bundle)
        for entry in entries:
            self._append(entry)
        return entries

    def update(self, bundle: Bundle) -> list[Result]:
        """Replace what has the bundle's ``display_id``; if that is of an earlier execution, add an ``update``. As ``add``."""
        identity = _display_id(bundle)
        places = [at for at, entry in enumerate(self._entries) if identity and entry.display_id == identity]
        entries: list[Result] = []
        if not places:
            entries = self._fitted("update", bundle)
            for entry in entries:
                self._append(entry)
        for at in places:
            old = self._entries[at]
            self._replace(at, Result(type="omitted", display_id=identity))  # makes room
            kind: Kind = "display" if old.type == "omitted" else old.type
            entries = self._fitted(kind, bundle)
            for entry in entries[:1]:
                self._replace(at, entry)
        return entries

    def clear(self, *, wait: bool) -> None:
        """Forget what there is: now, or once the next output comes."""
        self._clear_next = wait
        if not wait:
            self._entries = []
            self._kept = self._named = 0

    def entries(self) -> list[Result]:
        """Return what there is, in order."""
        return self._entries.copy()

    def _append(self, entry: Result) -> None:
        """Add an entry; the last possible one stands for all that came too late for one of its own."""
        full = len(self._entries) >= MAX_RESULTS - 1
        if not full and (entry.type != "omitted" or self._named + size_of(entry) <= _NAMES):
            self._entries.append(entry)
            self._count(entry, 1)
            return
        self.truncated = True
        size = sum(len(text.encode()) for text in (*entry.data.values(), *entry.json.values())) + (entry.size or 0)
        if self._entries and self._entries[-1].mime == _ANY:
            size += self._entries.pop().size or 0
        self._entries.append(Result(type="omitted", mime=_ANY, size=size))

    def _replace(self, at: int, entry: Result) -> None:
        self._count(self._entries[at], -1)
        self._entries[at] = entry
        self._count(entry, 1)

    def _count(self, entry: Result, sign: int) -> None:
        if entry.type == "omitted":
            self._named += sign * size_of(entry)
        else:
            self._kept += sign * size_of(entry)

    def _fitted(self, kind: Kind, bundle: Bundle) -> list[Result]:
        """Return the entry with the kinds that fit, smallest first, and after it one for each that does not.

        What goes with no kind in particular is kept last: metadata that do not fit are left out.
        """
        identity = _display_id(bundle)
        room = self._limit - self._kept - len((identity or "").encode())
        texts = [(name, *_text(name, raw)) for name, raw in list(bundle.data.items())[:MAX_KINDS]]
        sizes = {name: len(text.encode()) for name, _, text in texts}
        fits = set()
        for name, size in sorted(sizes.items(), key=lambda item: item[1]):
            cost = len(name.encode()) + size
            if len(name) <= MAX_MIME and cost <= room:
                fits.add(name)
                room -= cost
        named = None if fits else identity
        omitted = [
            Result(type="omitted", mime=name[:MAX_MIME], size=size, display_id=named)
            for name, size in sizes.items()
            if name not in fits
        ]
        if too_many := list(bundle.data.values())[MAX_KINDS:]:
            omitted.append(Result(type="omitted", mime=_ANY, size=sum(len(bytes(raw)) for raw in too_many)))
        metadata = bytes(bundle.metadata).decode()
        if not metadata.startswith("{"):
            metadata = "{}"
        if metadata != "{}" and len(metadata.encode()) > min(room, _METADATA):
            metadata = "{}"
            self.truncated = True
        self.truncated |= bool(omitted)
        if not fits:
            return omitted
        kept: dict[str, dict[str, str]] = {"data": {}, "json": {}}
        for name, field, text in texts:
            if name in fits:
                kept[field][name] = text
        entry = Result(type=kind, data=kept["data"], json=kept["json"], metadata=metadata, display_id=identity)
        return [entry, *omitted]


def size_of(entry: Result) -> int:
    """Return the bytes of all texts in ``entry``."""
    texts = [*entry.data, *entry.data.values(), *entry.json, *entry.json.values(), entry.display_id, entry.mime]
    if entry.metadata != "{}":
        texts.append(entry.metadata)
    return sum(len(text.encode()) for text in texts if text)


def _display_id(bundle: Bundle) -> str | None:
    identity = _loaded(bundle.transient.display_id)
    return identity[:MAX_MIME] if isinstance(identity, str) else None


def _text(name: str, raw: Raw) -> tuple[Literal["data", "json"], str]:
    """Return where a kind belongs and its text there: JSON kinds as JSON, others as they are."""
    value = None if name == "application/json" or name.endswith("+json") else _loaded(raw)
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "".join(value)
    if not isinstance(value, str):
        return "json", bytes(raw).decode()
    if name.startswith(_BASE64) and not name.endswith("+xml"):
        value = "".join(value.split())
    return "data", value


def _loaded(raw: Raw) -> Any:
    """Return the value of valid JSON; None where it is nested too deep to say."""
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        return None
