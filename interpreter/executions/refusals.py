"""What callers are told of executions that were refused, or that go on without this service. Plain functions."""

from __future__ import annotations

from sandboxd.protocol import Refused

from interpreter import languages
from interpreter.errors import (
    CwdNotFound,
    KernelStartFailed,
    RunStartFailed,
    ServiceError,
    ShuttingDown,
    UnknownLanguage,
    UnsupportedField,
)
from interpreter.executions.execution import Execution
from interpreter.executions.model import ExecRequest
from interpreter.sandboxes.live import Live


def refused(request: ExecRequest, told: Refused, live: Live) -> ServiceError:
    """Return what its caller gets where a sandbox has refused an execution. What the sandbox says is checked and cut."""
    text = "".join(c if c.isprintable() else " " for c in told.message[:300])
    match told.code:
        case "cwd_not_found":
            return CwdNotFound("cwd names no directory inside the sandbox; nothing has run.")
        case "unsupported_field":
            return UnsupportedField(text)
        case "kernel_start_failed":
            return KernelStartFailed(text, retry_after_s=1.0)
        case "run_start_failed":
            return RunStartFailed(text, retry_after_s=1.0)
        case "unknown_language":
            hello = live.hello
            there = [] if hello is None else hello.kernels if request.stateful else hello.stateless
            # What the sandbox says goes through the same rule as what callers say.
            found, how = languages.listed(there), "stateful " if request.stateful else ""
            return UnknownLanguage(f"There is no {how}language {request.language!r} here; there are {found}.")


def goes_on(execution: Execution) -> ServiceError:
    """Return what a waiting caller gets where the service stops and its execution does not."""
    if execution.phase == "running":
        return ShuttingDown(
            f"The service is stopping; execution {execution.id} goes on and can be fetched from the next one.",
            retry_after_s=5.0,
        )
    return ShuttingDown("The service is stopping; nothing has run yet.", retry_after_s=5.0)
