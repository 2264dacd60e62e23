"""What comes back: how an execution ended, and its events on the way."""

from __future__ import annotations

import base64
import binascii
import reprlib
from typing import Any, Literal
from urllib.parse import unquote

from pydantic import ConfigDict

from interpreter import wire, wire_files
from interpreter.client.errors import ExecutionFailed

_NEVER_SHOWN = {"application/javascript", "text/javascript"}
"""Kinds that a notebook would run in the page of whoever looks at it."""
_CHART = "application/vnd.cellbox.chart+json"
_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxlist = 200, 10


class Result(wire.ExecAnswer):
    """How an execution ended; the fields are those of the wire contract. A notebook shows its main result."""

    @property
    def ok(self) -> bool:
        """Whether the code did well."""
        return self.status == "ok"

    @property
    def data(self) -> dict[str, Any]:
        """The MIME bundle of the main result: the value of the last expression, else the last display; empty if there is none."""
        shown = [each for each in self.results if each.data]
        values = [each for each in shown if each.type == "result"]
        return dict((values or shown)[-1].data or {}) if shown else {}

    @property
    def text(self) -> str:
        """The main result as text; empty if there is none."""
        return str(self.data.get("text/plain", ""))

    @property
    def images(self) -> list[bytes]:
        """The PNGs of all results, in order."""
        return [image for each in self.results if (image := png(each.data or {})) is not None]

    @property
    def charts(self) -> list[dict[str, Any]]:
        """What the figures of matplotlib among all results show, as numbers, in order; the form is described in API.md."""
        found = ((each.data or {}).get(_CHART) for each in self.results)
        return [chart for chart in found if isinstance(chart, dict)]

    def check(self) -> Result:
        """Return this result if the code did well. Raises ExecutionFailed, whose text says how it ended."""
        if self.ok:
            return self
        if self.error is not None:
            raise ExecutionFailed(f"{self.error.name}: {self.error.value}", self)
        raise ExecutionFailed(f"The code ended with {self.status} and exit code {self.exit_code}.", self)

    def __repr__(self) -> str:
        """The main things of it, short: a result may hold megabytes of output and pictures."""
        said: dict[str, Any] = {"status": self.status, "exit_code": self.exit_code, "execution_id": self.execution_id}
        said |= {"text": self.text, "stdout": self.stdout, "stderr": self.stderr}
        said |= {"error": self.error and f"{self.error.name}: {self.error.value}"}
        kinds = [", ".join(each.data or ()) for each in self.results if each.data]
        said |= {"results": kinds, "files": [file.path for file in self.files]}
        shown = (
            f"{name}={_SHORT.repr(value)}" for name, value in said.items() if value or name in ("status", "exit_code")
        )
        return f"Result({', '.join(shown)})"

    __str__ = __repr__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """What a notebook shows of it: the main result, with what was printed in its text."""
        shown = {kind: value for kind, value in self.data.items() if kind not in _NEVER_SHOWN}
        shown["text/plain"] = "\n".join(part.rstrip("\n") for part in (self.stdout, self.text, self.stderr) if part)
        wanted = shown.keys() if include is None else set(include) & shown.keys()
        return {kind: value for kind, value in shown.items() if kind in wanted and kind not in (exclude or ())}


class Event(wire.AnswerModel):
    """One event of an execution; fields that its type does not have are None. ``fields`` has all that came."""

    model_config = ConfigDict(frozen=True, extra="allow")

    seq: int
    type: str
    execution_id: str
    text: str | None = None
    data: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    display_id: str | None = None
    omitted: list[dict[str, Any]] | None = None
    wait: bool | None = None
    execution_count: int | None = None
    name: str | None = None
    value: str | None = None
    traceback: list[str] | None = None
    prompt: str | None = None
    password: bool | None = None
    state: str | None = None
    reason: str | None = None
    generation: int | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """All that came, as it came."""
        return self.model_dump(exclude_unset=True)


class Execution(wire.AnswerModel):
    """Where an execution is. input_request: what it waits to be answered. result: once it has finished."""

    execution_id: str
    phase: Literal["queued", "running", "finished"]
    input_request: wire.InputRequest | None = None
    result: Result | None = None


class FileEntry(wire_files.Entry):
    """An entry of a directory."""

    @property
    def part(self) -> str:
        """What names it in a path, also where its name is not UTF-8."""
        return self.name if self.raw is None else unquote(self.raw, errors="surrogateescape")


class StoredFile(wire_files.StoredFile):
    """A file that was stored."""


def png(data: dict[str, Any]) -> bytes | None:
    """Return the PNG of a MIME bundle, if it has one that is base64."""
    text = data.get("image/png")
    if not isinstance(text, str):
        return None
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return None
