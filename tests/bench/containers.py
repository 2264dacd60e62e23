"""Rows of containers and of spares: beside what the same engine does with the same image.

Without an engine that has the image, the rows of containers are left out.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests import engines
from tests.bench import measure
from tests.bench.jupyter import bare_loop, stock_ipykernel
from tests.bench.rows import PYTHON, Caller, fresh, pss_mb, serving
from tests.e2e.conftest import Cellbox

IDLE = 100
_EACH_KB = 90_000
"""For an idle container, all that the engine has beside it included; of the memory that is free, half is used."""
_INSIDE = "/opt/cellbox/venv/bin/python"


def container_stateless(_service: Cellbox, _caller: Caller) -> measure.Rows:
    """A stateless run in a container, over HTTP, beside `docker exec -i` of an interpreter in one that runs."""
    if left_out := _left_out("container-stateless"):
        return left_out
    with _containers() as (_, caller), _plain_container() as name:
        return [
            _beside_exec("stateless Python in a container over HTTP", name, caller, "print(6 * 7)", n=60, limit=0.1)
        ]


def _beside_exec(what: str, container: str, caller: Caller, code: str, *, n: int, limit: float) -> measure.Row:
    scope = fresh("runs")

    def execute() -> bytes:
        command = ["docker", "exec", "-i", container, _INSIDE, "-"]
        return subprocess.run(command, input=code.encode(), stdout=subprocess.PIPE, check=True).stdout

    assert execute().decode() == caller.exec(code, scope=scope)["stdout"]
    ours = partial(caller.exec, code, scope=scope)
    return measure.against(what, ours, "`docker exec -i … python -`", execute, n=n, warm_up=5, limit=limit)


def container_pandas(_service: Cellbox, _caller: Caller) -> measure.Rows:
    """A stateless run that imports pandas, in a container, over HTTP, beside `docker exec -i` of the same."""
    if left_out := _left_out("stateless-pandas"):
        return left_out
    code = "import pandas as pd\nprint(pd.Series([1, 2, 3]).sum())"
    with _containers() as (_, caller), _plain_container() as name:
        return [_beside_exec("stateless run that imports pandas", name, caller, code, n=20, limit=0.1)]


def container_stateful(_service: Cellbox, _caller: Caller) -> measure.Rows:
    """A cell in a container, over HTTP, beside the same cell in a bare loop of jupyter_client on stock ipykernel."""
    if left_out := _left_out("container-stateful"):
        return left_out
    scope = fresh("cells")
    with (
        _containers() as (_, caller),
        tempfile.TemporaryDirectory(prefix="b") as directory,
        bare_loop(stock_ipykernel(PYTHON), Path(directory)) as bare,
    ):
        return [
            measure.against(
                "stateful exec in a container over HTTP",
                lambda: caller.cell("40 + 2", scope=scope),
                "jupyter_client on stock ipykernel",
                lambda: bare.cell("40 + 2"),
                n=200,
                warm_up=20,
                limit=1.5,
            )
        ]


def cold_embedded(_service: Cellbox, _caller: Caller) -> measure.Rows:
    """From nothing to the value of a cell, with bubblewrap, beside `docker run` of `python -c 1`."""
    name = "first stateful result in a new sandbox"
    with serving(runtime_backend="bubblewrap") as (service, caller):
        return [_first(name, service, caller, spare=False, limit=1.0, alone=700)]


def cold_container(_service: Cellbox, _caller: Caller) -> measure.Rows:
    """From nothing to the value of a cell in a new container, beside `docker run` of `python -c 1`."""
    if left_out := _left_out("cold-docker"):
        return left_out
    with _containers() as (service, caller):
        return [_first("first stateful result in a new container", service, caller, spare=False, limit=1.8)]


def cold_spare(_service: Cellbox, _caller: Caller) -> measure.Rows:
    """The same where a spare was made ahead, in a sandbox of bubblewrap and in a container."""
    rows: list[measure.Row | measure.LeftOut] = []
    with serving(runtime_backend="bubblewrap", pool="1") as (service, caller):
        rows.append(
            _first("first stateful result with a spare sandbox", service, caller, spare=True, limit=0.2, alone=100)
        )
    if left_out := _left_out("cold-spare in a container"):
        return [*rows, *left_out]
    with _containers(pool="1") as (service, caller):
        rows.append(_first("first stateful result with a spare container", service, caller, spare=True, limit=0.2))
    return rows


def container_memory(_service: Cellbox, _caller: Caller) -> measure.Rows:
    """Proportional set size of every process of a container with one idle Python kernel; of 100, or as many as fit."""
    if left_out := _left_out("container-memory"):
        return left_out
    number = min(IDLE, _available_kb() // 2 // _EACH_KB)
    with _containers(max_sessions=f"{IDLE}") as (service, caller):
        scopes = [fresh("idle") for _ in range(number)]
        for scope in scopes:
            caller.cell("1", scope=scope)
        sizes = [sum(map(pss_mb, service.processes(scope))) for scope in scopes]
    return [measure.of(f"memory of an idle container with one kernel, of {number} (mean)", sizes, limit=60, unit="MB")]


def _first(
    name: str, service: Cellbox, caller: Caller, *, spare: bool, limit: float, alone: float | None = None
) -> measure.Row:
    """The first result of a new session each time, beside a container of the engine if one is there.

    spare: one is there by then; the session before is removed in any case. alone: the limit where there is no engine.
    """
    scope, sessions = fresh("new"), iter(range(1000))
    session = ["before"]

    def there() -> bool:
        return service.log.count("spare started") > service.log.count("spare given away")

    if spare:
        service.wait_for(there, within_s=30)
    caller.cell("1", scope=scope, session="before")

    def prepare() -> None:
        caller.call("DELETE", f"/v1/scopes/{scope}/sessions/{session[0]}?purge=true")
        session[0] = f"s{next(sessions)}"
        if spare:
            service.wait_for(there, within_s=30)

    def ours() -> object:
        return caller.cell("40 + 2", scope=scope, session=session[0])

    compared, other = "`docker run --rm … python -c 1`", _docker_run
    if alone is not None and not engines.has_image():

        def step() -> float:
            prepare()
            return measure.elapsed_ms(ours)

        return measure.alone(name, step, n=12, warm_up=2, limit=alone)
    row = measure.against(name, ours, compared, other, n=12, warm_up=2, limit=limit, prepare=prepare)
    assert (service.log.count("spare given away") >= 14) == spare, "measured what it says"
    return row


def _docker_run() -> None:
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", _INSIDE, engines.IMAGE, "-c", "1"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def _left_out(row: str) -> list[measure.LeftOut]:
    return [] if engines.has_image() else [measure.LeftOut(row, f"no engine that has {engines.IMAGE} answers")]


@contextmanager
def _plain_container() -> Iterator[str]:
    """A container of the image that only sleeps."""
    command = ["docker", "run", "-d", "--rm", "--network", "none", "--entrypoint", "/usr/bin/sleep", engines.IMAGE]
    name = subprocess.run([*command, "infinity"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    try:
        yield name
    finally:
        subprocess.run(["docker", "rm", "-f", name], stdout=subprocess.DEVNULL, check=True)


@contextmanager
def _containers(**settings: str) -> Iterator[tuple[Cellbox, Caller]]:
    with serving(runtime_backend="docker", **settings) as both:
        yield both


def _available_kb() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


ROWS: dict[str, Callable[[Cellbox, Caller], measure.Rows]] = {
    "stateless": container_stateless,
    "stateless-pandas": container_pandas,
    "stateful-docker": container_stateful,
    "cold-embedded": cold_embedded,
    "cold-docker": cold_container,
    "cold-spare": cold_spare,
    "memory-docker": container_memory,
}
