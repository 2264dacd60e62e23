"""What an execution puts out, told to the service as it comes.

Promises: at most ``limits.spill`` bytes of each stream, and as many of rich outputs, are told of an execution; each text is of
whole characters and at most ``MAX_TEXT`` long; order is the order in which it came here.
Leaves to its users: what came, and when; to the service: what text was left out is known from the sizes in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .output import Capture, whole_start
from .protocol import MAX_TEXT, Cleared, Displayed, DisplayKind, Execute, FromSandbox, Output, Result, StreamName
from .results import size_of


class Stream:
    """Tells of the execution that ``message`` asked for. send: must not block or raise.

    An execution that nobody follows is told of once its text is more than its answer may hold: then all of that stream is.
    """

    def __init__(self, message: Execute, send: Callable[[FromSandbox], None]) -> None:
        self._id = message.id
        self._limits = message.limits
        self._followed = message.stream
        self._send = send
        self._on = True
        self._left: dict[StreamName, int] = {"stdout": message.limits.spill, "stderr": message.limits.spill}
        self._left_rich = message.limits.spill
        self.cut = False
        """Whether a rich output, or that one is to go, was not told of for want of room."""

    def capture(self, name: StreamName) -> Capture:
        """Return what keeps stream ``name`` for the answer, and tells of it here."""
        return Capture(self._limits.text, lambda data: self._text(name, data), at_once=self._followed)

    def stop(self) -> None:
        """Tell nothing more: the service that wanted to hear it is gone, and the next one takes the answer."""
        self._on = False

    def displayed(self, kind: DisplayKind, entries: Sequence[Result], execution_count: int | None = None) -> None:
        """Tell of a rich output. entries: what fits of it, and what does not by name."""
        if self._has_room(sum(map(size_of, entries))):
            self._send(Displayed(self._id, kind, list(entries), execution_count))

    def cleared(self, *, wait: bool) -> None:
        """Tell that what was displayed is to go."""
        if self._has_room(1):  # so that their number is bounded as well
            self._send(Cleared(self._id, wait))

    def _has_room(self, size: int) -> bool:
        """Whether what takes ``size`` bytes is to be told of."""
        if not (self._on and self._followed):
            return False
        if size > self._left_rich:
            self.cut = True
            return False
        self._left_rich -= size
        return True

    def _text(self, name: StreamName, data: bytes) -> None:
        if not self._on:
            return
        if len(data) > self._left[name]:
            data, self._left[name] = whole_start(data, self._left[name]), 0  # and nothing behind the gap
        else:
            self._left[name] -= len(data)
        while data:
            piece = whole_start(data, MAX_TEXT)
            self._send(Output(self._id, name, piece.decode()))
            data = data[len(piece) :]
