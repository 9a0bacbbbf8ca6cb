"""The append job; ``spark-submit … writer_jobs/append.py --help`` describes it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):
    # Run as a script: import the packages from beside this folder, and nothing from within it.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

try:
    from writer_jobs.job.append_arguments import PROGRAM, AppendArguments, parse_arguments
    from writer_jobs.job.load import AppendLoad
    from writer_jobs.job.runner import Job, JobContext, failing_store_is_a_failed_write
    from writer_jobs.writer import LockedDeltaWriter
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in ("writer_jobs", "lock_manager", "kazoo", "puresasl"):
        raise
    print(f"append.py: {missing}: give spark-submit the --py-files that `sluice submit-args` prints", file=sys.stderr)
    sys.exit(2)


def _append(context: JobContext[AppendArguments]) -> None:
    writer = LockedDeltaWriter(context.spark, context.manager, context.arguments.table)
    context.report(table=writer.table)
    load = AppendLoad(context.spark, writer, context.arguments, context.output, context.stop.deferred)
    with failing_store_is_a_failed_write(writer.table):
        load.run()


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _append)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code; see :meth:`Job.run`."""
    return JOB.run(argv)


if __name__ == "__main__":
    sys.exit(JOB.run_as_program())
