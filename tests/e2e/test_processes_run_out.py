"""A limit of processes on the whole service: who asks is told so, what runs goes on, and it recovers by itself."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from interpreter.backends.bubblewrap import cgroups
from tests import waiting
from tests.attempts import in_time
from tests.e2e.conftest import Cellbox, bubblewrap_is_there, running


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup for a service and all that it starts."""
    if not bubblewrap_is_there():
        pytest.skip("needs root and bubblewrap on this host")
    found = cgroups.detect()
    if found is None or found.version != 1:
        pytest.skip("enters a group of cgroups v1")
    made = found.bases["pids"] / f"cellbox-test-{os.getpid()}"
    made.mkdir()
    yield made

    def removed() -> bool:
        with contextlib.suppress(OSError):  # busy: the last of it is just ending
            made.rmdir()
        return not made.exists()

    waiting.until(removed)


def begin(service: Cellbox, scope: str, session: str) -> httpx.Response:
    """The first call of a session."""
    return service.post(scope=scope, session=session, language="bash", code="echo 1")


@pytest.mark.alone
def test_processes_run_out_and_come_back(tmp_path: Path, group: Path, scope: str) -> None:
    within = ["bash", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "-"]
    with running(tmp_path, within=within) as service:
        service.cell("x = 1", scope=scope, session="here")
        now = int((group / "pids.current").read_text())
        said = []
        for more in range(12):
            (group / "pids.max").write_text(str(now + more))
            with ThreadPoolExecutor(6) as callers:
                replies = [callers.submit(begin, service, scope, f"new{more}-{number}") for number in range(6)]
            said += [reply.result().json() for reply in replies if reply.result().status_code != 200]
            assert {reply.result().status_code for reply in replies} <= {200, 503}
            assert service.cell("x += 1; x", scope=scope, session="here")["status"] == "ok"
        starts = [body for body in said if body["code"] == "sandbox_start_failed"]
        assert len(starts) > 10
        assert [body for body in starts if "no further process is allowed" not in body["message"]] == []
        assert all(body["retryable"] for body in said)
        # Ending needs no further process, nor thread.
        began = time.monotonic()
        assert service.client.delete(f"/v1/scopes/{scope}").status_code == 200
        in_time(time.monotonic() - began, 5)
        service.wait_for(lambda: not service.processes(scope), within_s=20)
        (group / "pids.max").write_text("max")
        assert service.exec("echo 1", language="bash", scope=scope, session="new0-0")["stdout"] == "1\n"
