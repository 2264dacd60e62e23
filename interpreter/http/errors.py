"""The status of each error code, and the errors that only HTTP has.

The only place where codes meet statuses.
"""

from __future__ import annotations

from interpreter import errors, shortage
from interpreter.errors import ServiceError
from interpreter.files import errors as files


class RequestTimeout(ServiceError):
    """The head or body of the request took too long to arrive."""

    code = "request_timeout"
    retryable = True


class HeadTooLarge(ServiceError):
    """The request line and headers are over their limit, or are too many."""

    code = "head_too_large"


class UnsupportedEncoding(ServiceError):
    """The body has a Content-Encoding; bodies are taken as they are."""

    code = "unsupported_encoding"


class TooManyConnections(ServiceError):
    """As many connections as one address may have are open."""

    code = "too_many_connections"
    retryable = True


class TooManyBodies(ServiceError):
    """As many large bodies as there is room for are being served."""

    code = "too_many_bodies"
    retryable = True


class RangeNotSatisfiable(ServiceError):
    """The range begins behind the end of what there is."""

    code = "range_not_satisfiable"

    def __init__(self, message: str, *, size: int | None = None) -> None:
        super().__init__(message)
        self.size = size
        """How many bytes there are, for ``Content-Range``."""


STATUS: dict[type[ServiceError], int] = {
    errors.InvalidRequest: 400,
    errors.UnknownField: 400,
    errors.UnknownLanguage: 400,
    errors.UnsupportedField: 400,
    errors.CwdNotFound: 400,
    errors.Unauthorized: 401,
    errors.ForbiddenHost: 403,
    errors.ForbiddenOrigin: 403,
    files.OutsideDirectory: 403,
    files.NotARegularFile: 403,
    files.NotPermitted: 403,
    errors.ExecutionNotFound: 404,
    errors.KernelNotFound: 404,
    files.NoSuchFile: 404,
    errors.RouteNotFound: 404,
    errors.MethodNotAllowed: 405,
    RequestTimeout: 408,
    errors.SessionBusy: 409,
    errors.ExecutionIdTaken: 409,
    errors.NoInputRequested: 409,
    files.FileExists: 409,
    files.FileBusy: 409,
    files.PreconditionFailed: 412,
    errors.BodyTooLarge: 413,
    errors.CodeTooLarge: 413,
    UnsupportedEncoding: 415,
    RangeNotSatisfiable: 416,
    errors.QueueFull: 429,
    errors.QueueTimeout: 429,
    errors.TooManySessions: 429,
    errors.TooManyExecutions: 429,
    errors.TooManyKernels: 429,
    TooManyBodies: 429,
    files.TooManyArchives: 429,
    files.TooManyUploads: 429,
    TooManyConnections: 429,
    HeadTooLarge: 431,
    errors.InternalError: 500,
    errors.RuntimeUnavailable: 503,
    errors.SandboxStartFailed: 503,
    errors.KernelStartFailed: 503,
    errors.RunStartFailed: 503,
    errors.SingleTenant: 503,
    errors.ShuttingDown: 503,
    errors.StorageFailed: 507,
    errors.QuotaExceeded: 507,
}
"""Every error that a caller can get."""

DEFAULT_RETRY_AFTER_S = 1.0
"""Where waiting helps (409, 429, 503 and 507) and nobody knows how long."""


def exhausted(error: BaseException | None) -> ServiceError | None:
    """Return what a caller is told where the host had too little of something; None for any other error."""
    cause = shortage.told(error.errno) if isinstance(error, OSError) else None
    return None if cause is None else errors.RuntimeUnavailable(f"{cause[0].upper()}{cause[1:]}.", retry_after_s=5.0)


def status_of(error: ServiceError) -> int:
    """Return the HTTP status of ``error``; 500 for a kind that is not listed."""
    return STATUS.get(type(error), 500)


def retry_after_s(error: ServiceError) -> float | None:
    """Return the seconds for ``Retry-After``, or None where it does not belong."""
    if error.retry_after_s is not None:
        return error.retry_after_s
    return DEFAULT_RETRY_AFTER_S if error.retryable and status_of(error) in (409, 429, 503, 507) else None
