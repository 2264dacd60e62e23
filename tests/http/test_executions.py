"""Looking at executions and ending them, where their answers are long."""

import pytest

from interpreter.http.routes import ROUTES
from tests.http.scripted import Served
from tests.http.test_routes import target

OF_ONE = [
    pytest.param(method, target(route), id=f"{method} {route.path}")
    for route in ROUTES
    for method in route.operations
    if "execution_id" in route.names
]


@pytest.mark.parametrize(("method", "path"), OF_ONE)
async def test_an_answer_that_lies_in_a_file_is_read_in_a_thread_before_anything_is_done(
    served: Served, monkeypatch, method, path
):
    async def recall(execution_id, scope):
        served.service.calls.append(("recall", execution_id, scope))

    monkeypatch.setattr(served.service, "recall", recall)
    reply = await served.call(method, f"{path}?scope=u1", {"text": "x"} if method == "POST" else None)
    assert reply.status == 404
    assert served.service.calls == [("recall", "execution_id", "u1"), ("execution", "execution_id", "u1")]
