"""What the service counts and measures, in the text format of Prometheus.

Promises: no label has a value that a tenant or a caller chose, so the number of series is fixed by the code; events cost some
microseconds each, and what can be looked up is looked up only when somebody asks. Everything is counted from the start of this
service, and nothing is kept beyond it.
Leaves to service.py: what there is now (``Now``); to http/metrics.py: who may ask.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from egress.protocol import Reason
from interpreter.languages import LANGUAGES

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
OTHER = "other"
"""The language of every kernel that is not one of ours: what it is called is up to the tenant."""
StartKind = Literal["session", "spare", "adopted"]
_RUN_S = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0)
_QUEUE_S = (0.01, 0.1, 1.0, 10.0, 60.0)
_START_S = (0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0)
DENIED: tuple[str, ...] = get_args(Reason)
"""Why a way out was refused; any other is counted as ``other``."""


@dataclass(frozen=True, slots=True)
class Now:
    """What there is now, and what others count. executions, sandboxes: by state. kernels: by language, any name.

    link_bytes: read from sandboxes. records_failed: writes of the state file. records_failing: whether something waits for the
    disk. removals_hanging: sandboxes that the engine does not remove.
    """

    executions: Mapping[str, int]
    sandboxes: Mapping[str, int]
    kernels: Mapping[str, int]
    spares_taken: int
    spares_missed: int
    spares_wanted: int
    link_bytes: int
    records_failed: int
    records_failing: bool
    removals_hanging: int


class Metrics:
    """All metrics of one service, in a registry of their own. now: asked whenever they are read."""

    def __init__(self, *, version: str, backend: str, now: Callable[[], Now]) -> None:
        self._registry = registry = CollectorRegistry()
        self._executions = Counter(
            "cellbox_executions",
            "Executions that have ended; refused: taken and never run.",
            ("language", "stateful", "status"),
            registry=registry,
        )
        self._run = Histogram(
            "cellbox_execution_run_seconds",
            "How long the code of an execution ran.",
            ("language",),
            buckets=_RUN_S,
            registry=registry,
        )
        self._queue = Histogram(
            "cellbox_execution_queue_seconds",
            "How long an execution that ran waited for its kernel's turn.",
            buckets=_QUEUE_S,
            registry=registry,
        )
        self._starts = Histogram(
            "cellbox_sandbox_start_seconds",
            "How long the start of a sandbox took that works; its count is how many started.",
            ("kind",),
            buckets=_START_S,
            registry=registry,
        )
        self._failures = Counter(
            "cellbox_sandbox_start_failures",
            "Sandboxes that did not start.",
            ("code",),
            registry=registry,
        )
        self._ends = Counter(
            "cellbox_sandbox_ends",
            "Sandboxes that have ended, spares too.",
            ("reason",),
            registry=registry,
        )
        self._refusals = Counter(
            "cellbox_requests_refused",
            "Answers that are errors, also those on a WebSocket and those of no route.",
            ("code",),
            registry=registry,
        )
        self._streams = Gauge(
            "cellbox_streams_open",
            "Server-sent event streams and WebSockets that are open.",
            ("kind",),
            registry=registry,
        )
        self._denied = Counter(
            "cellbox_egress_denied",
            "Connections and requests to the outside that were refused.",
            ("reason",),
            registry=registry,
        )
        self._allowed = Counter(
            "cellbox_egress_allowed", "Connections and requests that were let out.", registry=registry
        )
        self._failed = Counter(
            "cellbox_egress_failed", "Those that were malformed, or whose target did not answer.", registry=registry
        )
        self._egress_bytes = Counter(
            "cellbox_egress_bytes", "Bytes relayed from (out) and to (in) sandboxes.", ("direction",), registry=registry
        )
        self._connected: dict[str, int] = {}
        Gauge("cellbox_egress_connections", "Connections to the outside.", registry=registry).set_function(
            lambda: sum(self._connected.values())
        )
        for direction in ("in", "out"):
            self._egress_bytes.labels(direction)
        for kind in ("events", "websocket"):
            self._streams.labels(kind)
        for start in get_args(StartKind):
            self._starts.labels(start)
        build = Info("cellbox_build", "What serves.", registry=registry)
        build.info({"version": version, "backend": backend, "python": platform.python_version()})
        registry.register(_Present(now))
        ProcessCollector(registry=registry)

    def ended(
        self, language: str, *, stateful: bool, status: str, queued_s: float | None = None, run_s: float | None = None
    ) -> None:
        """Count an execution that has ended. status: of a fixed set. queued_s, run_s: None where its code has not run."""
        name = _language(language)
        self._executions.labels(name, "true" if stateful else "false", status).inc()
        if queued_s is not None:
            self._queue.observe(queued_s)
        if run_s is not None:
            self._run.labels(name).observe(run_s)

    def sandbox_started(self, kind: StartKind, seconds: float) -> None:
        """Count a sandbox that works."""
        self._starts.labels(kind).observe(seconds)

    def sandbox_failed(self, code: str) -> None:
        """Count a sandbox that did not start. code: of an error."""
        self._failures.labels(code).inc()

    def sandbox_ended(self, reason: str) -> None:
        """Count a sandbox of which nothing is left. reason: of the fixed set of the wire."""
        self._ends.labels(reason).inc()

    def refused(self, code: str) -> None:
        """Count an answer that is an error. code: of the error."""
        self._refusals.labels(code).inc()

    def stream(self, kind: Literal["events", "websocket"]) -> AbstractContextManager[None]:
        """Count a stream as open, while the context is entered."""
        return self._streams.labels(kind).track_inprogress()

    def egress_denied(self, reason: str) -> None:
        """Count a refusal on the way out. reason: of the egress process's fixed set."""
        self._denied.labels(reason if reason in DENIED else OTHER).inc()

    def egress_counted(
        self, sandbox: str, *, connections: int, allowed: int, failed: int, bytes_in: int, bytes_out: int
    ) -> None:
        """Count what a sandbox has done since it was counted before; connections: that it has now."""
        self._connected[sandbox] = connections
        self._allowed.inc(allowed)
        self._failed.inc(failed)
        self._egress_bytes.labels("in").inc(bytes_in)
        self._egress_bytes.labels("out").inc(bytes_out)

    def egress_gone(self, sandbox: str) -> None:
        """Count no connections of it any more."""
        self._connected.pop(sandbox, None)

    def text(self) -> bytes:
        """Return all of them, as ``CONTENT_TYPE`` says."""
        return generate_latest(_WithoutCreated(self._registry))


class _Present(Collector):
    """What is looked up when somebody asks."""

    def __init__(self, now: Callable[[], Now]) -> None:
        self._now = now

    def describe(self) -> Iterator[Metric]:
        """Describe nothing: a registry would have it collected to learn the names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        now = self._now()
        kernels = dict.fromkeys((*LANGUAGES, OTHER), 0)
        for language, count in now.kernels.items():
            kernels[_language(language)] += count
        yield _gauges("cellbox_executions_active", "Executions that wait or run.", "state", now.executions)
        yield _gauges("cellbox_sandboxes", "Sandboxes.", "state", now.sandboxes)
        yield _gauges("cellbox_kernels", "Kernels that run or are wanted.", "language", kernels)
        yield GaugeMetricFamily("cellbox_spares_wanted", "How many spare sandboxes there may be.", now.spares_wanted)
        yield CounterMetricFamily("cellbox_spares_taken", "New sessions that got a spare sandbox.", now.spares_taken)
        yield CounterMetricFamily("cellbox_spares_missed", "New sessions that got none.", now.spares_missed)
        yield CounterMetricFamily("cellbox_link_received_bytes", "Bytes of frames from sandboxes.", now.link_bytes)
        yield CounterMetricFamily(
            "cellbox_records_write_failures", "Writes that the state file did not take.", now.records_failed
        )
        yield GaugeMetricFamily(
            "cellbox_records_failing", "1 while the state file takes nothing, else 0.", now.records_failing
        )
        yield GaugeMetricFamily(
            "cellbox_removals_hanging",
            "Ended sandboxes that the container engine does not remove.",
            now.removals_hanging,
        )


class _WithoutCreated(Collector):
    """A registry without the times at which each counter began, which would be a third of all and which nobody reads.

    The library can leave them out for a whole process only.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _language(name: str) -> str:
    return name if name in LANGUAGES else OTHER


def _gauges(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), count)
    return family
