"""``/metrics`` of a whole service, read by the parser of Prometheus' own library."""

from __future__ import annotations

from tests.e2e.conftest import Cellbox
from tests.scraped import samples as scraped


def samples(cellbox: Cellbox) -> dict[tuple[str, ...], float]:
    return scraped(cellbox.client.get("/metrics").raise_for_status().text)


def test_what_was_run_is_counted_and_nothing_of_the_tenant_is_told(cellbox: Cellbox, scope: str) -> None:
    before = samples(cellbox)
    cellbox.cell("x = 1", scope=scope, session=f"{scope}-chat", context=f"{scope}-context")
    cellbox.exec("exit 3", language="bash", scope=scope, session=f"{scope}-chat")
    cellbox.cell("import time; time.sleep(9)", scope=scope, session=f"{scope}-chat", timeout=0.2)
    assert cellbox.post(scope=scope, language="cobol", code="1").status_code == 400
    found = samples(cellbox)

    def grown(*name: str) -> float:
        return found[name] - before.get(name, 0.0)

    assert grown("cellbox_executions_total", "python", "true", "ok") == 1
    assert grown("cellbox_executions_total", "bash", "false", "error") == 1
    assert grown("cellbox_executions_total", "python", "true", "timeout") == 1
    assert grown("cellbox_execution_run_seconds_count", "python") == 2
    # The service's clock of a run begins when it hears that the run has begun, and bounds what the sandbox says.
    assert 0.1 <= grown("cellbox_execution_run_seconds_sum", "python") < 9
    assert grown("cellbox_execution_queue_seconds_count") == 3
    assert grown("cellbox_sandbox_start_seconds_count", "session") == 1
    assert grown("cellbox_sandboxes", "idle") == 1
    assert grown("cellbox_kernels", "python") >= 1
    assert grown("cellbox_link_received_bytes_total") > 100
    assert grown("cellbox_requests_refused_total", "unknown_language") == 1
    assert (found["cellbox_executions_active", "running"], found["cellbox_records_failing",]) == (0, 0)
    assert found["process_resident_memory_bytes",] > 2**20
    assert scope not in cellbox.client.get("/metrics").text
    cellbox.client.delete(f"/v1/scopes/{scope}", params={"force": "true"}).raise_for_status()
    after = samples(cellbox)
    assert after["cellbox_sandboxes", "idle"] == before["cellbox_sandboxes", "idle"]
    assert (
        after["cellbox_sandbox_ends_total", "deleted"] == before.get(("cellbox_sandbox_ends_total", "deleted"), 0) + 1
    )
    assert after["cellbox_link_received_bytes_total",] >= found["cellbox_link_received_bytes_total",]
