"""Publish the results of maintenance: lines on standard output, the job's JSON report, and an HTML page."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import StorageError
from writer_jobs.job.output import JobOutput
from writer_jobs.maintenance.gauges import record_health, record_maintenance
from writer_jobs.maintenance.measure import Measurement
from writer_jobs.maintenance.result import MaintenanceReport
from writer_jobs.page.health import page

log = logging.getLogger(__name__)

_NO_BUDGET = "the time budget was used up"
# During the work on a table, at least this time passes between two writes of the report, and at least this multiple of
# the duration of a write. The report of a table with many partitions is long.
_WRITE_SECONDS = 1.0
_WRITE_RATIO = 20


class HealthPublisher:
    """The publisher of one run's results; ``add_to_report`` adds fields to the job's report."""

    def __init__(
        self,
        output: JobOutput,
        add_to_report: Callable[..., None],
        spark: SparkSession,
        *,
        page_uri: str | None = None,
    ) -> None:
        self._output = output
        self._add_to_report = add_to_report
        self._files = HadoopFiles.of(spark)
        self._page_uri = page_uri
        self._reports: list[MaintenanceReport] = []
        self._failure_messages: dict[str, str] = {}
        self._needs_write = False
        self._current_report: MaintenanceReport | None = None
        self._next_write_at = 0.0
        self._tables: list[dict[str, Any]] = []

    def start(self) -> None:
        """Write the report, and an empty page if there is no page: a location that is not writable fails at once.

        An existing page is neither tested nor replaced until a table is finished.

        Raises:
            StorageError: The report or the page cannot be written.

        """
        has_page = self._page_uri is not None and self._files.status(self._page_uri) is not None
        self._write(with_page=not has_page)

    def publish_health(self, report: MaintenanceReport) -> None:
        """Publish the health of a table before the work on it."""
        health = report.before
        record_health(health, report.findings)
        self._output.event(
            "measured",
            table=health.table,
            version=health.version,
            files=health.total.total.files,
            bytes=health.total.total.size,
            small_files=health.total.small.files,
            deleted_rows=health.total.deleted_rows,
            orphans=health.folder.orphans.files,
            seconds=round(health.measuring_seconds, 3),
        )
        for finding in report.findings:
            fields = {**finding.to_json(), "partitions": len(finding.partitions)}
            self._output.event("finding", table=health.table, **fields)

    def publish_work(self, report: MaintenanceReport) -> None:
        """Publish the newest action on a table.

        The report is written before the table is finished, because the job can be killed at any time, but not more
        often than ``_WRITE_SECONDS`` and ``_WRITE_RATIO`` allow.
        """
        self._output.event("done", table=report.before.table, **report.done[-1].to_json())
        self._current_report = report
        if time.monotonic() >= self._next_write_at:
            self._try_to_write(with_page=False)

    def publish_table(self, report: MaintenanceReport) -> None:
        """Publish the report of a table that was maintained, or only measured."""
        self._current_report = None
        self._reports.append(report)
        if report.after is not None:
            record_health(report.after, report.findings_after)
        record_maintenance(report)
        self._tables.append(report.to_json())
        self._output.event(
            "table",
            table=report.before.table,
            done=sum(work.problem is None for work in report.done),
            given_up=sum(work.problem is not None for work in report.done),
            left=report.left,
            files_saved=report.saved.files,
            bytes_saved=report.saved.size,
        )
        self._try_to_write()

    def publish_skipped(self, table: str, measurement: Measurement | None) -> None:
        """Publish a table that is skipped for lack of time, with its health if it was measured."""
        table = table if measurement is None else measurement.health.table
        self._tables.append({"table": table, "skipped": _NO_BUDGET})
        if measurement is not None:
            report = MaintenanceReport.of(measurement.health, measurement.policy)
            self.publish_health(report)
            self._reports.append(report)
            fields = report.to_json()
            self._tables[-1] |= {name: fields[name] for name in ("before", "findings")}
        self._output.event("skipped", table=table, reason=_NO_BUDGET)
        self._try_to_write()

    def publish_failure(self, table: str, message: str, code: int, report: MaintenanceReport | None = None) -> None:
        """Publish that the maintenance of a table failed.

        Args:
            table: Name of the table in the arguments.
            message: Message of the error, as one sentence.
            code: Exit code of the error.
            report: Report with the actions before the failure; None: the table was not measured.

        """
        self._current_report = None
        table = table if report is None else report.before.table
        self._failure_messages[table] = message
        if report is not None:
            self._reports.append(report)
            record_maintenance(report)
        self._tables.append(
            {"table": table, "error": message, "exit_code": code, **({} if report is None else report.to_json())}
        )
        self._output.event("failed", table=table, error=message, exit_code=code)
        self._try_to_write()

    def finish(self) -> None:
        """Write the report and the page if an earlier write failed and no complete write has followed.

        Raises:
            StorageError: The report or the page cannot be written.

        """
        if self._needs_write:
            self._write()

    def _try_to_write(self, *, with_page: bool = True) -> None:
        """Write, or log the failure and write later, so that the job continues with the other tables."""
        try:
            self._write(with_page=with_page)
        except StorageError as error:
            log.warning("the report or page could not be written and is tried again later: %s", error)
            self._needs_write = True

    def _write(self, *, with_page: bool = True) -> None:
        started_at = time.monotonic()
        current = [] if self._current_report is None else [self._current_report.to_json()]
        self._add_to_report(tables=[*self._tables, *current])
        if with_page and self._page_uri is not None:
            self._files.write_text(self._page_uri, page(self._reports, self._failure_messages))
        if with_page:
            self._needs_write = False
        ended_at = time.monotonic()
        self._next_write_at = ended_at + max(_WRITE_SECONDS, _WRITE_RATIO * (ended_at - started_at))
