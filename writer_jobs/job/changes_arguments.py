"""What the command lines of jobs share that apply changes of another store: once, or as a stream."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import JobParser
from writer_jobs.job.inputs.file_arguments import (
    FileJobArguments,
    add_new_table,
    add_reader_options,
    shared_by_file_jobs,
)
from writer_jobs.job.stream_arguments import StreamArguments, add_stream, positive, stream_of
from writer_jobs.merge.apply import RETENTION

_RETENTION_DAYS = RETENTION / timedelta(days=1)
_MOST_DAYS = 36_500


@dataclass(frozen=True, kw_only=True)
class ChangesJobArguments(FileJobArguments):
    """What a job is told that applies changes.

    Attributes:
        stored_as_scd_type: 1 or 2.
        tombstone_days: how long is remembered what rows do not tell.
        stream: how the stream runs; None: it is none.
        max_files_per_batch: of a stream; None: all that are there.

    """

    stored_as_scd_type: int
    tombstone_days: float
    stream: StreamArguments | None
    max_files_per_batch: int | None

    @property
    def commits(self) -> int | None:
        """One, or those of a stream until it ends."""
        return 1 if self.stream is None else None

    @property
    def tombstone_retention(self) -> timedelta:
        """How long is remembered what rows do not tell."""
        return timedelta(days=self.tombstone_days)

    def check(self) -> None:
        """Check what can be checked without asking anybody.

        Raises:
            SluiceError: something does not make sense; the message is one sentence.

        """
        super().check()
        if self.stream is None:
            if self.max_files_per_batch is not None:
                raise ArgumentsError("--max-files-per-batch is of a stream: give --trigger, too")
            return
        if self.run_id is not None:
            raise ArgumentsError("give --run-id or --trigger, not both: a stream's checkpoint has it applied once")
        if len(self.sources) > 1:
            raise ArgumentsError("with --trigger, --source is one folder or one glob in quotes")


def add_how_changes_are_stored(parser: JobParser) -> None:
    """Add what the table becomes."""
    parser.add_argument(
        "--scd-type", default=1, type=int, choices=(1, 2),
        help="1: the newest row of each key (the default); 2: every row that a key had, valid from __START_AT up to, "
        "and without, __END_AT",
    )  # fmt: skip
    add_new_table(parser)


def add_rest(parser: JobParser, remembered: str) -> None:
    """Add how long is remembered what rows do not tell, and what all such jobs have.

    Args:
        parser: of the job.
        remembered: what it is.

    """
    add = parser.add_argument
    add(
        "--tombstone-days", default=_RETENTION_DAYS, type=_days, metavar="DAYS",
        help=f"how long {remembered} remembered ({_RETENTION_DAYS:g}): no change may come later than that",
    )  # fmt: skip
    parser.add_lock_timeout()
    add("--run-id", metavar="ID", help="name of this load, unique in the table: it is applied once")
    add_stream(parser)
    add("--max-files-per-batch", type=positive, metavar="N", help="most files of a stream's micro-batch")
    parser.add_report()
    add_reader_options(parser)
    parser.add_verbose()


def shared_by_changes_jobs(found: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of :class:`ChangesJobArguments` that a command line has.

    Raises:
        ArgumentsError: one of a stream's two arguments is missing.

    """
    return {
        "stored_as_scd_type": found.scd_type,
        "tombstone_days": found.tombstone_days,
        "stream": stream_of(found),
        "max_files_per_batch": found.max_files_per_batch,
        **shared_by_file_jobs(found),
    }


def _days(value: str) -> float:
    try:
        days = float(value)
    except ValueError:
        days = -1.0
    if not 0 <= days <= _MOST_DAYS:
        raise argparse.ArgumentTypeError(f"{value!r} is no number of days from 0 to {_MOST_DAYS}")
    return days
