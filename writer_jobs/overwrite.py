"""The job that replaces rows; ``spark-submit … writer_jobs/overwrite.py --help`` describes it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):
    # Run as a script: import the packages from beside this folder, and nothing from within it.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

try:
    from lock_manager import Hold
    from writer_jobs.delta.hadoop_files import HadoopFiles
    from writer_jobs.job.load import refuse_other_partitioning
    from writer_jobs.job.once import LoadMark
    from writer_jobs.job.overwrite_arguments import PROGRAM, OverwriteArguments, parse_arguments
    from writer_jobs.job.runner import Job, JobContext, failing_store_is_a_failed_write
    from writer_jobs.job.sources import SourceReader, find_sources
    from writer_jobs.writer import LockedDeltaWriter
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in ("writer_jobs", "lock_manager", "kazoo", "puresasl"):
        raise
    print(f"overwrite.py: {missing}: give spark-submit the --py-files of `sluice submit-args`", file=sys.stderr)
    sys.exit(2)


def _overwrite(context: JobContext[OverwriteArguments]) -> None:
    arguments, spark, output = context.arguments, context.spark, context.output
    writer = LockedDeltaWriter(spark, context.manager, arguments.table)
    context.report(table=writer.table)
    sources = find_sources(HadoopFiles.of(spark), arguments.sources)
    reader = SourceReader(spark, sources, arguments.format or sources.format, arguments.options, writer.table)
    mark = None
    if arguments.run_id is not None:
        mark = LoadMark(writer.log, PROGRAM, arguments.run_id, {**arguments.query, "sources": sources.basis})
        mark.check()
    state = writer.log.state()
    if not arguments.overwrite_schema:
        refuse_other_partitioning(writer.table, state, arguments.partition_by)
    rows = reader.read(reader.schema(None if arguments.overwrite_schema else state))

    def holding(hold: Hold) -> None:
        if mark is not None:
            mark.check()
        output.holding(1, hold.token, hold.acquired_at)

    some = arguments.replace_where is not None or arguments.dynamic
    with failing_store_is_a_failed_write(writer.table), context.stop.deferred(writer.cancel):
        output.waiting(1, time.time())
        result = writer.overwrite(
            rows,
            replace_where=arguments.replace_where,
            dynamic=arguments.dynamic,
            partition_by=arguments.partition_by if state is None or arguments.overwrite_schema else (),
            options={"overwriteSchema": "true"} if arguments.overwrite_schema and state is not None else {},
            txn=None if mark is None else mark.txn,
            lock="partitions" if some else "table",
            hold=arguments.hold,
            lock_timeout_seconds=arguments.lock_timeout,
            before_write=holding,
        )
        output.commit(1, result)


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _overwrite)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code; see :meth:`Job.run`."""
    return JOB.run(argv)


if __name__ == "__main__":
    sys.exit(JOB.run_as_program())
