"""``sluice pins``: lists a table's pins, adds a pin, removes a pin."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace

import typer
from rich.table import Table

from lock_manager import LockSettings
from lock_manager.managers import manager_of
from sluice.audit.pins import PinStatus, examine_pins, pin_problems
from sluice.console import make_table, plain_console, print_problems, table_console
from sluice.interrupts import interruptible
from sluice.local.spark import start_spark

_COMMAND_NAME = "sluice pins"
_TABLES_COLUMN = "tables and versions"


def change_pins(
    table: str,
    settings: LockSettings,
    conf: Mapping[str, str],
    *,
    add: str | None,
    expires: str | None,
    remove: str | None,
) -> None:
    """Remove a pin, add a pin of the table's newest version, or both.

    ``add`` and ``remove`` are names of pins. ``expires`` is a time, or a duration from now.

    Raises:
        BadParameter: ``expires`` is malformed.
        PinError: See :func:`writer_jobs.take_pin` and :func:`writer_jobs.remove_pin`.
        SluiceError: There is no table, the lock was not acquired, or the jars are missing.

    """
    from writer_jobs import remove_pin, take_pin  # noqa: PLC0415 (needs PySpark)
    from writer_jobs.job.time_arguments import timestamp_or_duration  # noqa: PLC0415

    try:
        expires_at = None if expires is None else timestamp_or_duration(expires)
    except argparse.ArgumentTypeError as error:
        raise typer.BadParameter(str(error), param_hint="--expires") from error
    settings = replace(settings, job=settings.job or _COMMAND_NAME)
    with interruptible(), manager_of(settings) as manager:
        # Connect before Spark starts, so that a wrong connection string is reported early.
        manager.connect(settings.timeout_seconds)
        with start_spark(_COMMAND_NAME, conf) as spark:
            if remove is not None:
                remove_pin(spark, table, remove, manager=manager)
            if add is not None and expires_at is not None:
                take_pin(spark, {table: None}, name=add, expires_at=expires_at, manager=manager)


def print_pins(table: str, storage_options: Mapping[str, str], *, as_json: bool) -> bool:
    """Print a table's pins and their problems. Return whether there are no problems.

    Raises:
        AuditError: There is no Delta table.
        LogAccessError: The store cannot be listed or read.

    """
    pins, file_problems = examine_pins(table, storage_options)
    problems = [*pin_problems(pins), *file_problems]
    if as_json:
        entries = [{**entry.pin.to_json(), "expired": entry.has_expired, "problem": entry.problem} for entry in pins]
        print(json.dumps({"table": table, "ok": not problems, "pins": entries, "damaged": file_problems}, indent=2))
        return not problems
    console = plain_console()
    if pins:
        table_console(console).print(_pin_table(pins))
    else:
        console.print(f"{table} has no pins", soft_wrap=True)
    print_problems(problems, console)
    return not problems


def _pin_table(pins: list[PinStatus]) -> Table:
    # The column of URIs is the last one to be folded on a narrow terminal.
    table = make_table(
        ("pin", "up to event time", "created", "expires", _TABLES_COLUMN, "readable"), no_wrap=(_TABLES_COLUMN,)
    )
    for entry in pins:
        pin = entry.pin
        table.add_row(
            pin.name,
            "all rows" if pin.at is None else f"{pin.at:%Y-%m-%d %H:%M:%S%z}",
            f"{pin.created_at:%Y-%m-%d %H:%M}",
            f"{pin.expires_at:%Y-%m-%d %H:%M}",
            "\n".join(f"{pinned.table} @{pinned.version}" for pinned in pin.tables),
            "expired" if entry.has_expired else "yes" if entry.problem is None else "NO",
        )
    return table
