"""Fixtures, all applied by themselves: ``nothing_left`` fails a test after which this process has more descriptors or
children than before, or the host has empty cgroups or mounts of ours that were not there; ``no_task_left`` (tests with a loop)
fails one that leaves tasks running. Both run after the fixtures of the test have been torn down.

Tests that share a service share its client, which keeps connections between tests: there descriptors are not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import glob
import hashlib
import inspect
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from xdist.remote import Producer

from interpreter import logs
from tests import attempts, mounting, scheduling

SETTLE_S = 20.0
"""What is going away by itself (a child being reaped, a cgroup being removed by another run) has this long."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    scheduling.shorten_directory(config)


def pytest_sessionstart(session: pytest.Session) -> None:
    """What a failed test shows of the log has the fields of each line: the reason often stands there alone."""
    session.config.pluginmanager.get_plugin("logging-plugin").report_handler.setFormatter(logs.Formatter())


def pytest_itemcollected(item: pytest.Item) -> None:
    on_docker = isinstance(item, pytest.Function) and "docker" in item.name
    if on_docker and item.get_closest_marker("long_on_docker") is not None:
        item.add_marker(pytest.mark.soak)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """First set up means last torn down, so a test's own fixtures have ended when leftovers are counted."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(inspect.unwrap(item.obj)):
            item.fixturenames.insert(0, "no_task_left")
    scheduling.take_long_first(config, items)
    scheduling.tell_what_runs_alone(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    return attempts.run(item, nextitem)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    attempts.summarize(terminalreporter)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> scheduling.Scheduling:
    return scheduling.Scheduling(config, log)


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    deadline = time.monotonic() + SETTLE_S
    while left := asyncio.all_tasks() - before - {asyncio.current_task()}:
        if time.monotonic() > deadline:
            pytest.fail(f"tasks left: {sorted(task.get_name() for task in left)}")
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    temporary = tmp_path_factory.getbasetemp()
    counts: dict[str, Callable[[], set[str]]] = {
        "children": _children,
        "cgroups": lambda: _cgroups(temporary),
        "mounts": lambda: set(mounting.below(temporary)),
        "descriptors": _descriptors,
    }
    before = {name: count() for name, count in counts.items()}
    yield
    if _shares_a_client(request):
        del counts["descriptors"]
    for name, count in counts.items():
        _wait_until_gone(name, count, before[name])


def _shares_a_client(request: pytest.FixtureRequest) -> bool:
    """Whether the test was given a running service. One of its own is closed by the fixture that made it."""
    given = request.node.funcargs.values()
    return "cellbox" in request.fixturenames or any(type(each).__name__ == "Cellbox" for each in given)


def _wait_until_gone(name: str, count: Callable[[], set[str]], before: set[str]) -> None:
    deadline = time.monotonic() + SETTLE_S
    while left := count() - before:
        if time.monotonic() > deadline:
            pytest.fail(f"{name} left: {sorted(left)}")
        gc.collect()
        time.sleep(0.01)


def _descriptors() -> set[str]:
    """Number and target of each open descriptor; files that pytest itself opens between tests are not among them."""
    found = set()
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
        except FileNotFoundError:
            continue  # the one that scandir itself used
        if target != f"/proc/{os.getpid()}/fd":
            found.add(f"{entry.name} -> {target}")
    return found


def _children() -> set[str]:
    """Pid and name of each child, zombies included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()  # the usual case, told by one system call; the search below takes 15 ms
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            pid, _, rest = (entry / "stat").read_text().partition(" (")
        except OSError:
            continue
        name, _, fields = rest.rpartition(") ")
        if int(fields.split()[1]) == os.getpid():
            found.add(f"{pid} {name}")
    return found


@functools.cache
def _cgroup_folders() -> list[str]:
    """Where groups of ours can be: every group there was at the start, and the one that a backend may make for itself."""
    found = ["/sys/fs/cgroup/cellbox"]
    for folder, below, _ in os.walk("/sys/fs/cgroup"):
        below[:] = [name for name in below if not name.startswith("cellbox-")]
        found.append(folder)
    return found


def _cgroups(temporary: Path) -> set[str]:
    """Empty cgroups whose name has the hash of a data root under ``temporary``: other services may run beside the tests."""
    groups = []
    for folder in _cgroup_folders():
        with contextlib.suppress(OSError):  # somebody removes groups while we look
            groups += [f"{folder}/{name}" for name in os.listdir(folder) if name.startswith("cellbox-")]
    if not groups:
        return set()
    roots = [path for depth in ("*", "*/*") for path in glob.glob(str(temporary / depth))]
    hashes = {hashlib.sha256(os.fsencode(root)).hexdigest()[:8] for root in roots}
    found = set()
    for group in groups:
        with contextlib.suppress(OSError):
            if Path(group).name.split("-")[1] in hashes and not Path(group, "cgroup.procs").read_text():
                found.add(group)
    return found
