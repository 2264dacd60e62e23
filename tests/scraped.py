"""Metrics as Prometheus' own library reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def samples(text: bytes | str) -> dict[tuple[str, ...], float]:
    """Name and values of labels -> value."""
    families = text_string_to_metric_families(text if isinstance(text, str) else text.decode())
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}
