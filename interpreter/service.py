"""The service as one object: what HTTP, and everything after it, may ask.

Promises: ``submit`` decides at once; work goes on in tasks of the service; every wait has a limit; after ``aclose`` no
sandbox, task or descriptor of it is left.
Leaves to http: requests, statuses, authentication; to backends: how a sandbox is confined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interpreter.backends.base import Backend, Limits
from interpreter.executions.execution import Execution
from interpreter.executions.model import Answer, ExecRequest


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """What the service needs to know. Seconds and bytes as named.

    uid, gid: of every scope, or None for one per scope from ``uid_base`` up. environment: of the tenant's programs, beyond
    what the backend gives them.
    """

    data_root: Path
    limits: Limits = field(default_factory=Limits)
    environment: Mapping[str, str] = field(default_factory=dict)
    uid: int | None = None
    gid: int | None = None
    uid_base: int = 200_000
    idle_ttl_s: float = 600.0
    max_sessions: int = 100
    max_concurrent: int = 200
    max_queue: int = 32
    max_kernels: int = 8
    grace_s: float = 2.0
    output_bytes: int = 1024 * 1024
    result_bytes: int = 16 * 1024 * 1024
    spill_bytes: int = 64 * 1024 * 1024
    result_ttl_s: float = 600.0
    drain_timeout_s: float = 30.0
    start_timeout_s: float = 30.0


class Interpreter:
    """The service. Made, started, drained and closed by its owner, in one event loop."""

    def __init__(self, config: ServiceConfig, backend: Backend) -> None:
        raise NotImplementedError

    async def start(self) -> list[str]:
        """Lock the data root, check the backend, remove leftovers, begin reaping; return warnings for the operator.

        Raises DataRootLocked (interpreter.scopes.root) naming the other service, BackendUnavailable (backends.base).
        """
        raise NotImplementedError

    async def drain(self) -> None:
        """Take no new work (``shutting_down``) and wait for what runs, at most ``drain_timeout_s``."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """End everything: executions, sandboxes, tasks, the lock. May be called twice."""
        raise NotImplementedError

    def submit(self, request: ExecRequest) -> Execution:
        """Begin to run ``request`` and return its execution, or the first one with the same ``execution_id``.

        Raises ServiceError at once where it cannot be taken; nothing waits here.
        """
        raise NotImplementedError

    async def settle(self, execution: Execution) -> Answer:
        """Return the answer of ``execution``. Raises ServiceError if it never ran. Cancelling this wait cancels nothing."""
        raise NotImplementedError

    def execution(self, execution_id: str, scope: str | None) -> Execution:
        """Return a kept execution. scope: needed for ids that callers made. Raises ExecutionNotFound."""
        raise NotImplementedError

    def cancel(self, execution: Execution) -> None:
        """End it: a queued one never runs, a running one is interrupted or killed. Nothing if it has finished."""
        raise NotImplementedError

    def scopes(self) -> list[dict[str, Any]]:
        """Return the entries of ``GET /v1/scopes``: scopes that have data or a sandbox."""
        raise NotImplementedError

    def sessions(self, scope: str) -> list[dict[str, Any]]:
        """Return the entries of ``GET /v1/scopes/{scope}/sessions``: the sandboxes of ``scope``."""
        raise NotImplementedError

    def kernels(self, scope: str, session: str | None) -> list[dict[str, Any]]:
        """Return the entries of ``GET /v1/kernels/{scope}``: the live kernels."""
        raise NotImplementedError

    async def interrupt_kernel(self, scope: str, session: str | None, language: str, context: str) -> dict[str, Any]:
        """Interrupt what runs in a kernel: ``{"interrupted": bool}``. Raises KernelNotFound."""
        raise NotImplementedError

    async def restart_kernel(self, scope: str, session: str | None, language: str, context: str) -> dict[str, Any]:
        """Restart a kernel, ending what runs and waits in it as ``cancelled``: ``{"restarted": true}``. Raises KernelNotFound."""
        raise NotImplementedError

    async def delete_kernel(self, scope: str, session: str | None, language: str, context: str) -> dict[str, Any]:
        """End a kernel and what runs and waits in it (``cancelled``): ``{"removed": 0 or 1, "purged": False}``."""
        raise NotImplementedError

    async def remove_session(
        self, scope: str, session: str, *, purge: bool = False, force: bool = False
    ) -> dict[str, Any]:
        """Remove the session's sandbox, and its directory if ``purge``: ``{"removed": n, "purged": bool}``.

        Raises SessionBusy while something is queued or running there, unless ``force``.
        """
        raise NotImplementedError

    async def remove_sandbox(self, scope: str, *, force: bool = False) -> dict[str, Any]:
        """Remove the session-less sandbox; otherwise as ``remove_session``."""
        raise NotImplementedError

    async def remove_scope(self, scope: str, *, purge: bool = False, force: bool = False) -> dict[str, Any]:
        """Remove all sandboxes of ``scope``, and all its data if ``purge``; otherwise as ``remove_session``."""
        raise NotImplementedError

    async def health(self) -> tuple[bool, dict[str, Any]]:
        """Return whether sandboxes can be served, and ``{"status": "ok"|"unavailable", "runtime": …}``, with ``message`` if not."""
        raise NotImplementedError
