"""What ``requirements.txt`` among the files of an execution asks for: how it is installed, and what is said where it is not.

Plain values and functions: no waiting, no I/O.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
from sandboxd.protocol import Outcome, OutputLimits, UserError

from interpreter.executions.model import ExecRequest

NAME = "requirements.txt"
INSTALL_S = 300.0
"""For pip, which the timeout of the execution does not count."""
TEXT_BYTES = 64 * 1024

_PIP = "exec python -P -m pip install --quiet --no-input --disable-pip-version-check {options}--requirement {name} 1>&2"


def wanted(request: ExecRequest) -> bool:
    """Whether something is to be installed first."""
    return NAME in request.files


def installing(request: ExecRequest, *, network: bool) -> ExecRequest:
    """Return what is to be run in the place of ``request`` before it. Without a network it succeeds if all is there already."""
    code = _PIP.format(options="" if network else "--no-index ", name=NAME)
    return replace(
        request,
        language="bash",
        code=code,
        timeout_s=INSTALL_S,
        stateful=False,
        cwd=None,
        stdin=None,
        allow_input=False,
        files={},
    )


def limits(request: ExecRequest, output: OutputLimits) -> OutputLimits:
    """Return how much pip may say. It is told as it comes where the execution is."""
    return OutputLimits(text=min(TEXT_BYTES, output.text), results=0, spill=output.spill if request.stream else 0)


def failed(pip: Outcome, *, network: bool) -> Outcome | None:
    """Return how an execution ends whose requirements pip could not install; None if it did."""
    if pip.status == "ok":
        return None
    why = "see stderr" if pip.status == "error" else f"pip ended with {pip.status}"
    if not network and pip.status == "error":
        why = "sandboxes have no network (SANDBOX_NETWORK=none), and not all of it is there already"
    sentence = f"{NAME} could not be installed ({why}); the code has not run."
    return msgspec.structs.replace(
        pip,
        stderr=pip.stderr + sentence + "\n",
        stderr_bytes=pip.stderr_bytes + len(sentence) + 1,
        error=UserError("RequirementsNotInstalled", sentence, []),
        files=[],
        files_incomplete=None,
    )


def said(pip: Outcome, outcome: Outcome, limit: int) -> Outcome:
    """Return ``outcome`` with what pip has said before its own stderr, as far as ``limit`` bytes have room."""
    if not pip.stderr:
        return outcome
    room = max(0, limit - len(outcome.stderr.encode()))
    text = pip.stderr.encode()[:room].decode(errors="ignore")
    return msgspec.structs.replace(
        outcome,
        stderr=text + outcome.stderr,
        stderr_bytes=outcome.stderr_bytes + pip.stderr_bytes,
        truncated=outcome.truncated or pip.truncated or len(text) < len(pip.stderr),
    )
