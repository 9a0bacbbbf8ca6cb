"""Metrics of this process for OpenTelemetry, through its API package alone.

The program's SDK has the exporter. The package ``opentelemetry-api`` (``pip install '.[opentelemetry]'``) is imported
when the first :class:`OpenTelemetryMetrics` is created. docs/operate.md lists the metrics.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lock_manager.errors import MetricsError
from lock_manager.lock_metrics import MetricsExport
from lock_manager.measurements import BUCKETS, Kind, Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider

_METER_NAME = "sluice"


class OpenTelemetryMetrics(MetricsExport):
    """Passes the metrics of this process to OpenTelemetry until it is closed; also a context manager.

    Create it before the locks that it counts. The instruments stay: a second one with the same provider uses them.

    Args:
        meter_provider: Provider of the instruments; by default the global one, which may be set later.

    Raises:
        MetricsError: opentelemetry-api is not installed.

    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        super().__init__()
        self._begin(_instruments_of(meter_provider))


class _Instruments:
    """An exporter (see :mod:`lock_manager.measurements`) that applies values to the instruments of a meter."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._lock = threading.Lock()
        self._functions: dict[str, Callable[[float, Mapping[str, str]], None]] = {}

    def __call__(self, metric: Metric, value: float, *labels: str) -> None:
        """Apply a value; create the instrument if this is its first value."""
        with self._lock:
            if metric.name not in self._functions:
                self._functions[metric.name] = self._create(metric)
        self._functions[metric.name](value, dict(zip(metric.labels, labels, strict=True)))

    def _create(self, metric: Metric) -> Callable[[float, Mapping[str, str]], None]:
        arguments: dict[str, Any] = {"unit": metric.unit, "description": metric.description}
        match metric.kind:
            case Kind.COUNTER:
                return self._meter.create_counter(metric.name, **arguments).add
            case Kind.GAUGE:
                return self._meter.create_gauge(metric.name, **arguments).set
            case Kind.HISTOGRAM:
                arguments["explicit_bucket_boundaries_advisory"] = BUCKETS
                return self._meter.create_histogram(metric.name, **arguments).record


@functools.cache
def _instruments_of(meter_provider: MeterProvider | None) -> _Instruments:
    """Return the instruments of a provider. A provider must get each instrument once."""
    try:
        from opentelemetry.metrics import get_meter  # noqa: PLC0415 (an optional extra)
    except ModuleNotFoundError as error:
        advice = "pip install '.[opentelemetry]' in a clone of Sluice"
        raise MetricsError(f"opentelemetry-api is not installed: {advice}") from error
    return _Instruments(get_meter(_METER_NAME, meter_provider=meter_provider))
