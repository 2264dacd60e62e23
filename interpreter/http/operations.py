"""What a route is, as it is served and as it is documented, and what all handlers share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from interpreter import wire
from interpreter.errors import ServiceError
from interpreter.http.body import BodyBudget
from interpreter.http.guard import Guard
from interpreter.http.server import ConnectionLimits
from interpreter.service import Interpreter

if TYPE_CHECKING:
    from interpreter.http.base import ApiHandler

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class ExecLimits:
    """What a call may ask for. Seconds, and bytes: of code as UTF-8, and of one file."""

    default_timeout_s: float = 60.0
    max_timeout_s: float = 600.0
    max_code_bytes: int = 2**20
    max_upload_bytes: int = 2 * 2**30
    max_download_bytes: int = 8 * 2**30


@dataclass(slots=True)
class Api:
    """What the handlers share. draining: new calls are answered 503."""

    service: Interpreter
    guard: Guard
    version: str
    limits: ExecLimits = field(default_factory=ExecLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    bodies: BodyBudget = field(default_factory=BodyBudget)
    draining: bool = False
    sockets: set[Any] = field(default_factory=set)
    """The WebSockets that are open, see websocket.py."""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while events or a long answer of any execution are read and handed to a connection, see events.py and base.py."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route, as it is served and as it is documented.

    answer: model of the 200 body; None for a page of ours. media: type of a 200 body that is no JSON. upgrade: to a WebSocket.
    takes: type of a body that its handler takes as it comes, up to ``max_upload_bytes``; None: it is JSON.
    errors: besides those that every call may get. example: values for the path, the query and the body, run by the tests.
    public: needs no key. while_draining: also served by a stopping service.
    """

    summary: str
    answer: type[BaseModel] | None = None
    media: str | None = None
    takes: str | None = None
    upgrade: bool = False
    query: type[BaseModel] = wire.NoQuery
    body: type[BaseModel] = wire.NoBody
    errors: tuple[type[ServiceError], ...] = ()
    example: Mapping[str, Any] = field(default_factory=dict)
    public: bool = False
    while_draining: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One path: ``{name}`` stands for a part of it, ``{path}`` for all that is left."""

    path: str
    handler: type[ApiHandler]
    operations: Mapping[str, Operation]
    hint: str = ""
    """For who asks it for another method, and most likely means another path."""

    @property
    def names(self) -> list[str]:
        """The placeholders, in order."""
        return _PLACEHOLDER.findall(self.path)

    @property
    def pattern(self) -> str:
        """The regular expression of the path."""
        path = re.escape(self.path).replace(r"\{", "{").replace(r"\}", "}")
        return _PLACEHOLDER.sub(lambda name: "(.*)" if name[1] == "path" else "([^/]+)", path)

    @property
    def allow(self) -> str:
        """The value of ``Allow``."""
        return ", ".join([*self.operations, *(["HEAD"] if "GET" in self.operations else [])])
