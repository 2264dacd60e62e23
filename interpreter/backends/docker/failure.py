"""Why the engine could not do it, as the caller is told: the cause and the remedy. Pure.

Promises: the texts are ours, whatever the engine said; that goes into the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from interpreter import shortage
from interpreter.backends.base import BackendError, BackendUnavailable

from .engine import Conflict, DiskFull, EngineError, EngineGone, NotThere
from .sources import Planted

PROBE_FAILED = (
    "containers do not run here as they have to: the logs of the service and of the container engine have the reason"
)
GVISOR_PROBE_FAILED = "a throw-away container of gVisor could not connect to a socket of the service"
_DISK = "the disk of the container engine is full: make room on it (`docker system df` shows what takes it)"
_UNKNOWN = "the log of the service has the reason"


class Ignored(EngineError):
    """The engine did not take over what it was told. names: of the settings, as the engine calls them."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"the engine ignored {', '.join(names)}")
        self.names = tuple(names)


def no_image(image: str) -> str:
    """Return what to say where there is no such image."""
    return (
        f"the image {image} is not there: `cellbox image build` makes it, `cellbox image load` takes it from a file,"
        " SANDBOX_IMAGE names another one"
    )


def other_inputs(image: str) -> str:
    """Return what to say of an image that was made from other inputs than this version has."""
    return (
        f"the image {image} was made from other inputs than this version has, so sandboxes are not what it describes: make it"
        " anew with `cellbox image build`"
    )


def no_network(network: str) -> str:
    """Return what to say where there is no such network."""
    return (
        f"the container engine has no network {network}: `docker network create` makes one, or set SANDBOX_NETWORK=none"
    )


def unavailable(error: EngineError, address: str) -> BackendUnavailable:
    """Return what to raise where the engine cannot be used at all."""
    if isinstance(error, EngineGone):
        return BackendUnavailable(
            f"the container engine does not answer at {address}: start it (`systemctl start docker`), see that this"
            " user may use its socket, or name another one with DOCKER_HOST"
        )
    if isinstance(error, DiskFull):
        return BackendUnavailable(_DISK)
    return BackendUnavailable(f"the container engine refuses: {_UNKNOWN}")


def of_start(error: Exception, image: str, address: str) -> BackendError:
    """Return what to raise for a start that failed."""
    if isinstance(error, EngineGone):
        return unavailable(error, address)
    if isinstance(error, NotThere) and "image" in str(error).lower():
        return BackendUnavailable(no_image(image))
    if isinstance(error, Ignored):
        return BackendUnavailable(
            f"the container engine ignores limits that have to hold ({', '.join(error.names)}): the kernel of this host"
            " lacks what they need, or the engine is not one that sandboxes can rely on"
        )
    return BackendError(f"the sandbox could not be started: {_cause(error)}")


def _cause(error: Exception) -> str:
    if isinstance(error, DiskFull):
        return _DISK
    if isinstance(error, Conflict):
        return "its name is taken in the container engine; the next try has another one"
    if isinstance(error, Planted):
        return "its directories are not as the service has made them; " + _UNKNOWN
    if isinstance(error, OSError):
        return shortage.told(error.errno) or _UNKNOWN
    return shortage.told_by(str(error)) or _UNKNOWN
