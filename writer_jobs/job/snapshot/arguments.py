"""The command line of ``snapshot.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lock_manager import canonical_table_uri
from lock_manager.table_records.pins import check_name
from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import NAME_WITH_SCHEME, JobArguments, JobParser, build_arguments, nonblank
from writer_jobs.job.time_arguments import timestamp, timestamp_or_duration

#: Name of the job in its help and its messages.
PROGRAM = "snapshot.py"
_DESCRIPTION = """\
Pin one or several Delta tables at one moment, under the lock on all of them, and read the same rows again until the pin
expires, also if the tables are written, rewritten and vacuumed in the meantime.
"""
_EPILOG = """\
examples:
  # all events of January in two tables that streams write, for a month
  spark-submit $(sluice submit-args) writer_jobs/snapshot.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/departures --event-time departed_at --table s3a://lake/arrivals --event-time arrived_at \\
      --at 2013-02-01T00:00:00Z --pin 2013-01 --expires "30 days"

  # the same rows again, copied to new tables; also counts the rows that were added or changed since
  spark-submit $(sluice submit-args) writer_jobs/snapshot.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/departures --table s3a://lake/arrivals --pin 2013-01 --copy-to s3a://lake/january/

rules:
  The job pins the tables' newest versions. A row belongs to the pin if its event time is --at or earlier; without --at
  all rows do.
  A pin is made if the watermark of each stream that writes one of the tables is past --at, by the table's log.
  Otherwise the job ends with exit code 2, and names the stream. Rows that arrive later for that moment are late.
  If the tables have a pin with this name, the job reads it: it takes no lock, changes nothing, and does not extend the
  pin. Name the pin's tables. Give --at to make sure that the pin is of this moment.
  If delta.deletedFileRetentionDuration and delta.logRetentionDuration of its tables are too short, a pin raises them by
  a commit; when the last pin is removed, they get their previous values. `sluice pins TABLE` lists and removes pins.

standard output has one JSON object per line. For each table {"event": "pinned", "table", "version", "made": whether
this run made the pin, "expires_at", "newest_version"}; of the moment's rows "rows_new" and "rows_gone" since the pin
was made (a replaced row counts for both), "files" of both versions and "files_read" of them; and "rows_new_before" and
"rows_gone_before" from "passed_version", in which all streams were past the moment, to the pin, or null if unknown.
For each copy {"event": "copied", "table", "to", "rows"}, for each view {"event": "view", "table", "view"}.
"""


@dataclass(frozen=True, kw_only=True)
class SnapshotArguments(JobArguments):
    """The arguments of ``snapshot.py``; see its ``--help``."""

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
    def report_fields(self) -> dict[str, Any]:
        """Fields of the report that are known at the start of the job; JSON values."""
        return {"tables": self.tables, "pin": self.pin, "at": None if self.at is None else self.at.isoformat()}

    @property
    def event_time_of(self) -> dict[str, str | None]:
        """The event time column of each table; None for a table without one."""
        columns: tuple[str | None, ...] = self.event_times or (None,)
        return dict(zip(self.tables, columns * len(self.tables) if len(columns) == 1 else columns, strict=True))

    def check(self) -> None:
        """Check the arguments; see :meth:`JobArguments.check`."""
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
    """Parse the command line; see :meth:`JobParser.parse`. :meth:`SnapshotArguments.check` checks the values."""
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG)
    parser.add_table(several=True)
    add = parser.add_argument
    add("--pin", required=True, type=nonblank, metavar="NAME", help="name of the pin: letters, digits, dots, dashes")
    add("--at", type=timestamp, metavar="TIME", help="rows up to this event time, such as 2013-02-01T00:00:00Z")
    add(
        "--event-time", dest="event_times", action="append", default=[], type=nonblank, metavar="COL",
        help="column with the time of the event: once for all tables, or once for each",
    )  # fmt: skip
    add(
        "--expires", type=timestamp_or_duration, metavar="TIME",
        help='expiry of the pin: a time, or "30 days" from now; without it the job reads a pin and makes none',
    )  # fmt: skip
    add(
        "--leave-out-stream", dest="streams_left_out", action="append", default=[], type=nonblank, metavar="ID",
        help="a stream that has ended, whose watermark is ignored; may be repeated",
    )  # fmt: skip
    add(
        "--without-watermarks", action="store_true",
        help="also pin tables in whose log no stream has noted a watermark",
    )  # fmt: skip
    add(
        "--copy-to", type=nonblank, metavar="URI",
        help="folder: write the pinned rows of each table into a new table there",
    )  # fmt: skip
    add(
        "--views", type=nonblank, metavar="DATABASE",
        help="create a view of the pinned rows of each table in this database",
    )  # fmt: skip
    parser.add_lock_timeout()
    parser.add_report()
    parser.add_verbose()
    options = parser.parse(argv)
    options.table = options.tables[0]
    return build_arguments(SnapshotArguments, options)
