"""``/v1/executions/{id}/stdout`` and ``stderr``: the whole output, beyond what an answer holds."""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar, Literal

from tornado.iostream import StreamClosedError

from interpreter import wire
from interpreter.http.base import ApiHandler
from interpreter.http.errors import RangeNotSatisfiable

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class StdoutHandler(ApiHandler):
    """What an execution wrote to stdout."""

    STREAM: ClassVar[Literal["stdout", "stderr"]] = "stdout"

    async def on_get(self, execution_id: str, query: wire.ExecutionQuery, _body: wire.NoBody) -> None:
        """Send what there is by now, or the range of it that is asked for."""
        await self.api.service.recall(execution_id, query.scope)
        events = self.api.service.execution(execution_id, query.scope).events
        size = events.text_size(self.STREAM)
        start, stop = 0, size
        found = _range(self.request.headers.get("Range", ""), size)
        if found is not None:
            start, stop = found
            self.set_status(206)
            self.set_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Accept-Ranges", "bytes")
        self.set_header("Content-Length", str(stop - start))
        if self.request.method == "HEAD":
            self.finish()
            return
        self.when_client_leaves(lambda: None)
        try:
            for piece in events.text(self.STREAM, start, stop):
                self.write(piece)
                await self.flush()
                await asyncio.sleep(0)  # All others have their turn, however fast it is taken.
            await self.finish()
        except StreamClosedError:
            pass  # It has what it wanted.


class StderrHandler(StdoutHandler):
    """What an execution wrote to stderr."""

    STREAM = "stderr"


def _range(header: str, size: int) -> tuple[int, int] | None:
    """Return where the one range of ``header`` begins and ends in ``size`` bytes; None to send all, also for several at once.

    Raises RangeNotSatisfiable.
    """
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:
        start, stop = max(size - int(match[2]), 0), size
    else:
        start, stop = int(match[1]), min(int(match[2]) + 1, size) if match[2] else size
        if match[2] and int(match[2]) < start:
            return None
    if start >= stop:
        raise RangeNotSatisfiable(f"There are {size} bytes.")
    return start, stop
