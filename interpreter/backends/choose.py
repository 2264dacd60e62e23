"""Which backend this service uses: the one that was named, the one that was chosen before, or a first choice.

Promises: a choice once made holds for its data root; what cannot be used is refused with what to do about it, and
nothing weaker takes its place.
Leaves to the backends: proving that they work here.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from interpreter.backends.base import Backend, BackendUnavailable

Name = Literal["auto", "docker", "bubblewrap", "process"]

HOW_TO_GET_ONE = (
    "Nothing here can make sandboxes. Install Docker and make the image (`cellbox image build`), or install bubblewrap "
    "(Debian, Ubuntu: `apt-get install bubblewrap`; Fedora: `dnf install bubblewrap`; Alpine: `apk add bubblewrap`; "
    "Arch: `pacman -S bubblewrap`), and start again. "
    "SANDBOX_RUNTIME_BACKEND=process runs without any isolation, for code that you trust."
)


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """What the backends need to know. idle_s: seconds. probe_uid: a kernel id that no scope has.

    image, runtime: of the docker backend; runtime is empty for the engine's default. network: ``none``, ``proxy``, or a network
    of the engine.
    """

    root: Path
    idle_s: float
    probe_uid: int
    image: str = "cellbox-runtime:latest"
    runtime: str = ""
    network: str = "none"


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend and why it is the one; ``remember`` writes a first choice down."""

    backend: Backend
    why: str
    file: Path | None = None

    def remember(self) -> None:
        """Write the choice into the data root, for all later starts. Call it once the backend has proved itself."""
        if self.file is not None:
            part = self.file.with_suffix(".part")
            part.write_text(self.backend.name)
            part.replace(self.file)


def choose(name: Name, config: BackendConfig) -> Choice:
    """Return the backend to use. Raises BackendUnavailable with a sentence on what to do."""
    if name != "auto":
        return Choice(_make(name, config), "SANDBOX_RUNTIME_BACKEND names it")
    file = config.root / ".backend"
    try:
        remembered = file.read_text().strip()
    except FileNotFoundError:
        first = _first(config)
        return Choice(_make(first, config), "chosen at this first start, and from now on", file)
    except OSError as error:
        raise BackendUnavailable(
            f"The backend chosen before cannot be read from the data root: {error.strerror}."
        ) from None
    return Choice(_make(remembered, config), "chosen at the first start")


def _first(config: BackendConfig) -> str:
    """Return the strongest backend that there is: docker if its socket answers and the image exists."""
    from interpreter.backends.docker import engine  # noqa: PLC0415 - only what is used

    if engine.has_image(config.image):
        return "docker"
    if shutil.which("bwrap") is not None:
        return "bubblewrap"
    raise BackendUnavailable(HOW_TO_GET_ONE)


def _make(name: str, config: BackendConfig) -> Backend:
    # Each backend is imported only where it is used: one must not fail for what another needs.
    if name == "docker":
        from interpreter.backends.docker.backend import DockerBackend  # noqa: PLC0415 - only what is used

        return DockerBackend(
            root=config.root,
            idle_s=config.idle_s,
            probe_uid=config.probe_uid,
            image=config.image,
            runtime=config.runtime,
            network="none" if config.network == "proxy" else config.network,
        )
    if config.network not in ("none", "proxy") or config.runtime:
        raise BackendUnavailable(
            f"Networks of an engine and SANDBOX_RUNTIME are of the docker backend, and this is {name}: leave them out "
            "(SANDBOX_NETWORK can be none or proxy), or set SANDBOX_RUNTIME_BACKEND=docker."
        )
    if name == "bubblewrap":
        from interpreter.backends.bubblewrap.backend import BubblewrapBackend  # noqa: PLC0415 - only what is used

        return BubblewrapBackend(
            root=config.root,
            lock=config.root / ".lock",
            idle_s=config.idle_s,
            probe_uid=config.probe_uid if os.geteuid() == 0 else None,
        )
    if name == "process":
        if config.network == "proxy":
            raise BackendUnavailable(
                "SANDBOX_NETWORK=proxy confines nothing with the process backend, whose programs have the host's network: leave "
                "it out, or use another backend."
            )
        from interpreter.backends.process.backend import ProcessBackend  # noqa: PLC0415 - only what is used

        return ProcessBackend(root=config.root)
    raise BackendUnavailable(f"The backend {name!r} is not there in this version.")
