"""An upload on its way, over a scripted thread."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

from interpreter.files.incoming import BLOCK_BYTES, Incoming


async def test_a_write_that_failed_unseen_ends_with_the_upload() -> None:
    loop = asyncio.get_running_loop()
    said: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, about: said.append(about))
    ended: list[bool] = []
    began = 0

    def begin(_work: Callable[[], Any]) -> asyncio.Future[Any]:
        nonlocal began
        began += 1
        future = loop.create_future()
        if began == 1:
            future.set_result(None)
        else:
            future.set_exception(OSError("no room"))
        return future

    incoming = Incoming(begin, lambda _parts: None, lambda: ended.append(True), 10 * BLOCK_BYTES)  # type: ignore[arg-type,return-value]
    await incoming.start([b"file"])
    incoming._uploads.append(None)  # type: ignore[arg-type]
    await incoming.add(bytes(BLOCK_BYTES))
    incoming.discard()
    incoming.discard()
    del incoming
    gc.collect()
    await asyncio.sleep(0)
    assert (began, ended, said) == (2, [True], [])
