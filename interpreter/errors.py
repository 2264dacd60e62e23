"""Every error a caller of the service can get, one class per code of the wire contract.

Promises: a code is documented by the docstring of its class, and ``CODES`` holds all of them.
Leaves to http/errors.py: which HTTP status a code is answered with. Inner layers raise these where the caller has to be
told something; kinds of their own never leave them.
"""

from __future__ import annotations

from typing import ClassVar


class ServiceError(Exception):
    """A call could not be served. Text: one sentence for the caller, without host paths. ``__cause__``: for us.

    code: for programs and metrics, from a fixed set. retryable: whether the same call may succeed later.
    retry_after_s: seconds after which trying again makes sense; None where waiting does not help or nobody knows.
    """

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


# --- the request is wrong -------------------------------------------------------------------------------------------


class InvalidRequest(ServiceError):
    """A field is missing or malformed; the message names it."""

    code = "invalid_request"


class UnknownField(ServiceError):
    """The body or query has a field that the contract does not know; the message names it."""

    code = "unknown_field"


class UnknownLanguage(ServiceError):
    """No such language here; the message names those there are."""

    code = "unknown_language"


class UnsupportedField(ServiceError):
    """This kernel cannot honour a field of the request; the message names it."""

    code = "unsupported_field"


class NoInputRequested(ServiceError):
    """The execution waits for no input."""

    code = "no_input_requested"


class CwdNotFound(ServiceError):
    """The working directory asked for does not exist inside the sandbox; nothing has run."""

    code = "cwd_not_found"


class BodyTooLarge(ServiceError):
    """The body is over its limit."""

    code = "body_too_large"


class CodeTooLarge(ServiceError):
    """``code`` is over its limit."""

    code = "code_too_large"


# --- the caller may not ---------------------------------------------------------------------------------------------


class Unauthorized(ServiceError):
    """No key, or a wrong one."""

    code = "unauthorized"


class ForbiddenHost(ServiceError):
    """The Host header names something this service is not."""

    code = "forbidden_host"


class ForbiddenOrigin(ServiceError):
    """The Origin header names a page that is not allowed to call."""

    code = "forbidden_origin"


# --- there is no such thing -----------------------------------------------------------------------------------------


class ExecutionNotFound(ServiceError):
    """No execution of this id in this scope: never seen, or its result is no longer kept."""

    code = "execution_not_found"


class KernelNotFound(ServiceError):
    """No such kernel is running."""

    code = "kernel_not_found"


class RouteNotFound(ServiceError):
    """No route has this path."""

    code = "route_not_found"


class MethodNotAllowed(ServiceError):
    """The route exists and does not know this method."""

    code = "method_not_allowed"


# --- not now --------------------------------------------------------------------------------------------------------


class SessionBusy(ServiceError):
    """Something is queued or running there; ``force`` ends it."""

    code = "session_busy"
    retryable = True


class ExecutionIdTaken(ServiceError):
    """Another request of this scope has this ``execution_id``."""

    code = "execution_id_taken"


class QueueFull(ServiceError):
    """As many executions as may wait for this kernel are waiting."""

    code = "queue_full"
    retryable = True


class QueueTimeout(ServiceError):
    """The kernel was busy for all of ``queue_timeout``; nothing has run."""

    code = "queue_timeout"
    retryable = True


class TooManySessions(ServiceError):
    """As many sandboxes as may exist exist; one that goes makes room."""

    code = "too_many_sessions"
    retryable = True


class TooManyExecutions(ServiceError):
    """As many executions as the service takes are queued or running."""

    code = "too_many_executions"
    retryable = True


class TooManyKernels(ServiceError):
    """As many kernels as a sandbox may have are running in this one."""

    code = "too_many_kernels"
    retryable = True


class RuntimeUnavailable(ServiceError):
    """This host cannot run sandboxes now; the message says what to do."""

    code = "runtime_unavailable"
    retryable = True


class SandboxStartFailed(ServiceError):
    """A sandbox did not start, or did not say hello in time."""

    code = "sandbox_start_failed"
    retryable = True


class KernelStartFailed(ServiceError):
    """The kernel did not start; nothing has run."""

    code = "kernel_start_failed"
    retryable = True


class RunStartFailed(ServiceError):
    """The process of a stateless run could not be made, for want of processes or memory in the sandbox."""

    code = "run_start_failed"
    retryable = True


class StorageFailed(ServiceError):
    """The service's disk takes nothing, so that what was asked could not be noted; nothing has run."""

    code = "storage_failed"
    retryable = True


class QuotaExceeded(ServiceError):
    """The quota of the scope is full, in bytes or in files; nothing was stored, and what was there is."""

    code = "quota_exceeded"


class SingleTenant(ServiceError):
    """This service can keep only one scope apart from the host, and another one has claimed it."""

    code = "single_tenant"


class ShuttingDown(ServiceError):
    """The service is stopping and takes no new work."""

    code = "shutting_down"
    retryable = True


class InternalError(ServiceError):
    """A fault of ours; the log has it under the request's id."""

    code = "internal_error"


def _tree(of: type[ServiceError]) -> list[type[ServiceError]]:
    return [kind for child in of.__subclasses__() for kind in (child, *_tree(child))]


CODES: dict[str, type[ServiceError]] = {kind.code: kind for kind in _tree(ServiceError)}
"""Every code and its class."""
