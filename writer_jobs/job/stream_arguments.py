"""What the command lines of jobs share that can run as a stream."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import JobParser, text
from writer_jobs.streaming.query import AVAILABLE_NOW

_INTERVAL = re.compile(r"\d+ (millisecond|second|minute|hour|day)s?")

#: For ``--help`` of a job.
HELP = """\
streams:
  With --trigger the job is a Structured Streaming query. available-now applies what is there, and ends; an interval,
  such as "10 seconds", goes on until it is stopped. The checkpoint folder knows what was applied. Killed at any point
  and started again with the same one, the job applies each micro-batch exactly once: its number is noted in the commit,
  as txnAppId (id of the query) and txnVersion. A checkpoint belongs to one query and one table, and one process at a
  time uses it. SIGTERM and Ctrl-C let a batch that has its lock come to its end; one that computes, or waits for it,
  gives up. A second signal, 10 seconds later, cancels. The JVM of spark-submit, if it gets the signal, ends at once, as
  if killed.
"""


@dataclass(frozen=True)
class StreamArguments:
    """How a stream runs.

    Attributes:
        trigger: ``available-now``, or an interval that Spark understands.
        checkpoint: URI of the folder in which the stream notes how far it is.
        skip_missing: Whether to skip files of a micro-batch that were deleted before they were read.

    """

    trigger: str
    checkpoint: str
    skip_missing: bool = False


def add_stream(parser: JobParser) -> None:
    """Add whether the job is a stream."""
    add = parser.add_argument
    add(
        "--trigger", type=_trigger, metavar="WHEN",
        help=f'run as a stream: {AVAILABLE_NOW}, or an interval such as "10 seconds"',
    )  # fmt: skip
    add("--checkpoint", type=text, metavar="URI", help="folder in which a stream notes how far it is; of its own")
    add(
        "--skip-missing", action="store_true",
        help="skip source files that were deleted before the stream read them, and count them (missing_files); by "
        "default the stream stops",
    )  # fmt: skip


def stream_of(found: argparse.Namespace) -> StreamArguments | None:
    """Return how the stream runs that a command line asks for; None: it asks for none.

    Raises:
        ArgumentsError: one of the two arguments is missing.

    """
    if (found.trigger is None) != (found.checkpoint is None):
        raise ArgumentsError("--trigger and --checkpoint belong together: give both, or none")
    if found.skip_missing and (found.trigger is None or not found.source):
        raise ArgumentsError("--skip-missing is for a stream of files: give --trigger and --source with it")
    return None if found.trigger is None else StreamArguments(found.trigger, found.checkpoint, found.skip_missing)


def positive(value: str) -> int:
    """Parse a whole number from 1."""
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is no number from 1")
    return int(value)


def _trigger(value: str) -> str:
    if value != AVAILABLE_NOW and not _INTERVAL.fullmatch(value):
        raise argparse.ArgumentTypeError(f'{value!r} is neither {AVAILABLE_NOW} nor an interval such as "10 seconds"')
    return value
