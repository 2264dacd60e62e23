"""Fixtures: ``start`` runs the whole service (app.serve) over the fake backend and a scripted sandboxd, in this process;
each one is stopped after the test, and must end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from interpreter import settings
from interpreter.app import Stop, serve
from interpreter.backends.fake import FakeBackend
from tests.fakes.sandboxd import Sandboxd

KEY = "a-key-for-the-tests-of-cellbox"


@dataclass
class Running:
    """A service and what it said."""

    root: Path
    stop: Stop
    sandboxd: Sandboxd
    backend: FakeBackend
    task: asyncio.Task[None] = field(init=False)
    lines: list[str] = field(default_factory=list)
    serving: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, line: str) -> None:
        self.lines.append(line)
        if line.startswith("try "):
            self.serving.set()

    def said(self, word: str) -> str:
        """What stands after ``word`` in what was said."""
        (line,) = [line for line in self.lines if line.startswith(word)]
        return line.removeprefix(word).strip()

    @property
    def url(self) -> str:
        return self.said("serving").split()[0]

    def client(self, key: str = KEY, **options: Any) -> httpx.AsyncClient:
        options.setdefault("base_url", self.url)
        return httpx.AsyncClient(headers={"X-API-Key": key}, timeout=10, trust_env=False, **options)

    async def ended(self) -> None:
        await asyncio.wait_for(asyncio.shield(self.task), 20)


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    started: list[Running] = []

    async def begin(*, after: Running | None = None, **values: str) -> Running:
        """Start with SANDBOX_* values, names in lower case. Raises what ``serve`` raises. after: one that has ended, on whose
        host this one goes on."""
        variables = {"data_root": str(tmp_path / "data"), "listen": "127.0.0.1:0", "api_key": KEY} | values
        found = settings.load({f"SANDBOX_{name.upper()}": value for name, value in variables.items()})
        sandboxd = Sandboxd() if after is None else after.sandboxd
        host = None if after is None else after.backend.host
        one = Running(found.data_root, Stop(), sandboxd, FakeBackend(sandboxd, host=host))
        one.task = asyncio.get_running_loop().create_task(
            serve(found, say=one.say, backend=one.backend, stop=one.stop), name="serve"
        )
        started.append(one)
        ready = asyncio.get_running_loop().create_task(one.serving.wait(), name="ready")
        await asyncio.wait([ready, one.task], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if one.task.done():
            one.task.result()
        return one

    yield begin
    for one in started:
        one.stop.gently.set()
        one.stop.now.set()
        await asyncio.wait([one.task], timeout=20)
        assert one.task.done()
