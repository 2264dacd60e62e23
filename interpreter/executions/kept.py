"""Executions and kernels as records, and back."""

from __future__ import annotations

import dataclasses
from typing import cast

import msgspec
from sandboxd.protocol import Reason

from interpreter.backends.base import SandboxId
from interpreter.executions.execution import Execution
from interpreter.executions.model import Answer, ErrorInfo, ExecRequest
from interpreter.keys import KernelKey, Key
from interpreter.records import ExecutionRecord, KernelRecord
from interpreter.sandboxes.kernels import Kernel

WHOLE_BYTES = 256 * 1024
"""Requests up to this size can be run by the next service; of longer ones only the answer is kept."""
SHORT = 500
"""Characters of an error's text in an answer whose file could not be written."""


def waiting(execution: Execution) -> ExecutionRecord:
    """Return the record of one that waits; of a long request only what is told of it."""
    request = execution.request
    whole = len(request.code) + len(request.stdin or "") + sum(map(len, request.files.values())) <= WHOLE_BYTES
    return ExecutionRecord(
        scope=execution.scope,
        session=execution.session,
        id=execution.id,
        named=execution.named,
        digest=execution.digest if execution.named else b"",
        request=msgspec.msgpack.encode(request if whole else _stripped(request)),
        whole=whole,
    )


def sent(execution: Execution, sandbox: SandboxId, link: str, at: float) -> ExecutionRecord:
    """Return the record of one that a sandbox is told of, under the id ``link``."""
    return dataclasses.replace(waiting(execution), sandbox=sandbox, link=link, sent_at=at)


def answered(execution: Execution, text: bytes | None, *, file: str | None = None, size: int = 0) -> ExecutionRecord:
    """Return the record of a finished execution. What could run it again, its variables among it, is not kept any more."""
    return ExecutionRecord(
        scope=execution.scope,
        session=execution.session,
        id=execution.id,
        named=execution.named,
        digest=execution.digest if execution.named else b"",
        request=msgspec.msgpack.encode(_stripped(execution.request)),
        whole=False,
        answer=text,
        file=file,
        size=len(text) if text is not None else size,
    )


def lean(answer: Answer) -> Answer:
    """Return ``answer`` without what may be long. How much text there was is still said."""
    error = answer.error and ErrorInfo(answer.error.name[:SHORT], answer.error.value[:SHORT], [])
    incomplete = "not_known" if answer.files else answer.files_incomplete
    return msgspec.structs.replace(
        answer,
        stdout="",
        stderr="",
        results=[],
        error=error,
        truncated=True,
        files=[],
        files_incomplete=incomplete,
    )


def _stripped(request: ExecRequest) -> ExecRequest:
    return dataclasses.replace(request, code="", stdin=None, env={}, files={})


def restored(record: ExecutionRecord, answer: Answer | None) -> Execution:
    """Return the execution of a record."""
    request = msgspec.msgpack.decode(record.request, type=ExecRequest)
    execution = Execution(record.id, request, named=record.named, digest=record.digest)
    execution.noted = True
    if answer is not None:
        execution.running()
        execution.end(answer, record.finished_at or 0.0)
    return execution


def kernel_record(kernel: Kernel) -> KernelRecord:
    """Return the record of a kernel."""
    return KernelRecord(
        *kernel.key,
        *kernel.name,
        generation=kernel.generation,
        home=kernel.home,
        alive=kernel.alive,
        restarted=kernel.restarted,
        loss=kernel.loss,
        executions=kernel.executions,
        started_at=kernel.started_at,
        used_at=kernel.used_at,
    )


def kernel(record: KernelRecord) -> Kernel:
    """Return the kernel of a record."""
    return Kernel(
        key=Key(record.scope, record.session),
        name=KernelKey(record.language, record.context),
        generation=record.generation,
        alive=record.alive,
        home=None if record.home is None else SandboxId(record.home),
        restarted=record.restarted,
        loss=cast("Reason | None", record.loss),
        executions=record.executions,
        started_at=record.started_at,
        used_at=record.used_at,
    )
