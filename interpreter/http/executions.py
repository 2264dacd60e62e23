"""``/v1/executions``: looking at executions, and ending them."""

from __future__ import annotations

import json

from interpreter import wire
from interpreter.executions.execution import Execution
from interpreter.http.base import ApiHandler


class ExecutionHandler(ApiHandler):
    """One execution."""

    async def on_get(self, execution_id: str, query: wire.ExecutionQuery, _body: wire.NoBody) -> None:
        """Say where it is, with its answer once it has finished; the error instead if it never ran."""
        await self.api.service.recall(execution_id, query.scope)
        self.send(await _view(self.api.service.execution(execution_id, query.scope)))

    async def on_delete(self, execution_id: str, query: wire.ExecutionQuery, _body: wire.NoBody) -> None:
        """End it; say where it is now, without waiting for the end."""
        await self.api.service.recall(execution_id, query.scope)
        execution = self.api.service.execution(execution_id, query.scope)
        self.api.service.cancel(execution)
        if execution.error is None:
            self.send(await _view(execution))
        else:
            self.send({"phase": execution.phase, "execution_id": execution.id})


class InputHandler(ApiHandler):
    """What an execution reads."""

    async def on_post(self, execution_id: str, query: wire.ExecutionQuery, body: wire.InputBody) -> None:
        """Answer its ``input_request``."""
        await self.api.service.recall(execution_id, query.scope)
        execution = self.api.service.execution(execution_id, query.scope)
        await self.api.service.input(execution, body.text)
        self.send({"execution_id": execution.id, "phase": execution.phase})


async def _view(execution: Execution) -> bytes:
    if execution.phase != "finished":
        return json.dumps({"phase": execution.phase, "execution_id": execution.id}).encode()
    answer = await execution.finished()
    return b'{"phase":"finished",' + answer.to_json()[1:]
