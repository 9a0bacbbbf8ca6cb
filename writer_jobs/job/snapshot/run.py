"""The function of ``snapshot.py``."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from lock_manager.errors import PinError
from lock_manager.table_records.pins import Pin, PinnedTable
from writer_jobs.delta.locate import locate_table
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.job.snapshot.arguments import PROGRAM, SnapshotArguments, parse_arguments
from writer_jobs.pins.copies import copy_pinned, make_view, refuse_equal_names
from writer_jobs.pins.read import changed_before, changed_since, refuse_missing_files
from writer_jobs.pins.take import find_pin, list_pins, take_pin


def _snapshot(context: JobContext[SnapshotArguments]) -> None:
    arguments, output = context.arguments, context.output
    pin, is_new = _pin(context)
    context.report(pinned=pin.to_json())
    if arguments.copy_to is not None or arguments.views is not None:
        refuse_equal_names(pin)
    if not is_new:
        for pinned in pin.tables:
            refuse_missing_files(context.spark, pin, pinned)
    # The counts come last, because they also read older versions, which may no longer exist.
    for pinned in pin.tables:
        if arguments.copy_to is not None:
            target, copied = copy_pinned(
                context.spark,
                pin,
                pinned,
                arguments.copy_to,
                manager=context.manager,
                lock_timeout_seconds=arguments.lock_timeout,
            )
            output.event("copied", table=pinned.table, to=target, rows=copied.rows)
        if arguments.views is not None:
            output.event("view", table=pinned.table, view=make_view(context.spark, pin, pinned, arguments.views))
    for pinned in pin.tables:
        output.event("pinned", **_pinned_fields(context.spark, pin, pinned, is_new=is_new))


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
        lock_timeout_seconds=arguments.lock_timeout,
        streams_left_out=arguments.streams_left_out,
        without_watermarks=arguments.without_watermarks,
    )
    return pin, True


def _pinned_fields(spark: SparkSession, pin: Pin, pinned: PinnedTable, *, is_new: bool) -> dict[str, Any]:
    """Return the fields of the event ``pinned``, with the changes of the table's rows after and before the pin."""
    later_changes = changed_since(spark, pin, pinned.location)
    earlier_changes = changed_before(spark, pin, pinned.location)
    return {
        "table": pinned.table,
        "version": pinned.version,
        "made": is_new,
        "expires_at": pin.expires_at.isoformat(),
        "newest_version": later_changes.version,
        "rows_new": later_changes.rows_new,
        "rows_gone": later_changes.rows_gone,
        "files": later_changes.files,
        "files_read": later_changes.files_read,
        "passed_version": pinned.passed_version,
        "rows_new_before": None if earlier_changes is None else earlier_changes.rows_new,
        "rows_gone_before": None if earlier_changes is None else earlier_changes.rows_gone,
    }


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _snapshot)
