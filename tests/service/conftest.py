"""``house``: the service over the fake backend and a scripted sandboxd; ``make_house`` with other settings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interpreter.backends.fake import FakeBackend
from interpreter.executions.execution import Execution
from interpreter.executions.model import Answer, ExecRequest
from interpreter.service import Interpreter
from interpreter.service_config import ServiceConfig
from tests.fakes.sandboxd import Sandboxd


class Clock:
    """Real time that a test can push forward."""

    def __init__(self) -> None:
        import time

        self._real = time.monotonic
        self.ahead = 0.0

    def __call__(self) -> float:
        return self._real() + self.ahead


@dataclass
class House:
    service: Interpreter
    backend: FakeBackend
    sandboxd: Sandboxd
    clock: Clock
    root: Path

    def submit(self, code: str, **fields: Any) -> Execution:
        request = {
            "scope": "u1",
            "session": "chat",
            "language": "python",
            "timeout_s": 30.0,
            "stateful": True,
            **fields,
        }
        return self.service.submit(ExecRequest(code=code, **request))

    async def exec(self, code: str, **fields: Any) -> Answer:
        return await self.service.settle(self.submit(code, **fields))


@pytest.fixture
async def make_house(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[House]]]:
    made: list[House] = []

    async def make(after: House | None = None, **config: Any) -> House:
        """A started service. after: one that has gone, on whose data root and host this one goes on."""
        clock = Clock()
        if after is None:
            sandboxd, root, host = Sandboxd(), tmp_path / f"data{len(made)}", None
        else:
            sandboxd, root, host = after.sandboxd, after.root, after.backend.host
        backend = FakeBackend(sandboxd, single_tenant=config.pop("single_tenant", False), host=host)
        settings = {"grace_s": 0.1, "start_timeout_s": 5.0, "drain_timeout_s": 1.0, **config}
        service = Interpreter(ServiceConfig(data_root=root, **settings), backend, clock=clock)
        await service.start()
        made.append(House(service, backend, sandboxd, clock, root))
        return made[-1]

    yield make
    for house in reversed(made):
        await house.service.aclose()
        await house.service.aclose()
        assert not list((house.root / ".run").iterdir()), "link directories are left"


@pytest.fixture
async def house(make_house: Callable[..., Awaitable[House]]) -> House:
    return await make_house()
