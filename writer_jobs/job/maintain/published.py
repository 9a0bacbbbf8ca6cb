"""What becomes of reports: lines on standard output, the job's JSON report, and a page."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import StorageError
from writer_jobs.job.output import JobOutput
from writer_jobs.maintenance.gauges import HealthGauges
from writer_jobs.maintenance.measure import Measurement
from writer_jobs.maintenance.page import page
from writer_jobs.maintenance.result import MaintenanceReport

log = logging.getLogger(__name__)

_BUDGET_OVER = "the budget was over"
# While a table is worked on the report is written no more often than that, and for a small part of the time: that of a
# table of many partitions is long.
_WRITE_SECONDS = 1.0
_WRITE_SHARE = 20


class Published:
    """Says what is found and done, as it comes.

    Args:
        output: gets the lines.
        note: notes facts in the job's report.
        spark: the session, to write the page with.
        page_uri: of the page; None: no page.
        gauges: show the figures; None: nowhere.

    """

    def __init__(
        self,
        output: JobOutput,
        note: Callable[..., None],
        spark: SparkSession,
        *,
        page_uri: str | None = None,
        gauges: HealthGauges | None = None,
    ) -> None:
        self._output = output
        self._note = note
        self._files = HadoopFiles.of(spark)
        self._page_uri = page_uri
        self._gauges = gauges
        self._reports: list[MaintenanceReport] = []
        self._failed: dict[str, str] = {}
        self._is_unwritten = False
        self._under_way: MaintenanceReport | None = None
        self._write_again_at = 0.0
        self._tables: list[dict[str, Any]] = []

    def begun(self) -> None:
        """Write the report and a page with no table yet: if they cannot be written, nothing is done in vain.

        A page that is there stays until there is something to show.

        Raises:
            StorageError: the report or the page cannot be written.

        """
        has_page = self._page_uri is not None and self._files.status(self._page_uri) is not None
        self._write(with_page=not has_page)

    def measured(self, report: MaintenanceReport) -> None:
        """Say how a table was found."""
        health = report.before
        if self._gauges is not None:
            self._gauges.show(health, report.findings)
        self._output.said(
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
            said = {**finding.to_json(), "partitions": len(finding.partitions)}
            self._output.said("finding", table=health.table, **said)

    def done(self, report: MaintenanceReport) -> None:
        """Say what was done last, and note it in the report: whatever ends the job may leave no time for that.

        Args:
            report: what is known of the table, and was done to it, so far.

        """
        self._output.said("done", table=report.before.table, **report.done[-1].to_json())
        self._under_way = report
        if time.monotonic() >= self._write_again_at:
            self._try_to_write(with_page=False)

    def cared_for(self, report: MaintenanceReport) -> None:
        """Take the report of a table that was looked after, or only measured."""
        self._under_way = None
        self._reports.append(report)
        if self._gauges is not None:
            if report.after is not None:
                self._gauges.show(report.after, report.findings_after)
            self._gauges.count(report)
        self._tables.append(report.to_json())
        self._output.said(
            "table",
            table=report.before.table,
            done=sum(each.problem is None for each in report.done),
            given_up=sum(each.problem is not None for each in report.done),
            left=report.left,
            files_saved=report.saved.files,
            bytes_saved=report.saved.size,
        )
        self._try_to_write()

    def skipped(self, table: str, found: Measurement | None) -> None:
        """Note a table for which there was no time, and how it was found, if that is known."""
        table = table if found is None else found.health.table
        self._tables.append({"table": table, "skipped": _BUDGET_OVER})
        if found is not None:
            report = MaintenanceReport.of(found.health, found.policy)
            self.measured(report)
            self._reports.append(report)
            said = report.to_json()
            self._tables[-1] |= {name: said[name] for name in ("before", "findings")}
        self._output.said("skipped", table=table, reason=_BUDGET_OVER)
        self._try_to_write()

    def failed(self, table: str, sentence: str, code: int, report: MaintenanceReport | None = None) -> None:
        """Note a table that could not be looked after, or not to the end.

        Args:
            table: as it was named.
            sentence: why.
            code: exit code of that.
            report: what is known of it, and was done to it before; None: nothing.

        """
        self._under_way = None
        table = table if report is None else report.before.table
        self._failed[table] = sentence
        if report is not None:
            self._reports.append(report)
            if self._gauges is not None:
                self._gauges.count(report)
        self._tables.append(
            {"table": table, "error": sentence, "exit_code": code, **({} if report is None else report.to_json())}
        )
        self._output.said("failed", table=table, error=sentence, exit_code=code)
        self._try_to_write()

    def ended(self) -> None:
        """Write what could not be written before, if there is such a thing.

        Raises:
            StorageError: it still cannot.

        """
        if self._is_unwritten:
            self._write()

    def _try_to_write(self, *, with_page: bool = True) -> None:
        """Write, or leave it for later: the other tables are looked after all the same."""
        try:
            self._write(with_page=with_page)
        except StorageError as error:
            log.warning("written later: %s", error)
            self._is_unwritten = True

    def _write(self, *, with_page: bool = True) -> None:
        begun = time.monotonic()
        under_way = [] if self._under_way is None else [self._under_way.to_json()]
        self._note(tables=[*self._tables, *under_way])
        if with_page and self._page_uri is not None:
            self._files.write_text(self._page_uri, page(self._reports, self._failed))
        if with_page:
            self._is_unwritten = False
        ended = time.monotonic()
        self._write_again_at = ended + max(_WRITE_SECONDS, _WRITE_SHARE * (ended - begun))
