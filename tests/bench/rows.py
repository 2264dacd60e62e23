"""The rows, by name. Each takes a running service and returns what it measured."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.bench import measure
from tests.bench.jupyter import bare_loop, stock_ipykernel
from tests.e2e.conftest import KEY, Cellbox, running

PYTHON = Path(__file__).parents[2] / ".venv-sandbox" / "bin" / "python"
_numbers = itertools.count()


class Caller:
    """The cheapest client there is: one kept connection and the standard library."""

    def __init__(self, service: Cellbox) -> None:
        address = urlsplit(service.url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        self._connection.connect()

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body)
        self._connection.request(method, path, content, {"X-API-Key": KEY})
        response = self._connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        if response.status != 200:
            raise AssertionError(f"{response.status}: {answer}")
        return answer

    def exec(self, code: str, **fields: Any) -> dict[str, Any]:
        answer = self.call("POST", "/v1/exec", {"language": "python", "code": code, **fields})
        if answer["status"] != "ok":
            raise AssertionError(f"{answer}")
        return answer

    def cell(self, code: str, **fields: Any) -> dict[str, Any]:
        return self.exec(code, stateful=True, **fields)

    def close(self) -> None:
        self._connection.close()


@contextmanager
def serving(**settings: str) -> Iterator[tuple[Cellbox, Caller]]:
    """A service of its own, and somebody who calls it."""
    with tempfile.TemporaryDirectory(prefix="cellbox-bench-") as directory:
        os.chmod(directory, 0o755)
        with running(Path(directory), **settings) as service:
            caller = Caller(service)
            try:
                yield service, caller
            finally:
                caller.close()


def fresh(prefix: str) -> str:
    return f"{prefix}{next(_numbers)}"


def stateful_exec(service: Cellbox, caller: Caller) -> measure.Rows:
    """A cell over HTTP beside the same cell in a bare loop of jupyter_client on stock ipykernel."""
    scope = fresh("cells")
    with (
        tempfile.TemporaryDirectory(prefix="b") as directory,
        bare_loop(stock_ipykernel(PYTHON), Path(directory)) as bare,
    ):
        assert bare.cell("40 + 2") == {"text/plain": "42"}
        assert caller.cell("40 + 2", scope=scope)["results"][0]["data"] == {"text/plain": "42"}
        return [
            measure.against(
                "stateful exec over HTTP",
                lambda: caller.cell("40 + 2", scope=scope),
                "jupyter_client on stock ipykernel",
                lambda: bare.cell("40 + 2"),
                n=300,
                warm_up=30,
                limit=1.0,
            )
        ]


def stateless_python(service: Cellbox, caller: Caller) -> measure.Rows:
    """A stateless run over HTTP beside a new interpreter that reads the same code from its standard input."""
    scope, code = fresh("runs"), "print(6 * 7)"

    def spawn() -> bytes:
        return subprocess.run([PYTHON, "-"], input=code.encode(), stdout=subprocess.PIPE, check=True).stdout

    assert spawn().decode() == caller.exec(code, scope=scope)["stdout"]
    return [
        measure.against(
            "stateless Python over HTTP",
            lambda: caller.exec(code, scope=scope),
            "spawning `python -`",
            spawn,
            n=100,
            warm_up=10,
            limit=0.5,
        )
    ]


def kernels(service: Cellbox, caller: Caller) -> measure.Rows:
    """A further kernel beside a running one, and a kernel restarted; both up to the value of its first cell."""
    scope = fresh("kernels")
    caller.cell("1", scope=scope)

    def further() -> float:
        context = fresh("c")
        elapsed = measure.elapsed_ms(lambda: caller.cell("40 + 2", scope=scope, context=context))
        caller.call("DELETE", f"/v1/kernels/{scope}/python?context={context}")
        return elapsed

    def restarted() -> float:
        start = time.perf_counter()
        caller.call("POST", f"/v1/kernels/{scope}/python/restart")
        caller.cell("40 + 2", scope=scope)
        return (time.perf_counter() - start) * 1000

    return [
        measure.alone("first result of a further context", further, n=20, warm_up=2, limit=150),
        measure.alone("restart of a kernel, to its first result", restarted, n=20, warm_up=2, limit=150),
    ]


def sandbox_trees(service: int) -> list[list[int]]:
    """For each child of the service that supervises a sandbox: itself and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))

    def tree(pid: int) -> list[int]:
        return [pid, *(each for child in children.get(pid, ()) for each in tree(child))]

    return [tree(child) for child in children.get(service, ()) if children.get(child)]


def pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


ROWS: dict[str, Callable[[Cellbox, Caller], measure.Rows]] = {
    "stateful-rest": stateful_exec,
    "stateless-spawn": stateless_python,
    "kernels": kernels,
}
