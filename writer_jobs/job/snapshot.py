"""The job ``snapshot.py``: its command line and its work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from lock_manager.errors import PinError
from lock_manager.table_records.pins import Pin, PinnedTable, check_name
from writer_jobs.delta.locate import locate_table
from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import JobArguments, JobParser, build_arguments, check_location, nonblank
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.job.time_arguments import timestamp, timestamp_or_duration
from writer_jobs.pins.copies import copy_pinned, make_view, refuse_equal_names
from writer_jobs.pins.read import changed_before, changed_since, refuse_missing_files
from writer_jobs.pins.take import find_pin, list_pins, take_pin

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
  A pin is made if, according to the tables' logs, the watermark of each stream that writes one of the tables is past
  --at. Otherwise the job ends with exit code 2, and names the stream. Rows with an event time up to --at that arrive
  after the pin are late, and do not belong to it.
  If the tables have a pin with this name that has not expired, the job reads it: it takes no lock, changes nothing, and
  does not extend the pin. Then --table must name exactly the pin's tables. With --at the job checks that the pin has
  this moment.
  If delta.deletedFileRetentionDuration and delta.logRetentionDuration of its tables are too short, a pin raises them by
  a commit; when the last pin is removed, they get their previous values. `sluice pins TABLE` lists and removes pins.

standard output has one JSON object per line. For each table {"event": "pinned", "table", "version", "made": whether
this run made the pin, "expires_at", "newest_version", ...}. "rows_new" and "rows_gone" count rows up to --at that were
added and removed since the pin was made (a replaced row counts for both). "files" is the number of files of the pinned
and the newest version together, "files_read" the number of those that the comparison read. "passed_version" is the
first version at which all streams were past --at. "rows_new_before" and "rows_gone_before" count the changes from that
version to the pin. Each of these three fields is null if it is unknown.
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
            check_location(table)
        if len(set(self.tables)) < len(self.tables):
            raise ArgumentsError("--table names the same table twice: give each table once")
        if len(self.event_times) not in (0, 1, len(self.tables)):
            raise ArgumentsError("give --event-time once for all tables, or once for each, in the same order")
        if self.expires is not None and bool(self.event_times) != (self.at is not None):
            raise ArgumentsError("--at and --event-time belong together: give both, or neither to pin all rows")


def parse_arguments(argv: Sequence[str] | None = None) -> SnapshotArguments:
    """Parse the command line; see :class:`JobParser`. :meth:`SnapshotArguments.check` checks the values."""
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG)
    parser.add_table(several=True)
    add = parser.add_argument
    add("--pin", required=True, type=nonblank, metavar="NAME", help="name of the pin: letters, digits, dots, - and _")
    add("--at", type=timestamp, metavar="TIME", help="rows up to this event time, such as 2013-02-01T00:00:00Z")
    add(
        "--event-time", dest="event_times", action="append", default=[], type=nonblank, metavar="COL",
        help="column with the time of the event: once for all tables, or once for each",
    )  # fmt: skip
    add(
        "--expires", type=timestamp_or_duration, metavar="TIME",
        help='expiry of the pin: a time, or a duration from now such as "30 days"; without this option the job only '
        "reads an existing pin",
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
    parser.add_report()
    options = parser.parse_args(argv)
    options.table = options.tables[0]
    return build_arguments(SnapshotArguments, options)


def _snapshot(context: JobContext[SnapshotArguments]) -> None:
    arguments, output = context.arguments, context.output
    pin, is_new = _pin(context)
    context.report(pinned=pin.to_json())
    if arguments.copy_to is not None or arguments.views is not None:
        refuse_equal_names(pin)
    if not is_new:
        for pinned_table in pin.tables:
            refuse_missing_files(context.spark, pin, pinned_table)
    # The counts come last, because they also read older versions, which may no longer exist.
    for pinned_table in pin.tables:
        if arguments.copy_to is not None:
            target, commit = copy_pinned(context.spark, pin, pinned_table, arguments.copy_to, manager=context.manager)
            output.event("copied", table=pinned_table.table, to=target, rows=commit.rows)
        if arguments.views is not None:
            output.event(
                "view", table=pinned_table.table, view=make_view(context.spark, pin, pinned_table, arguments.views)
            )
    for pinned_table in pin.tables:
        output.event("pinned", **_pinned_fields(context.spark, pin, pinned_table, is_new=is_new))


def _pin(context: JobContext[SnapshotArguments]) -> tuple[Pin, bool]:
    """Return the pin, and whether this run made it."""
    arguments, spark = context.arguments, context.spark
    if any(pin.name == arguments.pin for pin in list_pins(spark, arguments.table)):
        try:
            pin = find_pin(spark, arguments.table, arguments.pin)
        except PinError:
            # The pin has expired or is incomplete, so no job can read it.
            if arguments.expires is None:
                raise
        else:
            pin.check_tables_and_moment([locate_table(spark, table) for table in arguments.tables], arguments.at)
            return pin, False
    if arguments.expires is None:
        raise PinError(f"{arguments.table} has no pin {arguments.pin}: give --expires to make one")
    pin = take_pin(
        spark,
        arguments.event_time_of,
        name=arguments.pin,
        at=arguments.at,
        expires_at=arguments.expires,
        manager=context.manager,
        streams_left_out=arguments.streams_left_out,
        without_watermarks=arguments.without_watermarks,
    )
    return pin, True


def _pinned_fields(spark: SparkSession, pin: Pin, pinned_table: PinnedTable, *, is_new: bool) -> dict[str, Any]:
    """Return the fields of the event ``pinned``, with the changes of the table's rows after and before the pin."""
    later_changes = changed_since(spark, pin, pinned_table.location)
    earlier_changes = changed_before(spark, pin, pinned_table.location)
    return {
        "table": pinned_table.table,
        "version": pinned_table.version,
        "made": is_new,
        "expires_at": pin.expires_at.isoformat(),
        "newest_version": later_changes.version,
        "rows_new": later_changes.rows_new,
        "rows_gone": later_changes.rows_gone,
        "files": later_changes.files,
        "files_read": later_changes.files_read,
        "passed_version": pinned_table.passed_version,
        "rows_new_before": None if earlier_changes is None else earlier_changes.rows_new,
        "rows_gone_before": None if earlier_changes is None else earlier_changes.rows_gone,
    }


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _snapshot)
