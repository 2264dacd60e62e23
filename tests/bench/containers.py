"""Rows of containers and of spares: beside what the same engine does with the same image.

Without an engine that has the image, the rows of containers are left out, and that is said.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import engines
from tests.bench import measure
from tests.bench.jupyter import bare_loop, stock_ipykernel
from tests.bench.rows import PYTHON, Caller, fresh, pss_mb
from tests.e2e.conftest import Cellbox, running

IDLE = 100
_EACH_KB = 90_000
"""For an idle container, all that the engine has beside it included; of the memory that is free, half is used."""
_INSIDE = "/opt/cellbox/venv/bin/python"


def container_stateless(_service: Cellbox, _caller: Caller) -> list[measure.Row]:
    """A stateless run in a container, over HTTP, beside `docker exec -i` of an interpreter in one that runs."""
    if not _engine("container-stateless"):
        return []
    scope, code = fresh("runs"), "print(6 * 7)"
    with _containers() as (_, caller), _plain_container() as name:

        def execute() -> bytes:
            command = ["docker", "exec", "-i", name, _INSIDE, "-"]
            return subprocess.run(command, input=code.encode(), stdout=subprocess.PIPE, check=True).stdout

        assert execute().decode() == caller.exec(code, scope=scope)["stdout"]
        return [
            measure.against(
                "stateless Python in a container over HTTP",
                lambda: caller.exec(code, scope=scope),
                "`docker exec -i … python -`",
                execute,
                n=60,
                warm_up=5,
                limit=0.2,
            )
        ]


def container_stateful(_service: Cellbox, _caller: Caller) -> list[measure.Row]:
    """A cell in a container, over HTTP, beside the same cell in a bare loop of jupyter_client on stock ipykernel."""
    if not _engine("container-stateful"):
        return []
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


def container_start(_service: Cellbox, _caller: Caller) -> list[measure.Row]:
    """From nothing to the value of a cell in a new container, and in a spare one, beside `docker run` of `python -c 1`."""
    if not _engine("container-start"):
        return []
    rows = []
    with _containers() as (service, caller):
        name = "first stateful result in a new container"
        rows.append(
            _first(name, service, caller, "`docker run --rm … python -c 1`", _docker_run, spare=False, limit=2.2)
        )
    with _containers(pool="1") as (service, caller):
        name = "first stateful result with a spare container"
        rows.append(
            _first(name, service, caller, "`docker run --rm … python -c 1`", _docker_run, spare=True, limit=0.25)
        )
    return rows


def spare(_service: Cellbox, caller: Caller) -> list[measure.Row]:
    """The first result of a session that gets a spare beside one whose sandbox is started for it (bubblewrap)."""

    def started() -> None:
        scope = fresh("new")
        caller.cell("40 + 2", scope=scope, session="one")
        caller.call("DELETE", f"/v1/scopes/{scope}?purge=true")

    with _serving(runtime_backend="bubblewrap", pool="1") as (service, other):
        name = "first stateful result with a spare sandbox"
        return [_first(name, service, other, "without one", started, spare=True, limit=0.2)]


def container_memory(_service: Cellbox, _caller: Caller) -> list[measure.Row]:
    """Proportional set size of every process of a container with one idle Python kernel; of 100, or as many as fit."""
    if not _engine("container-memory"):
        return []
    number = min(IDLE, _available_kb() // 2 // _EACH_KB)
    with _containers(max_sessions=f"{IDLE}") as (service, caller):
        scopes = [fresh("idle") for _ in range(number)]
        for scope in scopes:
            caller.cell("1", scope=scope)
        sizes = [sum(map(pss_mb, service.processes(scope))) for scope in scopes]
    return [measure.of(f"memory of an idle container with one kernel, of {number} (mean)", sizes, limit=60, unit="MB")]


def _first(
    name: str,
    service: Cellbox,
    caller: Caller,
    compared_with: str,
    other: measure.Step,
    *,
    spare: bool,
    limit: float,
) -> measure.Row:
    """The first result of a new session each time. spare: one is there by then; the session before is removed in any case."""
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

    row = measure.against(name, ours, compared_with, other, n=12, warm_up=2, limit=limit, prepare=prepare)
    assert (service.log.count("spare given away") >= 14) == spare, "measured what it says"
    return row


def _docker_run() -> None:
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", _INSIDE, engines.IMAGE, "-c", "1"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def _engine(row: str) -> bool:
    if not engines.has_image():
        print(f"{row}: left out, since no engine that has {engines.IMAGE} answers", file=sys.stderr, flush=True)
    return engines.has_image()


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
    with _serving(runtime_backend="docker", **settings) as both:
        yield both


@contextmanager
def _serving(**settings: str) -> Iterator[tuple[Cellbox, Caller]]:
    """A service of its own, and somebody who calls it."""
    with tempfile.TemporaryDirectory(prefix="cellbox-bench-") as directory:
        os.chmod(directory, 0o755)
        with running(Path(directory), **settings) as service:
            caller = Caller(service)
            try:
                yield service, caller
            finally:
                caller.close()


def _available_kb() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


ROWS: dict[str, Callable[[Cellbox, Caller], list[measure.Row]]] = {
    "spare": spare,
    "container-stateless": container_stateless,
    "container-stateful": container_stateful,
    "container-start": container_start,
    "container-memory": container_memory,
}
