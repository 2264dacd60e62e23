"""Fixtures: ``served`` is a server with the default limits around a ScriptedService (scripted.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.http.scripted import Served, serving


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as server:
        yield server
