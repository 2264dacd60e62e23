"""The container engine: the few calls that sandboxes need, off the loop, and what it tells by itself.

Promises: no call runs on the event loop's thread; every call has a limit of time; calls that end containers take no thread of
others, since they hang with a container that the engine cannot end; whatever the library raises becomes one of the errors
below. There is no call that runs something in a container, attaches to one or copies from or into it.
Leaves to backend.py: what the answers mean, and the sentences for callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import requests
import urllib3
from docker import APIClient
from docker.errors import APIError, DockerException

CALL_S = 30.0
"""For the answer to one call; creating and starting take long on an engine with much to do."""

END_S = 12.0
"""For the answer to a call that ends a container: an engine takes 10 s of its own before it does without its runtime."""

LOOK_S = 10.0
"""For the answer to a call about one container, which may be stuck in the engine while all others are fine."""

DEFAULT_HOST = "unix:///var/run/docker.sock"
_ASK_S = 3.0
_CALLS_AT_ONCE = 32
_ENDS_AT_ONCE = 16
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

_T = TypeVar("_T")
Answer = dict[str, Any]


class EngineError(Exception):
    """The engine refused. The text is its own: for our log only."""


class EngineGone(EngineError):
    """The engine does not answer."""


class Silent(EngineGone):
    """The engine took the call and did not answer in time."""


class NotThere(EngineError):
    """It knows no such container, image or network."""


class Conflict(EngineError):
    """The name is taken, or somebody else does the same just now."""


class DiskFull(EngineError):
    """The disk of the engine is full."""


def host() -> str:
    """Return the address of the engine, from the environment as all its clients do."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_HOST


def has_image(name: str, address: str | None = None) -> bool:
    """Whether an engine answers and has the image. Blocking, a few seconds at most."""
    client = Client(address or host(), within_s=_ASK_S)
    try:
        return bool(client.image(name))
    except EngineError:
        return False
    finally:
        client.close()


class Client:
    """The calls themselves, blocking. May be used by many threads."""

    def __init__(self, address: str, *, within_s: float = CALL_S) -> None:
        self._address = address
        self._within_s = within_s
        self._mutex = threading.Lock()
        self._api: APIClient | None = None

    def close(self) -> None:
        """Close idle connections. May be called twice."""
        if self._api is not None:
            self._api.close()

    def about(self) -> tuple[Answer, Answer]:
        """Return the engine's version and its information."""
        with _translated():
            return self._connected().version(), self._connected().info()

    def ping(self) -> None:
        """Return if the engine answers."""
        with _translated():
            self._connected().ping()

    def image(self, name: str) -> Answer:
        """Return what there is to know of an image. Raises NotThere."""
        with _translated():
            return dict(self._connected().inspect_image(name))

    def network(self, name: str) -> Answer:
        """Return what there is to know of a network. Raises NotThere."""
        with _translated():
            return dict(self._connected().inspect_network(name))

    def create(self, name: str, config: Answer) -> str:
        """Create a container and return its id. Raises Conflict: the name is taken; NotThere: no such image."""
        with _translated():
            return str(self._connected().create_container_from_config(config, name)["Id"])

    def start(self, container: str) -> None:
        """Start it."""
        with _translated():
            self._connected().start(container)

    def inspect(self, container: str) -> Answer:
        """Return all there is to know of a container, by id or name."""
        with _translated():
            return dict(self._connected().inspect_container(container))

    def wait(self, container: str, *, within_s: float) -> int:
        """Return the exit status of a container, once it has ended."""
        with _translated():
            return int(self._connected().wait(container, timeout=within_s)["StatusCode"])

    def remove(self, container: str) -> None:
        """End and remove a container. Nothing happens if there is none. Raises Conflict: it is being removed."""
        with contextlib.suppress(NotThere), _translated():
            self._connected().remove_container(container, v=True, force=True)

    def containers(self, label: str) -> list[Answer]:
        """Return all containers with a label, whether they run or not."""
        with _translated():
            return list(self._connected().containers(all=True, filters={"label": label}))

    def stats(self, container: str) -> Answer:
        """Return the counters of a container, of now."""
        with _translated():
            return dict(self._connected().stats(container, stream=False, one_shot=True))

    def events(self, label: str, what: list[str]) -> Any:
        """Return a stream of events of containers with a label: to be iterated, and closed from any thread."""
        with _translated():
            filters = {"type": ["container"], "label": [label], "event": what}
            return self._connected().events(filters=filters, decode=True)

    def _connected(self) -> APIClient:
        knock(self._address)
        with self._mutex:
            if self._api is None:
                # A connection that finds no room in the pool would be left open.
                self._api = APIClient(
                    self._address, version="auto", timeout=self._within_s, max_pool_size=_CALLS_AT_ONCE
                )
            return self._api


class Engine:
    """The calls, to be awaited."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address or host()
        self.client = Client(self.address)
        self.ends = Client(self.address, within_s=END_S)
        """For the calls about one container's end."""
        self.looks = Client(self.address, within_s=LOOK_S)
        """For what is asked about many containers, one by one."""
        self._pool = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="engine")
        self._ending = ThreadPoolExecutor(_ENDS_AT_ONCE, thread_name_prefix="engine ends")

    async def call(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns, which makes blocking calls. A cancelled wait leaves the work to its end."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def end(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns, which calls ``ends``. It may wait long, and no other call waits with it."""
        return await asyncio.get_running_loop().run_in_executor(self._ending, work)

    def follow(self, label: str, what: list[str], on: Listening) -> Follower:
        """Tell ``on`` of the events ``what`` of containers with ``label``, until the follower is closed."""
        return Follower(self.client, label, what, on)

    async def aclose(self) -> None:
        """Close; calls that go on are waited for, but not those that end containers. May be called twice."""
        self._ending.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)
        self.client.close()
        self.ends.close()
        self.looks.close()


class Listening:
    """Who is told of events, in the event loop."""

    def connected(self) -> None:
        """Hear that events come from now on: what was before is to be asked for."""

    def happened(self, event: Answer) -> None:
        """Hear of an event."""


class Follower:
    """A thread that reads events, over as many connections as it takes."""

    def __init__(self, client: Client, label: str, what: list[str], on: Listening) -> None:
        self._client = client
        self._label = label
        self._what = what
        self._on = on
        self._loop = asyncio.get_running_loop()
        self._closed = threading.Event()
        self._mutex = threading.Lock()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name="engine events", daemon=True)
        self._thread.start()

    async def aclose(self) -> None:
        """End the thread. May be called twice."""
        self._closed.set()
        with self._mutex:
            if self._stream is not None:
                with contextlib.suppress(OSError, AttributeError, DockerException):
                    self._stream.close()
        await asyncio.to_thread(self._thread.join, CALL_S)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closed.is_set():
            with contextlib.suppress(EngineError):
                for event in self._events():
                    pause_s = _FIRST_PAUSE_S
                    self._tell(self._on.happened, event)
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _events(self) -> Iterator[Answer]:
        stream = self._client.events(self._label, self._what)
        with self._mutex:
            self._stream = stream
            if self._closed.is_set():
                stream.close()
                return
        self._tell(self._on.connected)
        with _translated():
            yield from stream

    def _tell(self, hear: Callable[..., None], *what: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(hear, *what)


def knock(address: str) -> None:
    """Return if somebody listens there. The library leaves a socket open where nobody does."""
    scheme, _, path = address.partition("://")
    if scheme == "unix":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(CALL_S)
            probe.connect(path)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except APIError as error:
        text = str(error.explanation or error)[:2000]
        if "no space left on device" in text or "disk quota exceeded" in text:
            raise DiskFull(text) from error
        kinds: dict[int | None, type[EngineError]] = {404: NotThere, 409: Conflict, 503: EngineGone}
        raise kinds.get(error.status_code, EngineError)(text) from error
    except requests.Timeout as error:
        raise Silent(type(error).__name__) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, DockerException, OSError) as error:
        raise EngineGone(type(error).__name__) from error
    except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(f"the engine's answer makes no sense: {type(error).__name__}") from error
