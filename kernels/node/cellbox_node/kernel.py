"""The Node kernel: cells run in one Node process, which is this kernel's state.

Promises: an interrupt ends the cell and keeps the state wherever Node can be stopped at all; a process that ends by itself ends
the kernel in the same way where somebody watches that, and is else told as an error and replaced.
Leaves to ``program/`` what a cell means.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from cellbox_wire import Ask, AskedInput, Cell, Ending, Error, Kernel, Language, Pump, processes, reading

from .child import Child
from .marks import MarkReader

_START_S = 20.0
_SETTLE_S = 5.0
"""For an interrupt that is still looking for what to stop when its cell is over."""

_ANSWER_S = 5.0
"""For what is asked about names and syntax, which waits for what earlier cells left running."""

_CHILDREN_S = 0.7
_LAST_RESORT_S = 3.0
"""After an interrupt that was not heard, until the children of the cell are ended, and until Node itself is, where nobody else
sees to that."""

_INTERRUPTED = Error("KeyboardInterrupt", "", ["KeyboardInterrupt"])


class Node(Language):
    """The language of this kernel."""

    information: ClassVar[dict[str, Any]] = {
        "implementation": "cellbox-node",
        "implementation_version": "1.0",
        "banner": "Node.js",
        "language_info": {
            "name": "javascript",
            "version": "22",
            "mimetype": "text/javascript",
            "file_extension": ".js",
            "pygments_lexer": "javascript",
            "codemirror_mode": "javascript",
        },
    }

    places = True

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._folder = kernel.connection_file.parent if kernel.marks else None
        self._loop = asyncio.get_running_loop()
        self._child: Child | None = None
        self._pumps: list[Pump] = []
        self._readers: list[MarkReader] = []
        self._closing = False
        self._cell: Cell | None = None
        self._number = 0
        self._interrupts = 0  # of the running cell
        self._begun = 0
        self._sent = False
        self._asked: AskedInput | None = None
        self._unsettled: set[int] = set()
        """Cells for which an interrupt is still looking for what to stop."""
        self._settled = asyncio.Event()
        self._question = 0
        self._held: dict[int, dict[str, Any]] = {}
        """Displays whose place among the text has not come yet."""
        self._answer: asyncio.Future[dict[str, Any] | None] = self._loop.create_future()
        """None: the child has ended first."""
        self._status: asyncio.Future[int] = self._loop.create_future()

    async def start(self) -> None:
        """See ``Language``."""
        self._answer = self._loop.create_future()
        self._status = self._loop.create_future()
        secret = self._kernel.secret or secrets.token_hex(16)
        with self._outputs(secret) as outputs:
            self._child = Child(self._receive, self._ended, outputs)
        self._child.send({"type": "hello", "secret": secret, "places": not self._kernel.marks})
        async with asyncio.timeout(_START_S):
            ready = await self._answer
        if ready is None:
            raise OSError(f"node ended with {self._status.result()} while it was starting")
        self.information["language_info"]["version"] = str(ready.get("version"))

    async def execute(self, cell: Cell) -> Ending:
        """See ``Language``."""
        ask = reading.asking(cell)
        if ask is None and self._kernel.marks and cell.ask is not None and cell.stdin is None:
            return Ending(1, reading.CANNOT_TELL)
        if self._status.done():
            await self.start()
        self._cell, self._number, self._interrupts, self._begun = cell, cell.number, 0, processes.ticks()
        try:
            if self._unsettled:  # what is still being stopped must not be this cell
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_SETTLE_S):
                        await self._settled.wait()
            if self._interrupts:
                return Ending(130, _INTERRUPTED)
            self._sent = True
            async with self._input(cell.stdin, ask) as stdin:
                request = {"number": cell.number, "count": cell.count, "code": cell.code, "env": dict(cell.env)}
                done = await self._ask(
                    {"type": "execute", "cwd": cell.cwd, "input": stdin, "ordered": cell.ordered} | request
                )
        finally:
            self._cell, self._sent = None, False
        self._drain()
        if done is None:
            return await self._after_death()
        error = done.get("error")
        if isinstance(error, dict):
            if self._interrupts or error.get("ename") == "KeyboardInterrupt":
                return Ending(130, _INTERRUPTED)
            lines = error.get("traceback")
            lines = [str(line) for line in lines] if isinstance(lines, list) else []
            return Ending(1, Error(str(error.get("ename")), str(error.get("evalue")), lines))
        if (data := _bundle(done.get("data"))) and not cell.silent:
            cell.result(data)
        return Ending()

    def interrupt(self) -> None:
        """See ``Language``."""
        if self._cell is None or self._child is None:
            return
        self._interrupts += 1
        if not self._sent:
            return
        if self._asked is not None:
            self._asked.close()  # the process may be in a read of it, which no interrupt ends
        self._unsettled.add(self._cell.number)
        self._settled.clear()
        self._child.interrupt(self._cell.number)
        if self._interrupts == 1 and not self._kernel.marks:
            self._loop.call_later(_CHILDREN_S, self._end_children, self._cell)
            self._loop.call_later(_LAST_RESORT_S, self._end_cell, self._cell)

    async def complete(self, code: str, cursor: int) -> tuple[list[str], int, int]:
        """See ``Language``."""
        answer = await self._look_up({"type": "complete", "code": code, "cursor": _units(code, cursor)})
        matches = answer.get("matches")
        start, end = (answer.get(key, 0) for key in ("start", "end"))
        if not isinstance(matches, list) or not isinstance(start, int) or not isinstance(end, int):
            return [], cursor, cursor
        return [str(match) for match in matches], cursor - (end - start), cursor  # names have no other characters

    async def inspect(self, code: str, cursor: int) -> dict[str, Any] | None:
        """See ``Language``."""
        answer = await self._look_up({"type": "inspect", "code": code, "cursor": _units(code, cursor)})
        text = answer.get("text")
        return {"text/plain": text} if isinstance(text, str) else None

    async def is_complete(self, code: str) -> str:
        """See ``Language``."""
        answer = await self._look_up({"type": "is_complete", "code": code})
        status = answer.get("status")
        return status if status in ("complete", "incomplete", "invalid") else "unknown"

    async def close(self) -> None:
        """See ``Language``."""
        self._closing = True
        if self._child is not None and not self._status.done():
            self._child.kill()
            await asyncio.wait([self._status])

    @contextlib.asynccontextmanager
    async def _input(self, text: str | None, ask: Ask | None) -> AsyncIterator[str | None]:
        """Yield the path of what the cell can read in here; None: nothing."""
        if text is not None:
            with _file(text) as path:
                yield path
            return
        if ask is None:
            yield None
            return
        with tempfile.TemporaryDirectory(prefix="node-", dir=self._folder) as folder:
            self._asked = AskedInput(Path(folder, "in"), self._pid, partial(self._ask_for, ask))
            try:
                async with contextlib.aclosing(self._asked):
                    yield str(self._asked.path)
            finally:
                self._asked = None

    async def _ask_for(self, ask: Ask, _pid: int) -> str:
        for pump in self._pumps:
            pump.drain()
        return await ask("", False)

    def _pid(self) -> int:
        return self._child.pid if self._child is not None and not self._status.done() else 0

    # --- the child --------------------------------------------------------------------------------------------------

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request; return the answer, None if the child ends first."""
        if self._child is None or self._status.done():
            return None
        self._answer = self._loop.create_future()
        self._child.send(request)
        return await self._answer

    async def _look_up(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a question; an empty one if there is none within ``_ANSWER_S``."""
        self._question += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                return await self._ask(request | {"question": self._question}) or {}
        return {}

    def _receive(self, message: dict[str, Any]) -> None:
        number = message.get("number")
        match message.get("type"):
            case "done":
                if self._cell is not None and number == self._cell.number:
                    self._answered_with(message)
            case "ready":
                self._answered_with(message)
            case "answer" if message.get("question") == self._question:  # and not to one that waits no more
                self._answered_with(message)
            case "display" | "clear" if isinstance(number, int) and isinstance(message.get("place"), int):
                if self._kernel.marks:
                    self._show(message)
                else:  # when what was written before it has been read
                    self._held[message["place"]] = message
            case "settled" if isinstance(number, int):
                self._unsettled.discard(number)
                if not self._unsettled:
                    self._settled.set()

    def _shown(self, place: int) -> None:
        """Here is the place of a display among the text. It was sent before this was written."""
        if self._child is not None:
            self._child.drain()
        if (message := self._held.pop(place, None)) is not None:
            self._show(message)

    def _show(self, message: dict[str, Any]) -> None:
        number, place = message["number"], message["place"] if self._kernel.marks else None
        if message["type"] == "clear":
            self._kernel.publish(number, "clear_output", {"wait": bool(message.get("wait"))}, place)
        elif data := _bundle(message.get("data")):
            metadata, identity = message.get("metadata"), message.get("display_id")
            content: dict[str, Any] = {"data": data, "metadata": metadata if isinstance(metadata, dict) else {}}
            content["transient"] = {"display_id": identity} if isinstance(identity, str) else {}
            kind = "update_display_data" if message.get("update") else "display_data"
            self._kernel.publish(number, kind, content, place)

    def _answered_with(self, message: dict[str, Any] | None) -> None:
        if not self._answer.done():
            self._answer.set_result(message)

    def _ended(self, status: int) -> None:
        """The child has ended. Without a cell that says so, it is replaced when the next one comes."""
        self._drain()
        for pump in self._pumps:
            pump.close()
        self._settled.set()
        self._unsettled.clear()
        self._status.set_result(status)
        self._answered_with(None)
        if self._kernel.marks and not self._closing:
            self._kernel.end_as(status)

    async def _after_death(self) -> Ending:
        if self._closing:
            return Ending(1, Error("KernelExited", "shut down"))
        status = self._status.result()
        await self.start()
        code = status if status >= 0 else 128 - status
        if self._interrupts:
            return Ending(130, _INTERRUPTED)
        what = f"exit code {status}" if status >= 0 else f"signal {-status}"
        lines = [f"KernelExited: the Node process ended with {what}; its variables are lost"]
        return Ending(code or 1, Error("KernelExited", str(code), lines))

    def _end_children(self, cell: Cell) -> None:
        if self._cell is cell and self._child is not None:
            self._child.kill_children(self._begun)
            self._child.interrupt(cell.number)

    def _end_cell(self, cell: Cell) -> None:
        """The last resort: the state is lost."""
        if self._cell is cell and self._child is not None:
            self._kernel.output.write(
                cell.number, 2, b"Node did not hear the interrupt and was ended; its variables are lost.\n"
            )
            self._child.kill()

    # --- its output -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _outputs(self, secret: str) -> Iterator[tuple[int, int]]:
        """Yield what is to be its standard output and error: ours where marks are read, else pipes that are read here."""
        if self._kernel.marks:
            yield 1, 2
            return
        self._pumps, self._readers, theirs = [], [], []
        try:
            for stream in (1, 2):
                read, write = os.pipe2(os.O_CLOEXEC)
                theirs.append(write)
                reader = MarkReader(secret, self._kernel.output.write, partial(self._raw, stream), self._shown)
                self._readers.append(reader)
                self._pumps.append(Pump(read, reader.feed))
            yield theirs[0], theirs[1]
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def _raw(self, stream: int, data: bytes) -> None:
        self._kernel.output.write(self._number, stream, data)

    def _drain(self) -> None:
        """Take what it has written until now."""
        for pump, reader in zip(self._pumps, self._readers, strict=True):
            if not pump.closed:
                pump.drain()
            reader.settle()
        for place in sorted(self._held):
            self._show(self._held.pop(place))


@contextlib.contextmanager
def _file(text: str) -> Iterator[str]:
    """Yield a path from which ``text`` can be read in here."""
    with os.fdopen(os.memfd_create("stdin", os.MFD_CLOEXEC), "wb") as file:
        file.write(text.encode("utf-8", "replace"))
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _bundle(data: Any) -> dict[str, Any]:
    """Return what is a MIME bundle in ``data``."""
    return {str(kind): value for kind, value in data.items() if value is not None} if isinstance(data, dict) else {}


def _units(code: str, cursor: int) -> int:
    """Return a position as JavaScript counts them."""
    return len(code[:cursor].encode("utf-16-le", "surrogatepass")) // 2
