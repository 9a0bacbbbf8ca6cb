"""Metrics of this process for Prometheus, served over HTTP or written to a file.

They need ``prometheus-client`` (``pip install '.[metrics]'``), which is imported when an exporter is created.
docs/operate.md lists the metrics.
"""

from __future__ import annotations

import copy
import fcntl
import functools
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from lock_manager.errors import MetricsError, SettingsError
from lock_manager.lock_metrics import MetricsExport
from lock_manager.measurements import BUCKETS, Kind, Metric

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client import Metric as Family
    from prometheus_client.samples import Sample

_LOCALHOST = "127.0.0.1"
log = logging.getLogger(__name__)

WRITE_SECONDS = 15.0
"""Seconds between two writes of a textfile; Prometheus scrapes every 60 s by default."""

_SUFFIX = ".prom"
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):)?(?P<port>\d{1,5})")
_MAX_PORT = 65535
_FILE_LABEL = "file"
_CREATED = "_created"


@dataclass(frozen=True)
class Destination:
    """A file for node_exporter's textfile collector, or an address to serve metrics at; port 0 is any free port."""

    host: str = _LOCALHOST
    port: int = 0
    file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Destination:
        """Parse ``PORT``, ``HOST:PORT`` or ``FILE.prom``.

        Raises:
            SettingsError: The text has none of these forms.

        """
        match = _ADDRESS.fullmatch(text)
        if match is not None and int(match["port"]) <= _MAX_PORT:
            return cls((match["host"] or _LOCALHOST).strip("[]"), int(match["port"]))
        if Path(text).suffix == _SUFFIX:
            return cls(file=Path(text))
        raise SettingsError(f"metrics={text!r}: must be PORT, HOST:PORT or the name of a file that ends with {_SUFFIX}")


class PrometheusInstruments:
    """An exporter (see :mod:`lock_manager.measurements`) that applies values to the metrics of a registry.

    Raises:
        MetricsError: prometheus-client is not installed.

    """

    def __init__(self, registry: CollectorRegistry) -> None:
        prometheus = _prometheus()
        self._registry = registry
        self._classes = {
            Kind.COUNTER: prometheus.Counter,
            Kind.GAUGE: prometheus.Gauge,
            Kind.HISTOGRAM: functools.partial(prometheus.Histogram, buckets=BUCKETS),
        }
        self._lock = threading.Lock()
        self._instruments: dict[str, Any] = {}

    def __call__(self, metric: Metric, value: float, *labels: str) -> None:
        """Apply a value; create the metric in the registry if this is its first value."""
        with self._lock:
            instrument = self._instruments.get(metric.name)
            if instrument is None:
                create = self._classes[metric.kind]
                instrument = create(metric.name, metric.description, metric.labels, registry=self._registry)
                self._instruments[metric.name] = instrument
        series = instrument.labels(*labels)
        match metric.kind:
            case Kind.COUNTER:
                series.inc(value)
            case Kind.GAUGE:
                series.set(value)
            case Kind.HISTOGRAM:
                series.observe(value)


class MetricsExporter(MetricsExport):
    """Exports the metrics of this process until it is closed; also a context manager.

    Start it before the locks that it counts. Every client of the address can read the names of the tables; by default
    only this machine can connect.

    Args:
        destination: ``PORT``, ``HOST:PORT``, ``FILE.prom``, or a :class:`Destination`. A file is written every 15 s and
            at the end, and is kept; its folder must exist. Give each job its own file: the next run continues the
            counters of the file, and each series in it has the file's path as label ``file``.

    Attributes:
        address: ``http://HOST:PORT/metrics``; None if a file is written.
        registry: Registry of the exported metrics, with the counts of this process; more metrics may be registered.

    Raises:
        SettingsError: ``destination`` is malformed.
        MetricsError: prometheus-client is not installed, the port is taken, or the file cannot be written.

    """

    def __init__(self, destination: str | Destination) -> None:
        super().__init__()
        target = Destination.parse(destination) if isinstance(destination, str) else destination
        self.address: str | None = None
        self.registry: CollectorRegistry = _prometheus().CollectorRegistry()
        instruments = PrometheusInstruments(self.registry)
        try:
            if target.file is None:
                self._serve(target)
            else:
                self._keep_writing(target.file)
        except OSError as error:
            name = str(target.file or f"{target.host}:{target.port}")
            raise MetricsError(f"metrics cannot be exported to {name}: {error.strerror or error}") from error
        self._begin(instruments)

    def _serve(self, target: Destination) -> None:
        server, thread = _prometheus().start_http_server(target.port, addr=target.host, registry=self.registry)
        host = f"[{target.host}]" if ":" in target.host else target.host
        self.address = f"http://{host}:{server.server_port}/metrics"
        # ExitStack calls them in reverse order.
        for step in (server.server_close, thread.join, server.shutdown):
            self._on_close.callback(step)

    def _keep_writing(self, path: Path) -> None:
        file = _ContinuedFile(path, self.registry)
        file.write()
        closed = threading.Event()

        def write() -> None:
            try:
                file.write()
            except OSError as error:
                # A failed write of metrics must not end the job.
                log.warning("the metrics were not written to %s: %s", path, error)

        def keep_writing() -> None:
            while not closed.wait(WRITE_SECONDS):
                write()

        thread = threading.Thread(target=keep_writing, name="sluice-metrics", daemon=True)
        thread.start()
        for step in (write, thread.join, closed.set):
            self._on_close.callback(step)


class _ContinuedFile:
    """A textfile with the metrics of this process, whose counters continue those of earlier runs.

    Prometheus sees only the last value of a run that ends before it is scraped. If every run began at 0, two equal runs
    would leave one constant value, whose ``increase()`` and ``rate()`` are 0. Gauges are not continued, because they
    may no longer be true. The creation time of a counter (``_created``) stays that of the first run.

    Each sample gets the label ``file``, as node_exporter names it, because node_exporter drops a series that two files
    contain.

    Two runs of a job may overlap. So each write reads the file again and adds only the counts since this process's
    previous write. A file that cannot be parsed is replaced, with a warning.
    """

    def __init__(self, path: Path, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._path = path
        self._labels = {_FILE_LABEL: os.path.abspath(path)}  # noqa: PTH100 (keeps symbolic links, as node_exporter does)
        self._written: dict[str, Family] = {}

    def write(self) -> None:
        """Write the file.

        Raises:
            OSError: The file cannot be read or written.

        """
        with _exclusive_access(self._path):
            stored = _read_counters(self._path)
            current = {metric.name: metric for metric in self._registry.collect()}
            metrics = list(self._merge(stored, current))
            # write_to_textfile needs only the method collect of a registry.
            _prometheus().write_to_textfile(str(self._path), SimpleNamespace(collect=lambda: metrics))
            self._written = current

    def _merge(self, stored: Mapping[str, Family], current: Mapping[str, Family]) -> Iterator[Family]:
        for name, metric in {**stored, **current}.items():
            samples = metric.samples
            if name in stored and name in current:
                samples = _sum_samples(stored[name], metric, self._written.get(name))
            merged_metric = copy.copy(metric)
            merged_metric.samples = [sample._replace(labels=sample.labels | self._labels) for sample in samples]
            yield merged_metric


@contextmanager
def _exclusive_access(file: Path) -> Iterator[None]:
    """Lock a file's folder, so that no other process of this machine writes the file meanwhile."""
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _read_counters(file: Path) -> dict[str, Family]:
    """Return the counters, histograms and summaries of a file by name, without the label ``file``."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 (an optional extra)

    counters: dict[str, Family] = {}
    try:
        for metric in text_string_to_metric_families(file.read_text(encoding="utf-8")):
            if metric.type in ("counter", "histogram", "summary"):
                counters[metric.name] = metric
            # In the text format the creation times of a counter follow it as a gauge.
            elif (base_name := metric.name.removesuffix(_CREATED)) in counters:
                counters[base_name].samples.extend(metric.samples)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        log.warning("the counters of %s begin at 0, because the file cannot be parsed: %s", file, error)
        return {}
    for metric in counters.values():
        for sample in metric.samples:
            sample.labels.pop(_FILE_LABEL, None)
    return counters


def _sum_samples(stored: Family, current: Family, written: Family | None) -> list[Sample]:
    """Return the samples of the file, increased by the counts of this process since its previous write."""
    stored_bounds, current_bounds = (
        {sample.labels.get("le") for sample in metric.samples} for metric in (stored, current)
    )
    if stored.type != current.type or (current.samples and stored_bounds != current_bounds):
        # A release with another type or other buckets begins again.
        return current.samples
    written_values = {_key(sample): sample.value for sample in (() if written is None else written.samples)}
    sums = {_key(sample): sample for sample in stored.samples}
    for sample in current.samples:
        key = _key(sample)
        if key not in sums:
            sums[key] = sample
        elif not sample.name.endswith(_CREATED):
            increase = sample.value - written_values.get(key, 0.0)
            sums[key] = sample._replace(value=sums[key].value + increase)
    return list(sums.values())


def _key(sample: Sample) -> tuple[str, frozenset[tuple[str, str]]]:
    return sample.name, frozenset(sample.labels.items())


def _prometheus() -> Any:
    try:
        import prometheus_client  # noqa: PLC0415 (an optional extra)
    except ModuleNotFoundError as error:
        advice = "pip install '.[metrics]' in a clone of Sluice"
        raise MetricsError(f"prometheus-client is not installed: {advice}") from error
    return prometheus_client
