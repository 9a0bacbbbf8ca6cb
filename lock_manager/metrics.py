"""Metrics for Prometheus, by table: waiting, holding, losses, refusals, commits of this process.

Needs ``prometheus-client`` (``pip install '.[metrics]'``), which is imported when metrics are asked for and
not before; nothing else in this package knows of it.

====================================  =========  ======================================================
name                                  kind       labels beside ``table``
====================================  =========  ======================================================
``sluice_lock_wait_seconds``          histogram  ``outcome``: ``acquired``, ``gave_up``
``sluice_lock_hold_seconds``          histogram  ``outcome``: ``released``, ``lost``
``sluice_lock_contenders``            gauge      ``state``: ``waiting``, ``holding``
``sluice_lock_losses_total``          counter
``sluice_commits_total``              counter
``sluice_commit_refusals_total``      counter    ``error``: ``LockNotHeldError``, ``LockLostError`` and so on
====================================  =========  ======================================================

:mod:`writer_jobs.maintenance.gauges` has those of the tables' health.
"""

from __future__ import annotations

import copy
import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Self

from lock_manager.errors import MetricsError, SettingsError
from lock_manager.events import Event, observe

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.samples import Sample

_THIS_MACHINE = "127.0.0.1"
log = logging.getLogger(__name__)

WRITE_SECONDS = 15.0
"""How often a textfile is written: as often as Prometheus asks by default, or more."""

_SUFFIX = ".prom"
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):)?(?P<port>\d{1,5})")
_MAX_PORT = 65535
_FILE_LABEL = "file"
_ADD_UP = ("counter", "histogram", "summary")
_CREATED = "_created"
# From an idle lock's milliseconds to an hour behind slow writers.
_BUCKETS = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)


@dataclass(frozen=True)
class Destination:
    """Where metrics go: an address to serve at, or a file to write.

    Attributes:
        host: to serve at.
        port: likewise; 0 is any that is free.
        file: to write, for node_exporter's textfile collector; None to serve.

    """

    host: str = _THIS_MACHINE
    port: int = 0
    file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Destination:
        """Read ``PORT``, ``HOST:PORT`` or ``FILE.prom``.

        Raises:
            SettingsError: it is none of them.

        """
        match = _ADDRESS.fullmatch(text)
        if match is not None and int(match["port"]) <= _MAX_PORT:
            return cls((match["host"] or _THIS_MACHINE).strip("[]"), int(match["port"]))
        if Path(text).suffix == _SUFFIX:
            return cls(file=Path(text))
        raise SettingsError(f"metrics={text!r}: must be PORT, HOST:PORT or the name of a file that ends with {_SUFFIX}")


class Metrics:
    """An observer (see :mod:`lock_manager.events`) that counts for Prometheus.

    Args:
        registry: to count in.

    Raises:
        MetricsError: prometheus-client is not installed.

    """

    def __init__(self, registry: CollectorRegistry) -> None:
        prometheus = _prometheus()

        def made(kind: Any, name: str, says: str, *labels: str, **options: Any) -> Any:
            return kind(name, says, ("table", *labels), registry=registry, **options)

        histogram, counter = prometheus.Histogram, prometheus.Counter
        self._waits = made(
            histogram, "sluice_lock_wait_seconds", "Seconds that an acquire took.", "outcome", buckets=_BUCKETS
        )
        self._holds = made(
            histogram, "sluice_lock_hold_seconds", "Seconds that a lock was held.", "outcome", buckets=_BUCKETS
        )
        self._contenders = made(
            prometheus.Gauge, "sluice_lock_contenders", "Acquires of this process that wait or hold.", "state"
        )
        self._losses = made(counter, "sluice_lock_losses", "Holds that were lost.")
        self._commits = made(counter, "sluice_commits", "Versions committed under a hold.")
        self._refusals = made(counter, "sluice_commit_refusals", "Commits that the guard refused.", "error")

    def __call__(self, event: Event, table: str, *, seconds: float = 0.0, error: str = "") -> None:
        """Count an event."""
        waiting, holding = (self._contenders.labels(table, state) for state in ("waiting", "holding"))
        match event:
            case Event.QUEUED:
                waiting.inc()
            case Event.ACQUIRED:
                waiting.dec()
                holding.inc()
                self._waits.labels(table, "acquired").observe(seconds)
            case Event.GAVE_UP:
                waiting.dec()
                self._waits.labels(table, "gave_up").observe(seconds)
            case Event.RELEASED:
                holding.dec()
                self._holds.labels(table, "released").observe(seconds)
            case Event.LOST:
                holding.dec()
                self._holds.labels(table, "lost").observe(seconds)
                self._losses.labels(table).inc()
            case Event.COMMITTED:
                self._commits.labels(table).inc()
            case Event.REFUSED:
                self._refusals.labels(table, error).inc()


class MetricsExporter:
    """Counts from now on, and serves or writes what it counts until it is closed; also a context manager.

    Start it before the locks that it is to count. Whoever can reach the address can read the tables' names: by default
    that is this machine.

    Args:
        destination: ``PORT``, ``HOST:PORT``, ``FILE.prom``, or a :class:`Destination`. A file is written every 15 s and
            at the end, and stays; its folder must be there. Give every job a file of its own: the next run continues
            the counters of the file, and its path is the label ``file`` of each series in it.

    Attributes:
        address: ``http://HOST:PORT/metrics``; None if a file is written.
        registry: whose metrics are served or written; more may be registered. It has what this process counted.

    Raises:
        SettingsError: ``destination`` is none.
        MetricsError: prometheus-client is not installed, the port is taken, or the file cannot be written.

    """

    def __init__(self, destination: str | Destination) -> None:
        where = Destination.parse(destination) if isinstance(destination, str) else destination
        self.address: str | None = None
        self.registry: CollectorRegistry = _prometheus().CollectorRegistry()
        metrics = Metrics(self.registry)
        try:
            self._stop = self._serve(where) if where.file is None else self._keep_writing(where.file)
        except OSError as error:
            what = str(where.file or f"{where.host}:{where.port}")
            raise MetricsError(f"metrics cannot go to {what}: {error.strerror or error}") from error
        self._end = observe(metrics)

    def close(self) -> None:
        """Count and serve no more; a file is written once more."""
        self._end()
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, where: Destination) -> Callable[[], None]:
        server, thread = _prometheus().start_http_server(where.port, addr=where.host, registry=self.registry)
        host = f"[{where.host}]" if ":" in where.host else where.host
        self.address = f"http://{host}:{server.server_port}/metrics"

        def stop() -> None:
            server.shutdown()
            thread.join()
            server.server_close()

        return stop

    def _keep_writing(self, file: Path) -> Callable[[], None]:
        continued = _ContinuedFile(file, self.registry)
        continued.write()
        ended = threading.Event()

        def write_again() -> None:
            try:
                continued.write()
            except OSError as error:
                # Whatever the job does is worth more than that.
                log.warning("the metrics were not written to %s: %s", file, error)

        def keep_writing() -> None:
            while not ended.wait(WRITE_SECONDS):
                write_again()

        thread = threading.Thread(target=keep_writing, name="sluice-metrics", daemon=True)
        thread.start()

        def stop() -> None:
            ended.set()
            thread.join()
            write_again()

        return stop


class _ContinuedFile:
    """What a file is to have: this process's metrics, the counters continued from what the file had before.

    A job that is over before it is asked writes each value once. If every run began at 0, two equal runs would leave
    one constant value, and ``increase()`` and ``rate()`` of that are 0. Gauges are not continued, for they may be true
    no more. The time at which a counter began (``_created``) stays that of the first run.

    Each sample gets the label ``file``, as node_exporter names it: it drops a series that two files have.

    Two runs of a job may overlap. So each time the file is read again, and gets what this process has counted since it
    wrote it the last time.

    Args:
        file: to continue, if it is there. What cannot be parsed is left out, with a warning.
        registry: this process's.

    """

    def __init__(self, file: Path, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._file = file
        self._labels = {_FILE_LABEL: os.path.abspath(file)}  # noqa: PTH100 (node_exporter leaves symbolic links, too)
        # What this process had counted when it wrote the file the last time, by name.
        self._written: dict[str, Metric] = {}

    def write(self) -> None:
        """Write the file.

        Raises:
            OSError: it cannot be read or written.

        """
        with _alone_at(self._file):
            before = _counters_of(self._file)
            counted = {metric.name: metric for metric in self._registry.collect()}
            continued = list(self._continued(before, counted))
            # All that it asks of a registry.
            _prometheus().write_to_textfile(str(self._file), SimpleNamespace(collect=lambda: continued))
            self._written = counted

    def _continued(self, before: Mapping[str, Metric], counted: Mapping[str, Metric]) -> Iterator[Metric]:
        for name, metric in {**before, **counted}.items():
            # One that only the file has, or only this process, stays as it is.
            both = name in before and name in counted
            samples = _added(before[name], metric, self._written.get(name)) if both else metric.samples
            continued = copy.copy(metric)
            continued.samples = [sample._replace(labels=sample.labels | self._labels) for sample in samples]
            yield continued


@contextmanager
def _alone_at(file: Path) -> Iterator[None]:
    """Keep other processes of this machine from writing a file, by a lock on its folder."""
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _counters_of(file: Path) -> dict[str, Metric]:
    """Return the counters and histograms of a file, by name, without the label of the file."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 (an optional extra)

    found: dict[str, Metric] = {}
    try:
        for metric in text_string_to_metric_families(file.read_text(encoding="utf-8")):
            if metric.type in _ADD_UP:
                found[metric.name] = metric
            # The text format has the times at which counters began as gauges behind them.
            elif (base := metric.name.removesuffix(_CREATED)) in found:
                found[base].samples.extend(metric.samples)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        log.warning("the counters of %s begin anew, for it cannot be parsed: %s", file, error)
        return {}
    for metric in found.values():
        for sample in metric.samples:
            sample.labels.pop(_FILE_LABEL, None)
    return found


def _added(before: Metric, metric: Metric, written: Metric | None) -> list[Sample]:
    """Return the samples of a metric: those of the file, and what this process has counted since it wrote it."""
    bounds, bounds_before = ({sample.labels.get("le") for sample in each.samples} for each in (metric, before))
    if before.type != metric.type or (metric.samples and bounds != bounds_before):
        return metric.samples
    known = {_key(sample): sample.value for sample in (() if written is None else written.samples)}
    added = {_key(sample): sample for sample in before.samples}
    for sample in metric.samples:
        earlier = added.get(_key(sample))
        if earlier is None:
            added[_key(sample)] = sample
        elif not sample.name.endswith(_CREATED):
            more = sample.value - known.get(_key(sample), 0.0)
            added[_key(sample)] = sample._replace(value=earlier.value + more)
    return list(added.values())


def _key(sample: Sample) -> tuple[str, frozenset[tuple[str, str]]]:
    return sample.name, frozenset(sample.labels.items())


def _prometheus() -> Any:
    try:
        import prometheus_client  # noqa: PLC0415 (an optional extra)
    except ModuleNotFoundError as error:
        advice = "pip install '.[metrics]' in a clone of Sluice"
        raise MetricsError(f"prometheus-client is not installed: {advice}") from error
    return prometheus_client
