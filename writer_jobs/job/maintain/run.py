"""The work of ``maintain.py``."""

from __future__ import annotations

import math

from lock_manager import LockInspector, SluiceError
from lock_manager.deadline import Deadline
from writer_jobs.job.exit_codes import exit_code_of, sentence_of
from writer_jobs.job.maintain.arguments import PROGRAM, MaintainArguments, parse_arguments
from writer_jobs.job.maintain.published import Published
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.maintenance.executor import UnitExecutor
from writer_jobs.maintenance.gauges import HealthGauges
from writer_jobs.maintenance.maintainer import TableMaintainer
from writer_jobs.maintenance.measure import Measurement
from writer_jobs.maintenance.table_list import list_tables
from writer_jobs.maintenance.table_order import order_by_worth


def _maintain(context: JobContext[MaintainArguments]) -> None:
    arguments, spark = context.arguments, context.spark
    gauges = None if context.metrics is None else HealthGauges(context.metrics.registry)
    published = Published(context.output, context.report, spark, page_uri=arguments.page, gauges=gauges)
    published.begun()
    budget = Deadline(math.inf if arguments.budget is None else arguments.budget)
    tables = list_tables(spark, arguments.tables, catalog=arguments.catalog, listed_in=arguments.listed_in)
    first: Exception | None = None
    with LockInspector(context.manager.settings) as inspector:
        ordered = order_by_worth(
            spark, tables, arguments.wanted, budget_seconds=arguments.budget, zorder_by=arguments.zorder_by
        )
        for table, found in ordered:
            if not budget.remaining():
                published.skipped(table, found)
                continue
            try:
                failure = _look_after(context, inspector, published, table, found, budget.remaining())
            except Exception as error:  # noqa: BLE001 (whatever it is, the other tables are looked after)
                failure = error
            first = first or failure
    try:
        published.ended()
    except SluiceError as error:
        first = first or error
    if first is not None:
        raise first


def _look_after(
    context: JobContext[MaintainArguments],
    inspector: LockInspector,
    published: Published,
    table: str,
    found: Measurement | None,
    seconds: float,
) -> Exception | None:
    """Look after one table, publish what was done, also if it fails, and return the first thing that failed."""
    arguments, care = context.arguments, None
    try:
        worker = UnitExecutor(
            context.spark,
            context.manager,
            inspector,
            table,
            lock_timeout_seconds=arguments.lock_timeout,
            hold_at_most_seconds=arguments.hold_at_most,
        )
        care = TableMaintainer(
            worker,
            deferred=context.stop.deferred,
            on_result=published.done,
            parallel=arguments.parallel,
            partitions_per_commit=arguments.partitions_per_commit,
        )
        report = care.run(
            arguments.wanted,
            budget_seconds=seconds,
            zorder_by=arguments.zorder_by,
            on_measured=published.measured,
            measurement=found,
        )
    except BaseException as error:
        published.failed(table, sentence_of(error), exit_code_of(error), None if care is None else care.report)
        raise
    published.cared_for(report)
    return report.failure


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _maintain)
