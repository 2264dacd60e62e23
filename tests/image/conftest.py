"""Fixtures: ``image`` is the engine's account of the image of the sandboxes; ``inside`` runs a script in a container of it, as a
scope's uid, confined as sandboxes are, and returns what it said. An engine without the image is a failure in CI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pytest
from docker import APIClient
from docker.errors import DockerException, ImageNotFound

from interpreter.backends.tenant_environment import tenant_environment
from interpreter.settings import Settings
from tests import engines

IMAGE = Settings.model_fields["image"].default
UID = 299_001
WITHIN_S = 100
TMPFS = f"exec,nosuid,nodev,uid={UID},gid={UID},mode=0700"


@dataclass(frozen=True, slots=True)
class Said:
    """What a container left behind."""

    status: int
    out: str
    err: str


@contextmanager
def engine() -> Iterator[APIClient]:
    api = APIClient(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock", version="auto", timeout=WITHIN_S)
    try:
        yield api
    finally:
        api.close()


@pytest.fixture(scope="session")
def image() -> dict[str, Any]:
    if not engines.answers():
        pytest.skip("no container engine answers: .ci/engine.sh start")
    try:
        with engine() as api:
            return dict(api.inspect_image(IMAGE))
    except ImageNotFound:
        missing = f"the image {IMAGE} is not there: make image"
    except DockerException:
        missing = "no container engine answers: .ci/engine.sh start"
    if os.environ.get("CI") == "true" and "DOCKER_HOST" in os.environ:
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture
def inside(image: dict[str, Any]) -> Callable[..., Said]:
    def run(*command: str, uid: int = UID) -> Said:
        with engine() as api:
            container = api.create_container(
                image["Id"],
                command=list(command),
                user=f"{uid}:{uid}",
                environment=tenant_environment(
                    user=PurePosixPath("/opt/user"), venv=PurePosixPath("/opt/cellbox/venv"), cpus=1
                ),
                host_config=api.create_host_config(
                    network_mode="none",
                    read_only=True,
                    cap_drop=["ALL"],
                    security_opt=["no-new-privileges:true"],
                    tmpfs=dict.fromkeys(("/tmp", "/opt/user", "/opt/workspace"), TMPFS),
                ),
            )["Id"]
            try:
                api.start(container)
                status = api.wait(container, timeout=WITHIN_S)["StatusCode"]
                out, err = (api.logs(container, stdout=which, stderr=not which).decode() for which in (True, False))
            finally:
                api.remove_container(container, force=True)
        return Said(status, out, err)

    return run
