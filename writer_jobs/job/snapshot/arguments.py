"""Command line of ``snapshot.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lock_manager import canonical_table_uri
from lock_manager.table_records.pins import check_name
from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import NAME_WITH_SCHEME, JobArguments, JobParser, text
from writer_jobs.job.exit_codes import HELP
from writer_jobs.job.moments import moment, moment_or_span

#: Name of the job in its help and its messages.
PROGRAM = "snapshot.py"
_DESCRIPTION = """\
Pin one or several Delta tables as they are at one moment, under the lock on all of them, and read the same rows again
until the pin expires, whatever is written, rewritten and vacuumed meanwhile.
"""
_EPILOG = """\
examples:
  # all that happened in January, of two tables that streams write; kept for a month
  spark-submit $(sluice submit-args) writer_jobs/snapshot.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/departures --event-time departed_at --table s3a://lake/arrivals --event-time arrived_at \\
      --at 2013-02-01T00:00:00Z --pin 2013-01 --expires "30 days"

  # the same rows again, as tables of their own; and how many rows have come or changed since
  spark-submit $(sluice submit-args) writer_jobs/snapshot.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/departures --table s3a://lake/arrivals --pin 2013-01 --copy-to s3a://lake/january/

rules:
  The tables' newest versions are pinned. A row belongs to the pin if its event time is --at or before; without --at
  each row does.
  A pin is made when the watermark of each stream that writes one of the tables is past --at, by the table's log. Else
  the job ends with exit code 2, and names the stream. What comes later for that moment is late.
  If the tables have a pin of this name, it is read; nothing is locked or changed, nor is it kept for longer. Say its
  tables, and --at if you want to make sure that it is of this moment.
  A pin raises delta.deletedFileRetentionDuration and delta.logRetentionDuration of its tables if they are too short, by
  a commit; when the last pin is gone, they are as before. `sluice pins TABLE` lists and removes pins.

standard output has one JSON object per line. For each table {"event": "pinned", "table", "version", "made": whether it
was made now, "expires_at", "newest_version"}; of rows that belong to the moment "rows_new" and "rows_gone" since the
pin was made (one that was replaced counts for both), "files" of both versions and "files_read" of them; what became of
such rows before, since all streams were past the moment in "passed_version": "rows_new_before", "rows_gone_before", or
null if that is not known. For each copy {"event": "copied", "table", "to", "rows"}, for each view {"event": "view",
"table", "view"}.
standard error has one sentence if the job fails; the stack trace with --verbose.
The environment may set SLUICE_ZK_HOSTS, SLUICE_SESSION_TIMEOUT_SECONDS and SLUICE_LOCK_ROOT.

"""


@dataclass(frozen=True, kw_only=True)
class SnapshotArguments(JobArguments):
    """What ``snapshot.py`` was asked to do; see its ``--help``."""

    tables: tuple[str, ...]
    event_times: tuple[str, ...]
    at: datetime | None
    pin: str
    expires: datetime | None
    streams_left_out: tuple[str, ...]
    without_watermarks: bool
    copy_to: str | None
    views: str | None

    @property
    def facts(self) -> dict[str, Any]:
        """What the report says from the start."""
        return {"tables": self.tables, "pin": self.pin, "at": None if self.at is None else self.at.isoformat()}

    @property
    def event_time_of(self) -> dict[str, str | None]:
        """The tables, each with its event time; None where none is given."""
        given: tuple[str | None, ...] = self.event_times or (None,)
        return dict(zip(self.tables, given * len(self.tables) if len(given) == 1 else given, strict=True))

    def check(self) -> None:
        """Check what can be checked without asking anybody.

        Raises:
            SluiceError: something does not make sense; the message is one sentence.

        """
        super().check()
        check_name(self.pin)
        for table in self.tables[1:]:
            if NAME_WITH_SCHEME.match(table):
                canonical_table_uri(table)
        if len(set(self.tables)) < len(self.tables):
            raise ArgumentsError("--table names a table twice")
        if len(self.event_times) not in (0, 1, len(self.tables)):
            raise ArgumentsError("give --event-time once for all tables, or once for each, in the same order")
        if self.expires is not None and bool(self.event_times) != (self.at is not None):
            raise ArgumentsError("--at and --event-time belong together: give both, or neither to pin all rows")


def parse_arguments(argv: Sequence[str] | None = None) -> SnapshotArguments:
    """Parse the command line; :meth:`SnapshotArguments.check` looks at the values.

    Raises:
        ArgumentsError: it cannot be parsed.
        HelpShown: it asked for help.

    """
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG + HELP)
    parser.add_place(several=True)
    add = parser.add_argument
    add("--pin", required=True, type=text, metavar="NAME", help="name of the pin: letters, digits, dots, dashes")
    add("--at", type=moment, metavar="TIME", help="rows up to this event time, such as 2013-02-01T00:00:00Z")
    add(
        "--event-time", action="append", default=[], type=text, metavar="COL",
        help="when a row happened: for all tables, or once for each",
    )  # fmt: skip
    add(
        "--expires", type=moment_or_span, metavar="TIME",
        help='until when it is kept: a time, or "30 days" from now; without it no pin is made, and one is read only',
    )  # fmt: skip
    add(
        "--leave-out-stream", action="append", default=[], type=text, metavar="ID",
        help="a stream that has ended, whose watermark does not count; may be repeated",
    )  # fmt: skip
    add("--without-watermarks", action="store_true", help="also tables in whose log no stream has noted a watermark")
    add("--copy-to", type=text, metavar="URI", help="folder: write the pinned rows of each table into a table there")
    add("--views", type=text, metavar="DATABASE", help="make a view of the pinned rows of each table in this database")
    parser.add_lock_timeout()
    parser.add_report()
    parser.add_verbose()
    found = parser.parse(argv)
    return SnapshotArguments(
        zookeeper=found.zookeeper,
        table=found.table[0],
        lock_timeout=found.lock_timeout,
        report=found.report,
        metrics=found.metrics,
        verbose=found.verbose,
        tables=tuple(found.table),
        event_times=tuple(found.event_time),
        at=found.at,
        pin=found.pin,
        expires=found.expires,
        streams_left_out=tuple(found.leave_out_stream),
        without_watermarks=found.without_watermarks,
        copy_to=found.copy_to,
        views=found.views,
    )
