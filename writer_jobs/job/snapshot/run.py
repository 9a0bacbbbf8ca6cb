"""The work of ``snapshot.py``."""

from __future__ import annotations

from lock_manager.errors import PinError
from lock_manager.table_records.pins import Pin
from writer_jobs.delta.locate import locate_table
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.job.snapshot.arguments import PROGRAM, SnapshotArguments, parse_arguments
from writer_jobs.job.snapshot.pinned_line import pinned_line
from writer_jobs.pins.copies import copy_pinned, make_view, refuse_equal_names
from writer_jobs.pins.read import refuse_missing_files
from writer_jobs.pins.take import find_pin, list_pins, take_pin


def _snapshot(context: JobContext[SnapshotArguments]) -> None:
    arguments, output = context.arguments, context.output
    pin, made = _pin(context)
    context.report(pinned=pin.to_json())
    if arguments.copy_to is not None or arguments.views is not None:
        refuse_equal_names(pin)
    if not made:
        for pinned in pin.tables:
            refuse_missing_files(context.spark, pin, pinned)
    # Before the counts: these read older versions, too, which may be gone.
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
            output.said("copied", table=pinned.table, to=target, rows=copied.rows)
        if arguments.views is not None:
            output.said("view", table=pinned.table, view=make_view(context.spark, pin, pinned, arguments.views))
    for pinned in pin.tables:
        output.said("pinned", **pinned_line(context.spark, pin, pinned, made=made))


def _pin(context: JobContext[SnapshotArguments]) -> tuple[Pin, bool]:
    """Return the pin, and whether it was made now."""
    arguments, spark = context.arguments, context.spark
    if any(pin.name == arguments.pin for pin in list_pins(spark, arguments.table)):
        try:
            pin = find_pin(spark, arguments.table, arguments.pin)
        except PinError:
            # It has expired, or was never whole: nobody could read it.
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


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _snapshot)
