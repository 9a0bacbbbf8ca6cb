"""Command line arguments of jobs that apply changes of another store, once or as a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import APPLIED, JobParser, in_identity, number
from writer_jobs.job.inputs.file_arguments import FileJobArguments, add_new_table, add_report_and_reader_options
from writer_jobs.job.stream_arguments import StreamArguments, add_stream
from writer_jobs.merge.apply import RETENTION

_RETENTION_DAYS = RETENTION / timedelta(days=1)
_MOST_DAYS = 36_500


def text_in_identity(name: str) -> dict[str, Any]:
    """Return the metadata of a field that is recorded in a run's identity as text; None as an empty text."""

    def to_text(value: Any) -> str:
        return ",".join(value) if isinstance(value, tuple) else "" if value is None else str(value)

    return in_identity(name, to_text)


@dataclass(frozen=True, kw_only=True)
class ChangesJobArguments(FileJobArguments):
    """The arguments of a job that applies changes, once or as a stream."""

    stored_as_scd_type: int = field(metadata=APPLIED | text_in_identity("scd-type"))
    tombstone_retention: timedelta = field(metadata=APPLIED)
    stream: StreamArguments | None
    max_files_per_batch: int | None

    @property
    def commits(self) -> int | None:
        """1; None for a stream, which commits until it stops."""
        return 1 if self.stream is None else None

    def check(self) -> None:
        """Check the arguments; see :meth:`JobArguments.check`."""
        super().check()
        if self.stream is None:
            if self.max_files_per_batch is not None:
                raise ArgumentsError("--max-files-per-batch is for a stream: give --trigger with it")
            return
        if self.run_id is not None:
            raise ArgumentsError(
                "give --run-id or --trigger, not both: the checkpoint of a stream already prevents repetitions"
            )
        if len(self.sources) > 1:
            raise ArgumentsError("with --trigger, give one --source: a folder, or a glob in quotes")


def add_changes(parser: JobParser, retained_changes: str) -> None:
    """Add the options of a job that applies changes, except its source and its own options.

    ``retained_changes`` is a noun, for the help: the changes that the job stores for ``--tombstone-days``.
    """
    days = number(float, 0, _MOST_DAYS, f"a number of days from 0 to {_MOST_DAYS}")
    add = parser.add_argument
    add(
        "--scd-type", dest="stored_as_scd_type", default=1, type=int, choices=(1, 2),
        help="1: the newest row of each key (the default); 2: every row that a key had, valid from __START_AT "
        "(inclusive) to __END_AT (exclusive)",
    )  # fmt: skip
    add_new_table(parser)
    add(
        "--tombstone-days", dest="tombstone_retention", default=RETENTION, metavar="DAYS",
        type=lambda argument: timedelta(days=days(argument)),
        help=f"days to store {retained_changes} ({_RETENTION_DAYS:g}); no change may arrive later than that",
    )  # fmt: skip
    add("--run-id", metavar="ID", help="name of this load, unique in the table; the load is applied once")
    add_stream(parser)
    add_report_and_reader_options(parser)
