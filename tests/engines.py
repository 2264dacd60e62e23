"""The container engine that tests use: the one that its clients use, and whether it answers."""

from __future__ import annotations

import functools
import os

import pytest

ADDRESS = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


@functools.cache
def answers() -> bool:
    """Whether there is an engine, and sandboxes of several scopes can be made with it."""
    if os.geteuid() != 0:
        return False
    from interpreter.backends.docker.engine import Client, EngineError

    client = Client(ADDRESS)
    try:
        client.ping()
    except EngineError:
        return False
    finally:
        client.close()
    return True


needed = pytest.mark.skipif(not answers(), reason="needs root and a container engine: .ci/engine.sh start")
