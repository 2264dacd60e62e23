"""What a call of the client can raise: one tree, from whoever failed.

    CellboxError
    ├── NotReachable        nobody answered; what was asked may have been done
    │   └── TimedOut        not in time; ``layer`` says what was waited for
    ├── Refused             the service answered, and has not done it
    │   ├── InvalidRequest  it cannot be asked like this (400 and the like)
    │   ├── Unauthorized    no key, or a wrong one (401)
    │   ├── Forbidden       a path, Host or Origin that is not allowed (403)
    │   ├── NotFound        there is no such thing (404)
    │   ├── Conflict        something is busy, taken or changed (409, 412)
    │   ├── TooLarge        over a limit, a quota or the disk (413, 507)
    │   └── Unavailable     not now (429, 503), or a fault of the service (500)
    └── ExecutionFailed     the code did not end well; raised by ``Result.check`` alone

``code`` is the service's, from the fixed set of interpreter/API.md, or ``not_reachable``, ``timed_out``, ``execution_failed``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from interpreter.client.results import Result

Layer = Literal["connect", "send", "answer"]


class CellboxError(Exception):
    """A call failed. Text: one sentence.

    retryable: whether the same call may succeed later. retry_after_s: when, if the service said so. status: of HTTP, if it
    answered. request_id: under which the service's log has it.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        retryable: bool = False,
        retry_after_s: float | None = None,
        status: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.status = status
        self.request_id = request_id


class NotReachable(CellboxError):
    """No answer came; what was asked may have been done."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="not_reachable", retryable=True)


class TimedOut(NotReachable):
    """No answer came in time. layer: ``connect``, ``send`` or ``answer``. Code that runs too long is no error but a result."""

    def __init__(self, message: str, layer: Layer) -> None:
        super().__init__(message)
        self.code = "timed_out"
        self.layer = layer


class Refused(CellboxError):
    """The service answered, and has not done what was asked."""


class InvalidRequest(Refused):
    """It cannot be asked like this; the message names the field."""


class Unauthorized(Refused):
    """No key, or a wrong one."""


class Forbidden(Refused):
    """A path, Host or Origin that is not allowed."""


class NotFound(Refused):
    """There is no such execution, kernel, file or route."""


class Conflict(Refused):
    """Something is busy there, a name is taken, or a file is not as it was."""


class TooLarge(Refused):
    """Over a limit, a quota or what the disk takes."""


class Unavailable(Refused):
    """Not now: busy, stopping, or a fault of the service."""


class ExecutionFailed(CellboxError):
    """The code did not end well. result: all that is known of it."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message, code="execution_failed")
        self.result = result


_KINDS: dict[int, type[Refused]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    413: TooLarge,
    429: Unavailable,
    507: TooLarge,
}


def kind(status: int) -> type[Refused]:
    """Return the class of an answer with this status."""
    return _KINDS.get(status, Unavailable if status >= 500 else InvalidRequest)
