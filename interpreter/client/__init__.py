"""The Python client: ``Client`` for programs that wait, ``AsyncClient`` for asyncio.

``sync.py`` and ``aio.py`` hold connections and take steps; what is sent, what an answer means and when a call is made again
stands once, without I/O, in ``calls.py`` and ``steps.py``. Needs httpx and pydantic, and nothing of the service.
"""

from interpreter.client.aio import AsyncClient, AsyncFiles, AsyncSession, AsyncStream
from interpreter.client.errors import (
    CellboxError,
    Conflict,
    ExecutionFailed,
    Forbidden,
    InvalidRequest,
    NotFound,
    NotReachable,
    Refused,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from interpreter.client.results import Event, Execution, FileEntry, Result, StoredFile
from interpreter.client.sync import Client, Files, Session, Stream

__all__ = [
    "AsyncClient",
    "AsyncFiles",
    "AsyncSession",
    "AsyncStream",
    "CellboxError",
    "Client",
    "Conflict",
    "Event",
    "Execution",
    "ExecutionFailed",
    "FileEntry",
    "Files",
    "Forbidden",
    "InvalidRequest",
    "NotFound",
    "NotReachable",
    "Refused",
    "Result",
    "Session",
    "StoredFile",
    "Stream",
    "TimedOut",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
]
