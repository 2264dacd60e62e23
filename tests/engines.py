"""The container engine that tests use: the one that its clients use, and whether it answers."""

from __future__ import annotations

import functools
import os

import pytest

ADDRESS = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
IMAGE = os.environ.get("SANDBOX_IMAGE") or "cellbox-runtime:latest"


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


@functools.cache
def has_image() -> bool:
    """Whether it has the image of the sandboxes."""
    from interpreter.backends.docker.engine import Client, EngineError

    client = Client(ADDRESS)
    try:
        return answers() and bool(client.image(IMAGE))
    except EngineError:
        return False
    finally:
        client.close()


@functools.cache
def has_gvisor() -> bool:
    """Whether it knows gVisor as a runtime."""
    if not answers():
        return False
    from interpreter.backends.docker.engine import Client

    client = Client(ADDRESS)
    try:
        return "runsc" in client.about()[1]["Runtimes"]
    finally:
        client.close()


def containers(uids: range) -> list[str]:
    """Names of the containers of sandboxes, running or not, whose scopes have these ids."""
    if not answers():
        return []
    from interpreter.backends.docker.engine import Client
    from interpreter.backends.docker.spec import SCOPE_UID

    client = Client(ADDRESS)
    try:
        found = client.containers(SCOPE_UID)
        return [each["Names"][0] for each in found if int(each["Labels"][SCOPE_UID]) in uids]
    finally:
        client.close()


gvisor_needed = pytest.mark.skipif(
    not has_gvisor(), reason="needs gVisor in the container engine: apt-get install runsc, then .ci/engine.sh start"
)
needed = pytest.mark.skipif(not answers(), reason="needs root and a container engine: .ci/engine.sh start")
image_needed = pytest.mark.skipif(not has_image(), reason="needs root, a container engine, and the image: make image")
