"""The work of ``maintain.py``: maintain tables one after another, and publish the results."""

from __future__ import annotations

import math

from lock_manager import LockInspector, SluiceError
from lock_manager.deadline import Deadline
from writer_jobs.job.exit_codes import exit_code_of, sentence_of
from writer_jobs.job.maintain.arguments import PROGRAM, MaintainArguments, parse_arguments
from writer_jobs.job.maintain.publisher import HealthPublisher
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.maintenance.executor import UnitExecutor
from writer_jobs.maintenance.maintainer import TableMaintainer
from writer_jobs.maintenance.measure import Measurement
from writer_jobs.maintenance.table_list import list_tables, order_by_worth


def _maintain(context: JobContext[MaintainArguments]) -> None:
    arguments, spark = context.arguments, context.spark
    publisher = HealthPublisher(context.output, context.report, spark, page_uri=arguments.page)
    publisher.start()
    budget = Deadline(math.inf if arguments.budget is None else arguments.budget)
    tables = list_tables(spark, arguments.tables, catalog=arguments.catalog, tables_file=arguments.tables_file)
    first_failure: Exception | None = None
    with LockInspector(context.manager.settings) as inspector:
        ordered_tables = order_by_worth(
            spark, tables, arguments.requested_actions, budget_seconds=arguments.budget, zorder_by=arguments.zorder_by
        )
        for table, measurement in ordered_tables:
            if not budget.remaining():
                publisher.publish_skipped(table, measurement)
                continue
            try:
                failure = _maintain_table(context, inspector, publisher, table, measurement, budget.remaining())
            except Exception as error:  # noqa: BLE001 (the other tables are maintained after any error)
                failure = error
            first_failure = first_failure or failure
    try:
        publisher.finish()
    except SluiceError as error:
        first_failure = first_failure or error
    if first_failure is not None:
        raise first_failure


def _maintain_table(
    context: JobContext[MaintainArguments],
    inspector: LockInspector,
    publisher: HealthPublisher,
    table: str,
    measurement: Measurement | None,
    budget_seconds: float,
) -> Exception | None:
    """Maintain one table, publish its results (also after an error), and return the first failure; None: no failure."""
    arguments, maintainer = context.arguments, None
    try:
        executor = UnitExecutor(
            context.spark,
            context.manager,
            inspector,
            table,
            lock_timeout_seconds=arguments.lock_timeout,
            hold_at_most_seconds=arguments.hold_at_most,
        )
        maintainer = TableMaintainer(
            executor,
            deferred=context.stop.deferred,
            on_result=publisher.publish_work,
            parallel=arguments.parallel,
            partitions_per_commit=arguments.partitions_per_commit,
        )
        report = maintainer.run(
            arguments.requested_actions,
            budget_seconds=budget_seconds,
            zorder_by=arguments.zorder_by,
            on_measured=publisher.publish_health,
            measurement=measurement,
        )
    except BaseException as error:
        report_so_far = None if maintainer is None else maintainer.report
        publisher.publish_failure(table, sentence_of(error), exit_code_of(error), report_so_far)
        raise
    publisher.publish_table(report)
    return report.failure


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _maintain)
