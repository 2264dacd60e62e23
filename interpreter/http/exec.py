"""``POST /v1/exec``."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace

from interpreter import languages, wire
from interpreter.errors import CodeTooLarge, InvalidRequest, UnknownLanguage, UnsupportedField
from interpreter.executions.model import ExecRequest
from interpreter.files.names import parts_of_text
from interpreter.http.base import ApiHandler
from interpreter.http.events import last_event_id, send_events
from interpreter.http.operations import ExecLimits
from interpreter.http.requests import quoted


class ExecHandler(ApiHandler):
    """Runs code."""

    async def on_post(self, _query: wire.NoQuery, body: wire.ExecBody) -> None:
        """Run it and answer with how it ended, or with its events, or at once if it is to be detached.

        A client that leaves cancels it, unless it named its execution or follows its events.
        """
        stream = wants_events(self.request.headers.get("Accept", ""))
        after = last_event_id(self) if stream else -1
        request = exec_request(body, self.api.limits)
        service = self.api.service
        await service.recall(request.execution_id, request.scope)
        if body.detach or stream:
            execution = service.submit(replace(request, stream=True))
            if body.detach:
                self.send({"execution_id": execution.id, "phase": execution.phase}, 202)
            else:
                await send_events(self, execution, after=after)
            return
        execution = service.submit(request)
        # A named one runs on, and what it was given counts as long as it is held: until this handler has its answer.
        self.when_client_leaves((lambda: None) if execution.named else (lambda: service.cancel(execution)))
        await self.send_answer(await service.settle(execution))


def wants_events(accept: str) -> bool:
    """Whether ``accept`` asks for an event stream and would not take JSON."""
    kinds = {kind.partition(";")[0].strip().lower() for kind in accept.split(",")}
    return "text/event-stream" in kinds and not kinds & {"application/json", "application/*", "*/*"}


def exec_request(body: wire.ExecBody, limits: ExecLimits) -> ExecRequest:
    """Return what ``body`` asks for, within ``limits``. Raises ServiceError for what cannot be asked."""
    stateful = bool(body.stateful)
    if body.allow_input and not stateful:
        raise UnsupportedField("allow_input needs a stateful execution; stdin can be given to any.")
    if body.context not in (None, "default") and not stateful:
        raise UnsupportedField(
            "context needs a stateful execution: it names a kernel, and without one nothing is remembered."
        )
    language = languages.canonical(body.language)
    if language is None or (language not in languages.LANGUAGES and not stateful):
        raise UnknownLanguage(f"There is no language of this name; there are {languages.listed(languages.LANGUAGES)}.")
    # Counted in UTF-8 only where it can matter: code is at most four times as long in bytes.
    if len(body.code) > limits.max_code_bytes or (
        len(body.code) * 4 > limits.max_code_bytes and len(body.code.encode()) > limits.max_code_bytes
    ):
        raise CodeTooLarge(f"code is over {limits.max_code_bytes} bytes.")
    stdin = body.stdin
    if stateful and language == "python":
        if stdin:
            raise UnsupportedField("stdin is not read by a stateful python kernel; leave it out.")
        stdin = None
    queue_timeout = wire.DEFAULT_QUEUE_TIMEOUT_S if body.queue_timeout is None else body.queue_timeout
    return ExecRequest(
        scope=body.scope,
        session=body.session,
        language=language,
        code=body.code,
        timeout_s=min(body.timeout or limits.default_timeout_s, limits.max_timeout_s),
        queue_timeout_s=min(queue_timeout, wire.MAX_QUEUE_TIMEOUT_S),
        env=body.env or {},
        stateful=stateful,
        context=body.context or "default",
        cwd=body.cwd,
        stdin=stdin,
        execution_id=body.execution_id,
        allow_input=bool(body.allow_input),
        files=contents(body.files or {}),
    )


def contents(files: Mapping[str, str | wire.Base64Content]) -> dict[str, bytes]:
    """Return the bytes of each file. Raises InvalidRequest, which names the one that cannot be written."""
    if len(files) > wire.MAX_FILES:
        raise InvalidRequest(f"files has {len(files)} entries; the limit is {wire.MAX_FILES}.")
    found = {}
    for path, content in files.items():
        try:
            parts_of_text(path)
            found[path] = content.encode() if isinstance(content, str) else b64decode(content.base64, validate=True)
        except binascii.Error:
            raise InvalidRequest(f"files[{quoted(path)}]: This is no base64.") from None
        except InvalidRequest as error:
            raise InvalidRequest(f"files[{quoted(path)}]: {error.message}") from None
    return found
