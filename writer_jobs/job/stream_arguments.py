"""Command line arguments of jobs that can run as a stream."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, fields

from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import JobParser, nonblank, positive_integer
from writer_jobs.streaming.query import AVAILABLE_NOW

_INTERVAL = re.compile(r"\d+ (millisecond|second|minute|hour|day)s?")

#: Section of ``--help`` for jobs that can run as a stream.
HELP = """\
streams:
  With --trigger the job is a Structured Streaming query. available-now applies the rows that exist now, and ends. An
  interval, such as "10 seconds", continues until the job is stopped. The checkpoint folder records which rows are
  applied. A job that is killed at any point and started again with the same checkpoint applies each micro-batch exactly
  once: the commit notes the query's id (txnAppId) and the batch's number (txnVersion). A checkpoint belongs to one
  query and one table, and one process at a time uses it. On SIGTERM and Ctrl-C, a batch that holds its lock finishes; a
  batch that computes, or waits for its lock, gives up. A second signal, at least 10 seconds later, cancels the batch.
  If the JVM of spark-submit gets the signal, it ends at once, as if killed.
"""


@dataclass(frozen=True)
class StreamArguments:
    """The options of a stream, except ``--max-files-per-batch``."""

    trigger: str
    checkpoint: str
    skip_missing: bool = False


def add_stream(parser: JobParser) -> None:
    """Add the options of a stream."""
    add = parser.add_argument
    add(
        "--trigger", type=_trigger, metavar="WHEN",
        help=f'run as a stream: {AVAILABLE_NOW}, or an interval such as "10 seconds"',
    )  # fmt: skip
    add("--checkpoint", type=nonblank, metavar="URI", help="folder for the stream's progress, used by no other stream")
    add("--max-files-per-batch", type=positive_integer, metavar="N", help="largest number of files in a micro-batch")
    add(
        "--skip-missing", action="store_true",
        help="skip source files that were deleted before the stream read them, and count them (missing_files); by "
        "default the stream stops",
    )  # fmt: skip


def take_stream(options: argparse.Namespace) -> StreamArguments | None:
    """Remove the options of :class:`StreamArguments` from a namespace and return them; None for no stream.

    Raises:
        ArgumentsError: Only one of ``--trigger`` and ``--checkpoint`` is given, or ``--skip-missing`` has no effect.

    """
    if (options.trigger is None) != (options.checkpoint is None):
        raise ArgumentsError("--trigger and --checkpoint belong together: give both, or none")
    if options.skip_missing and (options.trigger is None or not options.sources):
        raise ArgumentsError("--skip-missing is for a stream of files: give --trigger and --source with it")
    values = {option.name: vars(options).pop(option.name) for option in fields(StreamArguments)}
    return None if values["trigger"] is None else StreamArguments(**values)


def _trigger(argument: str) -> str:
    if argument != AVAILABLE_NOW and not _INTERVAL.fullmatch(argument):
        raise argparse.ArgumentTypeError(
            f'{argument!r} is neither {AVAILABLE_NOW} nor an interval such as "10 seconds"'
        )
    return argument
