"""Metrics for Prometheus, by table: waiting, holding, losses, refusals, commits of this process.

Needs ``prometheus-client`` (``pip install 'delta-sluice[metrics]'``), which is imported when metrics are asked for and
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

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lock_manager.errors import MetricsError, SettingsError
from lock_manager.events import Event, observe

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_THIS_MACHINE = "127.0.0.1"
log = logging.getLogger(__name__)

WRITE_SECONDS = 15.0
"""How often a textfile is written: as often as Prometheus asks by default, or more."""

_SUFFIX = ".prom"
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):)?(?P<port>\d{1,5})")
_MAX_PORT = 65535
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
            at the end, and stays; its folder must be there. Give every job a file of its own.

    Attributes:
        address: ``http://HOST:PORT/metrics``; None if a file is written.
        registry: whose metrics are served or written; more may be registered.

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
        write_to_textfile = _prometheus().write_to_textfile
        write_to_textfile(str(file), self.registry)
        ended = threading.Event()

        def write_again() -> None:
            try:
                write_to_textfile(str(file), self.registry)
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


def _prometheus() -> Any:
    try:
        import prometheus_client  # noqa: PLC0415 (an optional extra)
    except ModuleNotFoundError as error:
        raise MetricsError("prometheus-client is not installed: pip install 'delta-sluice[metrics]'") from error
    return prometheus_client
