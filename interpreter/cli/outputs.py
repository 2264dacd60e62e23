"""The outputs of a notebook's cell, made of the events of an execution.

Promises: nbformat 4; neighbouring text is one output, an update changes the display it names in whatever cell it is, and an error
is told once.
"""

from __future__ import annotations

from typing import Any

from interpreter.client import Event

Output = dict[str, Any]


class Outputs:
    """The outputs of all cells. ``begin`` says where those of the next events belong."""

    def __init__(self) -> None:
        self._cell: list[Output] = []
        self._displays: dict[str, list[Output]] = {}
        self._clears = False

    def begin(self, cell: list[Output]) -> None:
        """Put the outputs of the next events into ``cell``."""
        self._cell = cell
        self._clears = False

    def add(self, event: Event) -> None:
        """Take in one event."""
        match event.type:
            case "stdout" | "stderr":
                self._text(event.type, event.text or "")
            case "display":
                self._put({"output_type": "display_data", **_bundle(event)}, event.display_id)
            case "result":
                made = {"output_type": "execute_result", "execution_count": event.execution_count, **_bundle(event)}
                self._put(made, event.display_id)
            case "update_display":
                for shown in self._displays.get(event.display_id or "", []):
                    shown.update(_bundle(event))
            case "clear_output":
                self._clears = True
                if not event.wait:
                    self._clear()
            case "error":
                self._error(event)

    def _text(self, name: str, text: str) -> None:
        self._clear()
        if not text:
            return
        if self._cell and self._cell[-1].get("name") == name:
            self._cell[-1]["text"] += text
        else:
            self._cell.append({"output_type": "stream", "name": name, "text": text})

    def _put(self, made: Output, display_id: str | None) -> None:
        self._clear()
        self._cell.append(made)
        if display_id:
            self._displays.setdefault(display_id, []).append(made)

    def _error(self, event: Event) -> None:
        """Take in an error, and take it out of ``stderr``, where it stands for those who read nothing else."""
        traceback = event.traceback or []
        told = "\n".join(traceback).strip("\n")
        last = self._cell[-1] if self._cell else {}
        if told and last.get("name") == "stderr" and last["text"].rstrip("\n").endswith(told):
            last["text"] = last["text"].rstrip("\n").removesuffix(told)
            if not last["text"].strip("\n"):
                self._cell.pop()
        self._put(
            {"output_type": "error", "ename": event.name or "", "evalue": event.value or "", "traceback": traceback},
            None,
        )

    def _clear(self) -> None:
        if self._clears:
            self._cell.clear()
            self._clears = False


def _bundle(event: Event) -> Output:
    data = dict(event.data or {})
    for each in event.omitted or []:
        data.setdefault("text/plain", f"({each.get('mime')} of {each.get('bytes')} bytes was too large)")
    return {"data": data, "metadata": event.metadata or {}}
