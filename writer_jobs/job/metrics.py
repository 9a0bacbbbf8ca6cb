"""The exporter of a job's metrics, as ``--metrics`` names it."""

from __future__ import annotations

from lock_manager.errors import MetricsError
from lock_manager.metrics import Destination, MetricsExporter
from lock_manager.opentelemetry_metrics import OpenTelemetryMetrics

_OPENTELEMETRY = "opentelemetry"
_API_PACKAGE = "opentelemetry.metrics"
_ADVICE = "pip install opentelemetry-distro and an exporter, and set OTEL_METRICS_EXPORTER"


def check_destination(text: str) -> None:
    """Check the value of ``--metrics`` without a side effect.

    Raises:
        SettingsError: It is malformed.

    """
    if text != _OPENTELEMETRY:
        Destination.parse(text)


def start_metrics(text: str) -> MetricsExporter | OpenTelemetryMetrics:
    """Start the exporter that the value of ``--metrics`` names. Close it after the work.

    Raises:
        MetricsError: A package is missing, no exporter of OpenTelemetry is configured, the port is taken, or the file
            cannot be written.

    """
    if text != _OPENTELEMETRY:
        return MetricsExporter(text)
    metrics = OpenTelemetryMetrics()
    try:
        _start_sdk()
    except BaseException:
        metrics.close()
        raise
    return metrics


def _start_sdk() -> None:
    """Configure OpenTelemetry's SDK by the variables ``OTEL_*``, unless this process has a meter provider."""
    if _has_meter_provider():
        return
    try:
        from opentelemetry.instrumentation.auto_instrumentation import initialize  # noqa: PLC0415 (the user's package)

        initialize(swallow_exceptions=False)
    except ModuleNotFoundError as error:
        raise MetricsError(f"OpenTelemetry's SDK cannot be started: {_ADVICE}") from error
    except Exception as error:
        raise MetricsError(f"OpenTelemetry's SDK cannot be started: {error}; {_ADVICE}") from error
    if not _has_meter_provider():
        raise MetricsError(f"OpenTelemetry's SDK exports no metrics: {_ADVICE}")


def _has_meter_provider() -> bool:
    from opentelemetry.metrics import get_meter_provider  # noqa: PLC0415 (an optional extra)

    # Without an SDK, the API returns a provider of its own.
    return not type(get_meter_provider()).__module__.startswith(_API_PACKAGE)
