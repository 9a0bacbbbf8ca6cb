"""The job that looks after tables; ``spark-submit … writer_jobs/maintain.py --help`` describes it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):
    # Run as a script: import the packages from beside this folder, and nothing from within it.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

try:
    from lock_manager import LockInspector, SluiceError
    from writer_jobs.job.exit_codes import exit_code_of, sentence_of
    from writer_jobs.job.maintain_arguments import PROGRAM, MaintainArguments, parse_arguments
    from writer_jobs.job.runner import Job, JobContext
    from writer_jobs.maintenance.care import Care
    from writer_jobs.maintenance.fleet import tables_of
    from writer_jobs.maintenance.gauges import HealthGauges
    from writer_jobs.maintenance.publish import Published
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in ("writer_jobs", "lock_manager", "kazoo", "puresasl"):
        raise
    print(f"maintain.py: {missing}: give spark-submit the --py-files that `sluice submit-args` prints", file=sys.stderr)
    sys.exit(2)


def _maintain(context: JobContext[MaintainArguments]) -> None:
    arguments, spark = context.arguments, context.spark
    gauges = None if context.metrics is None else HealthGauges(context.metrics.registry)
    published = Published(context.output, context.report, spark, page_uri=arguments.page, gauges=gauges)
    published.begun()
    deadline = None if arguments.budget is None else time.monotonic() + arguments.budget
    tables = tables_of(spark, arguments.tables, catalog=arguments.catalog, listed_in=arguments.listed_in)
    first: SluiceError | None = None
    with LockInspector(context.manager.settings) as inspector:
        for number, table in enumerate(tables):
            # What one table does not need of its share is for the others.
            share = None if deadline is None else (deadline - time.monotonic()) / (len(tables) - number)
            try:
                care = Care(
                    spark,
                    context.manager,
                    inspector,
                    table,
                    lock_timeout_seconds=arguments.lock_timeout,
                    deferred=context.stop.deferred,
                    say=published.done,
                    parallel=arguments.parallel,
                    partitions_per_commit=arguments.partitions_per_commit,
                )
                report = care.run(
                    arguments.wanted,
                    budget_seconds=None if share is None else max(0.0, share),
                    zorder_by=arguments.zorder_by,
                    measured=published.measured,
                )
            except SluiceError as error:
                published.failed(table, sentence_of(error), exit_code_of(error))
                first = first or error
            else:
                published.cared_for(report)
                first = first or report.failure
    try:
        published.ended()
    except SluiceError as error:
        first = first or error
    if first is not None:
        raise first


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _maintain)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code; see :meth:`Job.run`."""
    return JOB.run(argv)


if __name__ == "__main__":
    sys.exit(JOB.run_as_program())
