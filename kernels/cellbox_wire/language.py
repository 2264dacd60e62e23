"""What a kernel for a language has to be: ``Language``, and what goes in and out of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

Bundle = dict[str, Any]
"""Of MIME types, as Jupyter has them: base64 text for images, values for JSON kinds, else text."""

Ask = Callable[[str, bool], Awaitable[str]]
"""Asks for a line of input: prompt, whether it is a secret."""


@dataclass(frozen=True)
class Cell:
    """What is to be executed.

    number: whose output is whose, see ``Output.write``; increasing, but not without gaps. env: set for this cell only. cwd:
    absolute, for this cell only unless it goes elsewhere itself. stdin: what it can read; None: nothing. ordered: somebody
    wants to know the order of what is written and what is shown. publish: a message of this cell to all clients, at any time,
    also late: type, content. ask: None: nobody can give input.
    """

    number: int
    count: int
    code: str
    env: Mapping[str, str]
    cwd: str | None
    stdin: str | None
    silent: bool
    ordered: bool
    publish: Callable[[str, dict[str, Any]], None]
    ask: Ask | None

    def display(self, data: Bundle, metadata: Bundle | None = None, display_id: str | None = None) -> None:
        """Show something."""
        self.publish("display_data", _shown(data, metadata, display_id))

    def update(self, data: Bundle, metadata: Bundle | None, display_id: str) -> None:
        """Show something in the place of what was shown under ``display_id``."""
        self.publish("update_display_data", _shown(data, metadata, display_id))

    def clear(self, *, wait: bool = False) -> None:
        """Take back what was shown."""
        self.publish("clear_output", {"wait": wait})

    def result(self, data: Bundle, metadata: Bundle | None = None) -> None:
        """Show the value of the cell."""
        content = {"execution_count": self.count, "data": data, "metadata": metadata or {}}
        self.publish("execute_result", content)


@dataclass(frozen=True)
class Error:
    """What went wrong in a cell: name, text, and lines without colours."""

    name: str
    value: str
    traceback: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ending:
    """How a cell ended. An exit code alone makes no error of it."""

    exit_code: int = 0
    error: Error | None = None


class Language(ABC):
    """One language: its child process, and cells run in it. Made in the loop, before any request is served.

    Everything is called in the loop's thread. ``execute``, ``complete``, ``inspect`` and ``is_complete`` come one at a time;
    what they raise is an error of the kernel, told as such.
    """

    information: ClassVar[dict[str, Any]]
    """``implementation``, ``implementation_version``, ``banner`` and ``language_info`` of the kernel's information."""

    places: ClassVar[bool] = False
    """Whether its child marks where what is shown belongs in what it writes, and so no one else does."""

    @abstractmethod
    async def start(self) -> None:
        """Have the child running; then clients are served."""

    @abstractmethod
    async def execute(self, cell: Cell) -> Ending:
        """Run ``cell`` to its end. All that it wrote in the foreground has been given to the output when this returns."""

    @abstractmethod
    def interrupt(self) -> None:
        """Somebody wants the running cell to end. Called for each SIGINT while one runs, and for each request; never blocks."""

    @abstractmethod
    async def close(self) -> None:
        """End the child. ``execute``, if it runs, returns or raises soon after. May be called twice."""

    async def complete(self, code: str, cursor: int) -> tuple[list[str], int, int]:
        """Return what may stand at ``cursor``, and from where to where it would."""
        del code
        return [], cursor, cursor

    async def inspect(self, code: str, cursor: int) -> Bundle | None:
        """Return what is to be known of the name at ``cursor``."""
        del code, cursor
        return None

    async def is_complete(self, code: str) -> str:
        """Return ``complete``, ``incomplete``, ``invalid`` or ``unknown``."""
        del code
        return "unknown"


def _shown(data: Bundle, metadata: Bundle | None, display_id: str | None) -> dict[str, Any]:
    transient = {} if display_id is None else {"display_id": display_id}
    return {"data": data, "metadata": metadata or {}, "transient": transient}
