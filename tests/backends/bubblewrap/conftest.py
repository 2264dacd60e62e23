"""Fixtures: ``house`` (see tests/contracts) with bubblewrap; ``inside`` runs Python in a sandbox and returns what it said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from interpreter.backends.base import Limits, SandboxSpec
from tests.contracts import conftest as contracts
from tests.contracts.conftest import House

house = contracts.house
Inside = Callable[..., Awaitable[Any]]


@pytest.fixture
def kind() -> str:
    return "bubblewrap"


@pytest.fixture
def inside(house: House, monkeypatch: pytest.MonkeyPatch) -> Inside:
    async def run(program: str, *, spec: SandboxSpec | None = None) -> Any:
        """Run ``program``, which may use ``said``, a dict; return that."""
        ending = "\nopen(config['workspace'] + '/said', 'w').write(json.dumps(said))"
        monkeypatch.setitem(contracts.PROGRAMS, "program", "said = {}\n" + program + ending)
        house.behaviour = "program"
        spec = spec or house.spec(Limits(memory_mib=512, pids=64, tmp_mib=8))
        sandbox = await house.backend.start(spec)
        try:
            end = await asyncio.wait_for(sandbox.wait(), 60)
        finally:
            await sandbox.stop()
        assert end.status == 0, end.said
        return json.loads((spec.workspace / "said").read_text())

    return run
