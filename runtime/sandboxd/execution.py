"""One execution in a kernel: what it said so far, whether it is over, and how it ended.

Plain code: no I/O, no waiting; ``kernel.py`` tells it what comes and asks it for the outcome.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

from .marks import Pipe
from .messages import Received, decode
from .output import Capture
from .processes import Exited
from .protocol import (
    MAX_ERROR_LINE,
    MAX_ERROR_LINES,
    MAX_PROMPT,
    Asked,
    Execute,
    FromSandbox,
    Outcome,
    Reason,
    Status,
    UserError,
)
from .results import Bundle, Results, bundle_decoder
from .stream import Stream

Why = Literal["timeout", "interrupted"]

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_LATE = 65_536
_MAX_NAME = 1000
_MAX_VALUE = 100_000
_MAX_TRACEBACK = 100_000
"""Characters of all lines."""


class _Reply(Struct):
    status: str
    execution_count: int | None = None
    exit_code: int | None = None
    ename: str = ""
    evalue: str = ""
    traceback: list[str] = []
    payload: list[dict[str, msgspec.Raw]] = []


class _Stream(Struct):
    name: Literal["stdout", "stderr"]
    text: str


class _State(Struct):
    execution_state: str


class _Error(Struct):
    ename: str = ""
    evalue: str = ""
    traceback: list[str] = []


class _Clear(Struct):
    wait: bool = False


class _Asked(Struct):
    prompt: str = ""
    password: bool = False


_reply = msgspec.json.Decoder(_Reply)
_stream = msgspec.json.Decoder(_Stream)
_state = msgspec.json.Decoder(_State)
_error = msgspec.json.Decoder(_Error)
_clear = msgspec.json.Decoder(_Clear)
_asked = msgspec.json.Decoder(_Asked)


class Running:
    """An execution, from its request on.

    over: done at its end. stopped: done when it is to end against its will. woken: done when either is.
    """

    def __init__(self, message: Execute, number: int, *, marks: bool, send: Callable[[FromSandbox], None]) -> None:
        loop = asyncio.get_running_loop()
        self.message = message
        self._send = send
        self.number = number
        self.request = ""
        self.begun = time.monotonic()
        self.timer: asyncio.TimerHandle | None = None
        self.rest: asyncio.TimerHandle | None = None
        self.over: asyncio.Future[None] = loop.create_future()
        self.stopped: asyncio.Future[None] = loop.create_future()
        self.woken: asyncio.Future[None] = loop.create_future()
        self.why: Why | None = None
        self.stream = Stream(message, send)
        self.stdout = self.stream.capture("stdout")
        self.stderr = self.stream.capture("stderr")
        self.reply: _Reply | None = None
        self._results = Results(message.limits.results)
        self.asks = False
        """Whether it waits for input."""
        self._error: _Error | None = None
        self._marks = marks
        self._missing = {"reply"} if marks else {"reply", "idle"}
        self._stopped_at = 0.0

    def capture(self, stream: Pipe) -> Capture:
        """Return what keeps stream 1 or 2."""
        return self.stdout if stream == 1 else self.stderr

    def stop(self, why: Why) -> None:
        """Say that it is to end, and why; the first reason counts."""
        if self.why is None and not self.over.done():
            self.why = why
            self._stopped_at = time.monotonic()
            self.stopped.set_result(None)
            self._wake()

    def left_s(self) -> float:
        """Return the seconds of the grace that are left."""
        return self._stopped_at + self.message.grace_s - time.monotonic()

    def end(self) -> None:
        """It is over, whatever has not come. May be called again."""
        if not self.over.done():
            self.over.set_result(None)
            self._wake()

    @property
    def complete(self) -> bool:
        """Whether all has come that a kernel says at the end. One of ours is done then; others may say more."""
        return not self._missing

    def on_shell(self, message: Received) -> None:
        """A message on shell with this execution as its parent."""
        if message.type == "execute_reply" and self.reply is None:
            self.reply = decode(message, _reply) or _Reply("error", ename="KernelError", evalue="an unreadable reply")
            self._came("reply")

    def on_iopub(self, message: Received) -> None:
        """A message on iopub with this execution as its parent."""
        match message.type:
            case "display_data" | "execute_result" | "update_display_data":
                bundle = decode(message, bundle_decoder)
                if bundle is not None:
                    self._show(message.type, bundle)
            case "clear_output":
                clear = decode(message, _clear)
                wait = clear is not None and clear.wait
                self._results.clear(wait=wait)
                self.stream.cleared(wait=wait)
            case "stream":
                stream = decode(message, _stream)
                if stream is not None:
                    self.capture(1 if stream.name == "stdout" else 2).feed(stream.text.encode("utf-8", "replace"))
            case "error":
                self._error = decode(message, _error)
            case "status":
                state = decode(message, _state)
                if state is not None and state.execution_state == "idle":
                    self._came("idle")

    def on_stdin(self, message: Received) -> None:
        """A message on stdin with this execution as its parent."""
        asked = decode(message, _asked) if message.type == "input_request" else None
        if asked is not None and self.message.allow_input:
            self.asks = True
            prompt = _plain(asked.prompt)[:MAX_PROMPT]
            self._send(Asked(self.message.id, prompt, password=asked.password))

    def outcome(self, kernel: Literal["new", "kept", "lost"], exited: Exited, *, stopped: Reason | None) -> Outcome:
        """Return how it ended. exited: of the process, if the kernel is lost. stopped: why the kernel was ended on request."""
        run_ms = round((time.monotonic() - self.begun) * 1000)
        status, code, reason, error = self._ending(exited, lost=kernel == "lost", stopped=stopped)
        self._page()
        if error is not None and error.traceback:
            self._append(error)
        self.stdout.close()
        self.stderr.close()
        return Outcome(
            status=status,
            exit_code=code,
            run_ms=run_ms,
            stdout=self.stdout.text(),
            stderr=self.stderr.text(),
            stdout_bytes=self.stdout.size,
            stderr_bytes=self.stderr.size,
            truncated=self.stdout.truncated
            or self.stderr.truncated
            or self._results.truncated
            or self.stream.cut
            or self._dropped(),
            reason=reason,
            results=self._results.entries(),
            error=error,
            execution_count=self.reply.execution_count if self.reply is not None else None,
            kernel=kernel,
        )

    def keep_late(self) -> None:
        """The outcome is told: forget it and what was asked, and from here on keep what comes late, and little of it."""
        self.message = msgspec.structs.replace(self.message, code="", env={}, stdin=None)
        self.reply = self._error = None
        self._results = Results(0)
        self.stdout = Capture(min(self.message.limits.text, _LATE))
        self.stderr = Capture(min(self.message.limits.text, _LATE))

    def _show(self, kind: str, bundle: Bundle) -> None:
        if kind == "update_display_data":
            self.stream.displayed("update_display", self._results.update(bundle))
        elif kind == "execute_result":
            self.stream.displayed("result", self._results.add("result", bundle), bundle.count())
        else:
            self.stream.displayed("display", self._results.add("display", bundle))

    def _ending(
        self, exited: Exited, *, lost: bool, stopped: Reason | None
    ) -> tuple[Status, int, Reason | None, UserError | None]:
        if self.why == "timeout":
            return "timeout", 124, "timeout" if lost else None, None
        if stopped is not None:
            return "cancelled", 130, stopped, None
        error = self._user_error()
        if self.why == "interrupted":
            return "interrupted", 130, "killed" if lost else None, error
        if lost:
            return _death(exited)
        code = self.reply.exit_code if self.reply is not None else None
        if error is not None:
            return "error", code or 1, None, error
        return "ok" if not code else "error", code or 0, None, None

    def _user_error(self) -> UserError | None:
        """Return the error: of the reply where the kernel is ours, else whichever channel tells one."""
        told: _Reply | _Error | None = self.reply if self.reply is not None and self.reply.status != "ok" else None
        if not self._marks and self._error is not None:
            told = self._error
        if told is None:
            return None
        lines = [_plain(line)[:MAX_ERROR_LINE] for part in told.traceback for line in part.splitlines() or [""]]
        return UserError(_plain(told.ename)[:_MAX_NAME], _plain(told.evalue)[:_MAX_VALUE], _cut(lines))

    def _dropped(self) -> bool:
        """Whether a foreign kernel has dropped messages: the idle is among them, and what else there is no telling."""
        return not self._marks and self.reply is not None and "idle" in self._missing

    def _append(self, error: UserError) -> None:
        """Put the error at the end of stderr, where clients that know nothing of ``error`` find it."""
        text = "\n".join(error.traceback) + "\n"
        if error.name == "SystemExit":  # as a program would: a code says nothing, a text is said
            text = "" if error.value.lstrip("-").isdigit() else error.value + "\n"
        line_break = "" if self.stderr.ends_line or not text else "\n"
        self.stderr.feed((line_break + text).encode())

    def _page(self) -> None:
        """Print what a foreign kernel meant for a pager."""
        for payload in self.reply.payload if self.reply is not None else ():
            try:
                if msgspec.json.decode(payload.get("source", b"null")) == "page":
                    data = msgspec.json.decode(payload["data"], type=dict[str, msgspec.Raw])
                    text = msgspec.json.decode(data["text/plain"], type=str)
                    self.stdout.feed(_plain(text).encode() + b"\n")
            except (KeyError, ValueError, msgspec.MsgspecError, RecursionError):
                continue

    def _wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)

    def _came(self, what: str) -> None:
        self._missing.discard(what)
        if self._marks and not self._missing:
            self.end()


def _death(exited: Exited) -> tuple[Status, int, Reason | None, UserError | None]:
    """Return how an execution ends whose kernel has ended by itself."""
    if exited.status is None:
        return "died", 137, "killed", None
    if exited.status < 0:
        return "died", 128 - exited.status, "crash", None
    return "died", exited.status, "exit", None


def _plain(text: str) -> str:
    """Return ``text`` without colours and other terminal sequences."""
    return _ANSI.sub("", text)


def _cut(lines: list[str]) -> list[str]:
    """Return ``lines``, or the first and the last of them where they are too many or too long in all."""
    half = MAX_ERROR_LINES // 2
    if len(lines) > MAX_ERROR_LINES:
        lines = [*lines[:half], *lines[-half:]]
    while sum(map(len, lines)) > _MAX_TRACEBACK:
        del lines[len(lines) // 2]
    return lines
