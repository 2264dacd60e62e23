"""Serves the requests of Jupyter clients with a ``Language``.

Promises: every request is answered, in the order it came; what was published and written before an answer is there before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from .direct import Direct
from .language import Cell, Ending, Error, Language
from .messages import Request
from .output import Marks, Output, Streams
from .sockets import Sockets

_REMEMBERED = 1000
"""Cells whose late output still finds the request it belongs to."""

_ORPHAN_EVERY_S = 1.0


class Kernel:
    """The kernel of this process. language: makes the one thing that is to be made for it.

    A request may carry ``{"cellbox": {"execution": 7, "env": {…}, "cwd": "…", "stdin": "…"}}`` in its metadata: see ``Cell``.
    Then neither status nor execute_input are published for it: its end is the reply. The reply to an execution has ``exit_code``.
    """

    def __init__(self, connection_file: Path, language: Callable[[Kernel], Language], secret: str | None) -> None:
        self.connection_file = connection_file
        self.marks = secret is not None
        """Whether somebody reads marks, who also takes care of interrupts that are not heard, and of our death."""
        self.secret = secret
        """Of the marks, for a child that writes them itself."""
        self.output: Output = Streams(self._publish_stream) if secret is None else Marks(secret)
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._waiting: asyncio.Queue[Request] = asyncio.Queue()
        self._parents: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._number = 0
        self._count = 0
        self._running: Request | None = None
        self._asked: asyncio.Future[str] = self._loop.create_future()
        self._aborts = False
        """Whether the executions that wait are not to be run, since the last one failed."""
        self._parent_pid = os.getppid()
        self._may_be_orphaned = os.environ.pop("JPY_PARENT_PID", None) == str(self._parent_pid)
        self._sockets: Sockets | Direct
        self._language = language(self)

    async def serve(self) -> None:
        """Serve until shut down."""
        serving = on_sigint = None
        try:
            await self._language.start()
            self._sockets = Direct(self._receive) if self.marks else Sockets(self.connection_file, self._receive)
            on_sigint = signal.signal(signal.SIGINT, self._on_sigint)
            self._loop.add_signal_handler(signal.SIGTERM, self._end)
            if self._may_be_orphaned:
                self._loop.call_later(_ORPHAN_EVERY_S, self._look_for_parent)
            serving = self._loop.create_task(self._serve_shell(), name="shell")
            await asyncio.wait([self._over, serving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._language.close()
            if on_sigint is not None:
                signal.signal(signal.SIGINT, on_sigint)
            if serving is not None:
                serving.cancel()
                await asyncio.wait([serving])
                self.output.flush()
                self._sockets.close()

    def end_as(self, status: int) -> None:
        """End this process, now, as a child has ended: with its exit code, or, if negative, of that signal."""
        self.output.flush()
        self._sockets.close()
        if status < 0:
            signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
            os.kill(os.getpid(), -status)
        os._exit(status if status >= 0 else 128 - status)

    def publish(self, number: int, kind: str, content: dict[str, Any], place: int | None = None) -> None:
        """Publish a message of the cell of that number, after what was written until now. One that JSON cannot hold is said.

        place: that its child has marked for it.
        """
        try:
            at = self.output.place if place is None else lambda: place
            self._sockets.publish(kind, content, self._parents.get(number, {}), at)
        except RecursionError:
            self.output.write(number, 2, f"{kind}: it is nested too deeply to be shown\n".encode())

    # --- requests ---------------------------------------------------------------------------------------------------

    def _receive(self, channel: str, request: Request) -> None:
        if channel == "shell":
            self._waiting.put_nowait(request)
            return
        if channel == "stdin":
            if request.kind == "input_reply" and self._running is not None and not self._asked.done():
                self._asked.set_result(str(request.content.get("value", "")))
            return
        self._status("busy", request)
        match request.kind:
            case "interrupt_request":
                self._language.interrupt()
                self._sockets.reply(channel, request, {"status": "ok"})
            case "shutdown_request":
                content = {"status": "ok", "restart": bool(request.content.get("restart"))}
                self._sockets.reply(channel, request, content)
                self._sockets.publish("shutdown_reply", content, request.header)
                self._end()
            case "kernel_info_request":
                self._sockets.reply(channel, request, self._information())
        self._status("idle", request)

    async def _serve_shell(self) -> None:
        while True:
            request = await self._waiting.get()
            told = request.kind != "execute_request" or "cellbox" not in request.metadata
            if told:
                self._status("busy", request)
            await self._answer(request)
            if told:
                self._status("idle", request)
            if self._aborts:
                self._aborts = False
                self._abort_waiting()

    async def _answer(self, request: Request) -> None:
        try:
            if request.kind == "execute_request":
                await self._execute(request)
            elif (content := await self._content(request)) is not None:
                self._sockets.reply("shell", request, {"status": "ok"} | content)
        except Exception as error:  # noqa: BLE001 - of the kernel, not of the request: the next one is served
            traceback.print_exc()
            name = type(error).__name__
            content = {"status": "error", "ename": name, "evalue": f"in the kernel: {error}", "traceback": []}
            self._sockets.reply("shell", request, content)

    async def _content(self, request: Request) -> dict[str, Any] | None:
        """Return the content of the reply; None: to none of the requests that there are."""
        code = str(request.content.get("code", ""))
        cursor = request.content.get("cursor_pos")
        cursor = min(max(cursor, 0), len(code)) if isinstance(cursor, int) else len(code)
        content: dict[str, Any] | None = None
        match request.kind:
            case "kernel_info_request":
                content = self._information()
            case "complete_request":
                matches, start, end = await self._language.complete(code, cursor)
                content = {"matches": matches, "cursor_start": start, "cursor_end": end, "metadata": {}}
            case "inspect_request":
                found = await self._language.inspect(code, cursor)
                content = {"found": found is not None, "data": found or {}, "metadata": {}}
            case "is_complete_request":
                status = await self._language.is_complete(code)
                content = {"status": status} | ({"indent": ""} if status == "incomplete" else {})
            case "history_request":
                content = {"history": []}
            case "comm_info_request":
                content = {"comms": {}}
            case "shutdown_request":  # of clients from before the control channel
                self._end()
                content = {"restart": bool(request.content.get("restart"))}
        return content

    def _information(self) -> dict[str, Any]:
        return {
            "status": "ok",
            "protocol_version": "5.4",
            "help_links": [],
            "debugger": False,
        } | self._language.information

    # --- executions -------------------------------------------------------------------------------------------------

    async def _execute(self, request: Request) -> None:
        cell = self._cell(request)
        self._running = request
        if "cellbox" not in request.metadata and not cell.silent:
            self._sockets.publish("execute_input", {"code": cell.code, "execution_count": cell.count}, request.header)
        self.output.begin(ordered=cell.ordered and not self._language.places)
        self._sockets.begun()
        try:
            ending = await self._language.execute(cell)
        except Exception as failed:  # noqa: BLE001 - a request without a reply would last to its timeout
            traceback.print_exc()
            ending = Ending(1, Error(type(failed).__name__, f"in the kernel: {failed}"[:1000]))
        content: dict[str, Any] = {"status": "ok", "user_expressions": {}, "payload": []}
        if (error := ending.error) is not None:
            told = {"ename": error.name, "evalue": error.value, "traceback": error.traceback}
            content = {"status": "error"} | told
            if not cell.silent:
                self.publish(cell.number, "error", told)
        self.output.end(cell.number)
        self._running = None
        content |= {"exit_code": ending.exit_code, "execution_count": cell.count}
        self._sockets.reply("shell", request, content)
        self._aborts = ending.error is not None and bool(request.content.get("stop_on_error", True))

    def _cell(self, request: Request) -> Cell:
        """Return what ``request`` asks for; what is not as it should be counts as not there."""
        ours = request.metadata.get("cellbox")
        ours = ours if isinstance(ours, dict) else {}
        env, cwd, stdin, number, ordered = (ours.get(name) for name in ("env", "cwd", "stdin", "execution", "ordered"))
        self._number = number if isinstance(number, int) else self._number + 1
        number = self._number
        silent = bool(request.content.get("silent"))
        if not silent and request.content.get("store_history", True):
            self._count += 1
        self._parents[number] = request.header
        if len(self._parents) > _REMEMBERED:
            self._parents.popitem(last=False)
        return Cell(
            number=number,
            count=self._count,
            code=str(request.content.get("code", "")),
            env={str(name): str(value) for name, value in env.items()} if isinstance(env, dict) else {},
            cwd=cwd if isinstance(cwd, str) else None,
            stdin=stdin if isinstance(stdin, str) else None,
            silent=silent,
            ordered=ordered is True,
            publish=lambda kind, content: self.publish(number, kind, content),
            ask=partial(self._ask, request) if request.content.get("allow_stdin") is True else None,
        )

    async def _ask(self, request: Request, prompt: str, secret: bool) -> str:
        """Return a line of whoever sent ``request``."""
        self.output.flush()
        self._asked = self._loop.create_future()
        self._sockets.ask(request, {"prompt": prompt, "password": secret})
        return await self._asked

    def _abort_waiting(self) -> None:
        """Answer the executions that wait without running them: who asked for them wants that after an error."""
        waiting = [self._waiting.get_nowait() for _ in range(self._waiting.qsize())]
        for request in waiting:
            if request.kind == "execute_request" and "cellbox" not in request.metadata:
                self._status("busy", request)
                self._sockets.reply("shell", request, {"status": "aborted"})
                self._status("idle", request)
            else:
                self._waiting.put_nowait(request)

    def _publish_stream(self, number: int, name: str, text: str) -> None:
        self._sockets.publish("stream", {"name": name, "text": text}, self._parents.get(number, {}))

    def _status(self, state: str, request: Request) -> None:
        self._sockets.publish("status", {"execution_state": state}, request.header)

    def _on_sigint(self, *_: object) -> None:
        """Note at once what is meant: by the time that the loop gets to it, the next execution may have begun."""
        if self._running is not None:
            self._loop.call_soon_threadsafe(self._interrupt, self._running)

    def _interrupt(self, request: Request) -> None:
        if request is self._running:
            self._language.interrupt()

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _look_for_parent(self) -> None:
        """End with the client that started us, if it went without a word."""
        if os.getppid() != self._parent_pid:
            self._end()
        self._loop.call_later(_ORPHAN_EVERY_S, self._look_for_parent)


def serve(connection_file: str, language: Callable[[Kernel], Language]) -> int:
    """Be the kernel of ``connection_file``, in this process, until it is shut down; return the exit code."""
    secret = os.environ.pop("CELLBOX_MARKS", None)

    file = Path(connection_file).absolute()

    async def run() -> None:
        await Kernel(file, language, secret).serve()

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(run())
    except (OSError, ValueError, KeyError, zmq.ZMQError) as error:
        print(f"the kernel could not be started: {error}", file=sys.stderr)
        return 1
    return 0
