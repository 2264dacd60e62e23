"""``/v1/executions``: looking at executions, and ending them."""

from __future__ import annotations

from interpreter import wire
from interpreter.executions.execution import Execution
from interpreter.http.base import ApiHandler


class ExecutionHandler(ApiHandler):
    """One execution."""

    async def on_get(self, execution_id: str, query: wire.ExecutionQuery, _body: wire.NoBody) -> None:
        """Say where it is, with its answer once it has finished; the error instead if it never ran."""
        await self.api.service.recall(execution_id, query.scope)
        await self._say(self.api.service.execution(execution_id, query.scope))

    async def on_delete(self, execution_id: str, query: wire.ExecutionQuery, _body: wire.NoBody) -> None:
        """End it; say where it is now, without waiting for the end."""
        await self.api.service.recall(execution_id, query.scope)
        execution = self.api.service.execution(execution_id, query.scope)
        self.api.service.cancel(execution)
        if execution.error is None:
            await self._say(execution)
        else:
            self.send({"phase": execution.phase, "execution_id": execution.id})

    async def _say(self, execution: Execution) -> None:
        if execution.phase == "finished":
            await self.send_answer(await execution.finished(), before=b'"phase":"finished",')
        else:
            asked = execution.asked
            waits = {} if asked is None else {"input_request": {"prompt": asked.prompt, "password": asked.password}}
            self.send({"phase": execution.phase, "execution_id": execution.id, **waits})


class InputHandler(ApiHandler):
    """What an execution reads."""

    async def on_post(self, execution_id: str, query: wire.ExecutionQuery, body: wire.InputBody) -> None:
        """Answer its ``input_request``."""
        await self.api.service.recall(execution_id, query.scope)
        execution = self.api.service.execution(execution_id, query.scope)
        await self.api.service.input(execution, body.text)
        self.send({"execution_id": execution.id, "phase": execution.phase})
