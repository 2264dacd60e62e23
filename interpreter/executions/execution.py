"""One execution as the service knows it: phase, events, and how it ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from interpreter.errors import InternalError, ServiceError
from interpreter.executions.events import EventLog
from interpreter.executions.model import Answer, ExecRequest, Phase


class Execution:
    """One execution. Ends exactly once: with an answer, or, if it never ran, with an error for the caller.

    id: the caller's (``named``) or ours, 128 unguessable bits. events: see events.py. digest: see ``ExecRequest.digest``; given
    where the request is not whole any more.
    """

    def __init__(self, execution_id: str, request: ExecRequest, *, named: bool, digest: bytes | None = None) -> None:
        self.id = execution_id
        self.request = request
        self.named = named
        self.phase: Phase = "queued"
        self.answer: Answer | None = None
        self.error: ServiceError | None = None
        self.events = EventLog(execution_id)
        self.finished_at: float | None = None
        """Seconds on the service's monotonic clock."""
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

    def end(self, result: Answer | ServiceError, now: float) -> None:
        """Say how it ended; later calls change nothing. now: seconds on the monotonic clock.

        The last event of one that never ran has the error's ``code`` and ``message`` instead of an answer.
        """
        if self.phase == "finished":
            return
        self.phase = "finished"
        self.finished_at = now
        if isinstance(result, Answer):
            self.answer = result
            self.events.add("finished", **result.summary())
        else:
            self.error = result
            self.events.add("finished", code=result.code, message=result.message)
        self._ended.set()

    def shed(self) -> None:
        """Let go of what could run it again, which may be 32 MiB of input: nobody needs it once it has ended."""
        self._digest = self.digest
        self.request = replace(self.request, code="", stdin=None, env={})

    def size(self) -> int:
        """About how many bytes it holds on to once it has shed; measured, for the small ones."""
        return 4000 + (0 if self.answer is None else self.answer.size())
