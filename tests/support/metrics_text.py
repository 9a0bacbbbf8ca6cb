"""Read metrics in Prometheus' text format."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


def values_of(text: str, name: str, **labels: str) -> list[float]:
    """Return the values of the series that have these labels."""
    return [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels.items() >= labels.items()
    ]
