"""One execution as the service knows it: phase, events, and how it ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
from sandboxd.protocol import Asked, Cleared, Displayed, Output, Result, Streamed, StreamName

from interpreter.errors import InternalError, ServiceError
from interpreter.executions.denials import Denials
from interpreter.executions.events import EventLog, encoded
from interpreter.executions.model import HEAVY_JSON, Answer, ExecRequest, Phase, entries


class Execution:
    """One execution. Ends exactly once: with an answer, or, if it never ran, with an error for the caller.

    id: the caller's (``named``) or ours, 128 unguessable bits. events: see events.py. digest: see ``ExecRequest.digest``; given
    where the request is not whole any more.
    """

    def __init__(
        self,
        execution_id: str,
        request: ExecRequest,
        *,
        named: bool,
        digest: bytes | None = None,
        events: EventLog | None = None,
    ) -> None:
        self.id = execution_id
        self.request = request
        self.named = named
        self.phase: Phase = "queued"
        self.answer: Answer | None = None
        self.error: ServiceError | None = None
        self.events = EventLog(execution_id) if events is None else events
        self.asks = False
        """Whether it waits for input."""
        self.asked: Asked | None = None
        """What it waits for, where that is known."""
        self.denials = Denials()
        """What it was refused on its way out."""
        self._shown = False  # whether what it displayed is among the events
        self.finished_at: float | None = None
        """Seconds on the service's monotonic clock."""
        self.never_ran = False
        """Whether that is certain: then the same call may be made anew."""
        self.noted = False
        """Whether there is a record of it that outlives the service."""
        self._digest = digest
        self._ended = asyncio.Event()

    @property
    def scope(self) -> str:
        """Whose it is."""
        return self.request.scope

    @property
    def digest(self) -> bytes:
        """What a repetition of its request has too."""
        if self._digest is None:
            self._digest = self.request.digest()
        return self._digest

    @property
    def session(self) -> str | None:
        """The session it runs in; None for none."""
        return self.request.session

    async def finished(self) -> Answer:
        """Return the answer once there is one. Raises ServiceError if it never ran. Cancelling loses nothing."""
        await self._ended.wait()
        if self.answer is None:
            raise self.error or InternalError("The execution ended without an answer.")
        return self.answer

    def running(self) -> None:
        """Say that its code is being run."""
        self.phase = "running"
        request = self.request
        self.events.add(
            "started",
            language=request.language,
            context=request.context if request.stateful else None,
            stateful=request.stateful,
        )

    def resumed(self) -> None:
        """Say that its code has been run since an earlier service. Whether that was asked for input is not known, so it may have
        been: a sandbox passes over what its kernel has not asked for.
        """
        self.running()
        self.asks = self.request.allow_input

    async def hear_rest(self, message: Streamed) -> bool:
        """Take of what it tells then only what its caller has to answer: the rest is told at its end, from its answer."""
        return await self.hear(message) if isinstance(message, Asked) else True

    async def hear(self, message: Streamed) -> bool:
        """Take what its sandbox tells while it runs; False where that is more output than was asked for. What is long is checked
        in a thread: the next is to be told after that.
        """
        match message:
            case Output():
                return self.events.add_text(message.stream, message.text)
            case Displayed():
                self._shown = True
                size = sum(_length(entry) for entry in message.entries)
                if not self.events.has_room(size):
                    self.events.cut = True
                else:
                    payload = _event(message) if size <= HEAVY_JSON else await asyncio.to_thread(_event, message)
                    if self.phase != "finished":  # meanwhile
                        self.events.add_encoded(message.kind, payload)
            case Cleared():
                self.events.add("clear_output", wait=message.wait)
            case Asked():
                self.asks, self.asked = True, message
                self.events.add("input_request", prompt=message.prompt, password=message.password)
        return True

    def end(self, result: Answer | ServiceError, now: float, *, goes_on: bool = False, uncertain: bool = False) -> None:
        """Say how it ended; later calls change nothing. now: seconds on the monotonic clock. goes_on: without this service, and
        the next one will say how it finished. uncertain: whether its code has run is not known.

        The last event of one that never ran has the error's ``code`` and ``message`` instead of an answer.
        """
        if self.phase == "finished":
            return
        self.phase = "finished"
        self.finished_at = now
        if isinstance(result, Answer):
            self.answer = result
            self.events.finish(lambda: self._tell(result))
        elif goes_on:
            self.error = result
            self.events.abandon()
        else:
            self.error = result
            self.never_ran = not uncertain
            self.events.add("finished", code=result.code, message=result.message)
        self._ended.set()

    def shed(self) -> None:
        """Let go of what could run it again, which may be 32 MiB of input: nobody needs it once it has ended."""
        self._digest = self.digest
        self.request = replace(self.request, code="", stdin=None, env={}, files={})

    def discard(self) -> None:
        """Let go of its events: nobody can ask for them any more."""
        self.events.discard()

    def size(self) -> int:
        """How many bytes it holds on to once it has shed, or will when its events are read: about, as measured for small ones."""
        answer = 0 if self.answer is None else self.answer.size()
        return 4000 + answer + self.events.held + self.events.grows(answer)

    def _tell(self, answer: Answer) -> None:
        """Add the last events: what is not there yet, of an execution that nobody followed for example, and its end."""
        texts: list[tuple[StreamName, str]] = [("stdout", answer.stdout), ("stderr", answer.stderr)]
        for stream, text in texts:
            if text and not self.events.text_size(stream):
                for start in range(0, len(text), _PIECE):
                    self.events.add_text(stream, text[start : start + _PIECE])
        if not self._shown:
            for result in answer.results:
                entry: dict[str, Any] = msgspec.json.decode(result) if isinstance(result, msgspec.Raw) else result
                kind = _KINDS[entry["type"]]
                self.events.add(kind, **_fields(kind, [entry], answer.execution_count))
        if answer.error is not None:
            self.events.add("error", **msgspec.structs.asdict(answer.error))
        left_out = (
            self.events.cut
            or self.events.lost
            or any(size > self.events.limit for size in answer.output_bytes.values())
        )
        self.events.add("finished", **answer.summary() | {"truncated": answer.truncated or left_out})


_PIECE = 64 * 1024
"""Characters of an answer's text in one event."""

_KINDS = {"result": "result", "display": "display", "update": "update_display", "omitted": "display"}


def _length(entry: Result) -> int:
    return sum(map(len, (*entry.data.values(), *entry.json.values(), entry.metadata)))


def _event(message: Displayed) -> bytes:
    return encoded(**_fields(message.kind, entries(message.entries)[0], message.execution_count))


def _fields(kind: str, shown: list[dict[str, Any]], execution_count: int | None) -> dict[str, Any]:
    """Return one rich output as an event has it: the kinds that fit, and the names of those that do not."""
    whole: dict[str, Any] = next((entry for entry in shown if entry["type"] != "omitted"), {})
    fields: dict[str, Any] = {"data": whole.get("data", {}), "metadata": whole.get("metadata", {})}
    if kind == "result":
        fields["execution_count"] = execution_count
    else:
        fields["display_id"] = whole.get("display_id")
    if omitted := [entry for entry in shown if entry["type"] == "omitted"]:
        fields["omitted"] = [{"mime": entry["mime"], "bytes": entry["bytes"]} for entry in omitted]
    return fields
