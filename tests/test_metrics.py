"""What is counted, and that nothing of a tenant becomes a label."""

from __future__ import annotations

import time

from interpreter.metrics import Metrics, Now
from tests.scraped import samples as scraped


def made(**changes) -> Metrics:
    found = {
        "executions": {"queued": 1, "running": 2},
        "sandboxes": {"idle": 3},
        "kernels": {"python": 1, "r-of-a-tenant": 2, "other": 1},
        "spares_taken": 4,
        "spares_missed": 5,
        "spares_wanted": 6,
        "link_bytes": 7,
        "records_failed": 8,
        "records_failing": True,
        "removals_hanging": 9,
    } | changes
    return Metrics(version="1.2.3", backend="fake", now=lambda: Now(**found))


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    return scraped(metrics.text())


def test_what_there_is_now_is_asked_for_when_it_is_read() -> None:
    found = samples(made())
    assert found["cellbox_executions_active", "running"] == 2
    assert found["cellbox_sandboxes", "idle"] == 3
    assert [found["cellbox_kernels", name] for name in ("python", "node", "bash", "other")] == [1, 0, 0, 3]
    assert [found[f"cellbox_spares_{what}",] for what in ("taken_total", "missed_total", "wanted")] == [4, 5, 6]
    assert found["cellbox_link_received_bytes_total",] == 7
    assert (found["cellbox_records_write_failures_total",], found["cellbox_records_failing",]) == (8, 1)
    assert found["cellbox_removals_hanging",] == 9


def test_a_language_of_a_tenant_is_other() -> None:
    metrics = made()
    for number in range(1000):
        metrics.ended(f"mine{number}", stateful=True, status="ok", queued_s=0.0, run_s=0.5)
    assert "mine" not in metrics.text().decode()
    found = samples(metrics)
    assert found["cellbox_executions_total", "other", "true", "ok"] == 1000
    assert found["cellbox_execution_run_seconds_bucket", "other", "1.0"] == 1000


def test_what_never_ran_has_no_times() -> None:
    metrics = made()
    metrics.ended("python", stateful=False, status="refused")
    found = samples(metrics)
    assert found["cellbox_executions_total", "python", "false", "refused"] == 1
    assert found["cellbox_execution_queue_seconds_count",] == 0
    assert not [name for name in found if name[0].startswith("cellbox_execution_run_seconds")]


def test_two_services_in_one_process_count_apart() -> None:
    one, other = made(), made()
    one.refused("unauthorized")
    assert "unauthorized" not in other.text().decode()


def test_every_name_is_ours_or_the_process_and_none_is_the_time_of_its_making() -> None:
    metrics = made()
    metrics.sandbox_failed("sandbox_start_failed")
    metrics.sandbox_ended("idle")
    names = {name for name, *_ in samples(metrics)}
    assert {name.split("_")[0] for name in names} == {"cellbox", "process"}
    assert not [name for name in names if name.endswith("_created")]
    assert {"cellbox_build_info", "process_start_time_seconds", "process_resident_memory_bytes"} <= names


def test_an_execution_costs_microseconds() -> None:
    metrics = made()

    def microseconds() -> float:
        began = time.perf_counter()
        for _ in range(1000):
            metrics.ended("python", stateful=True, status="ok", queued_s=0.001, run_s=0.02)
        return (time.perf_counter() - began) * 1000

    assert min(microseconds() for _ in range(20)) < 20
