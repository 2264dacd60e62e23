"""An upload on its way, over a scripted thread."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

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


async def test_the_next_file_begins_once_the_end_of_the_one_before_is_written() -> None:
    """Two threads on one file: one would close the descriptor that the other writes to, whose number is another file's then."""
    loop = asyncio.get_running_loop()
    begun: list[asyncio.Future[Any]] = []

    def begin(_work: Callable[[], Any]) -> asyncio.Future[Any]:
        begun.append(loop.create_future())
        return begun[-1]

    incoming = Incoming(begin, lambda _parts: None, lambda: None, BLOCK_BYTES)  # type: ignore[arg-type,return-value]
    first = loop.create_task(incoming.start([b"one"]))
    await asyncio.sleep(0)
    begun[0].set_result(None)
    await first
    incoming._uploads.append(None)  # type: ignore[arg-type]
    await incoming.add(b"its end")
    second = loop.create_task(incoming.start([b"two"]))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(begun) == 2
    begun[1].set_exception(OSError("no room"))
    with pytest.raises(OSError, match="no room"):
        await second
    assert len(begun) == 2
    incoming.discard()
