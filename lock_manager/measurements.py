"""Values of metrics, for exporters. By default there are no exporters, and values are dropped.

Each metric is defined once, as a :class:`Metric`. Exporters for Prometheus and OpenTelemetry create their instruments
from this definition when they get the first value. docs/operate.md lists the metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

log = logging.getLogger(__name__)

TABLE = "table"
"""The first label of each metric: the canonical URI of a table."""

SECONDS, BYTES = "s", "By"
"""Units, as OpenTelemetry writes them (UCUM)."""

BUCKETS = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper bounds of histograms' buckets, in seconds: from a free lock's milliseconds to an hour behind slow writers."""


class Kind(StrEnum):
    """The kind of a metric, which determines how a value is applied."""

    #: A value is added.
    COUNTER = "counter"
    #: A value replaces the previous one.
    GAUGE = "gauge"
    #: A value is counted in its bucket.
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """The definition of a metric.

    Attributes:
        name: Name in Prometheus and OpenTelemetry. The name of a counter ends with ``_total``.
        description: One sentence.
        more_labels: Labels in addition to ``table``.
        unit: Unit of the values; empty for a number of things.

    """

    kind: Kind
    name: str
    description: str
    more_labels: tuple[str, ...] = ()
    unit: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, ``table`` first."""
        return (TABLE, *self.more_labels)


class Exporter(Protocol):
    """A callable that receives values."""

    def __call__(self, metric: Metric, value: float, *labels: str) -> None:
        """Apply a value to the series of a metric with these labels, in the order of :attr:`Metric.labels`."""


_exporters: dict[object, Exporter] = {}


def export(exporter: Exporter) -> Callable[[], None]:
    """Add an exporter of all later values; return a function that removes it."""
    key = object()
    _exporters[key] = exporter

    def remove() -> None:
        _exporters.pop(key, None)

    return remove


def record(metric: Metric, value: float, *labels: str) -> None:
    """Pass a value to every exporter; see :class:`Exporter`."""
    for exporter in list(_exporters.values()):
        try:
            exporter(metric, value, *labels)
        except Exception:  # a failing exporter must not end a job
            log.exception("a value of the metric %s could not be recorded", metric.name)
