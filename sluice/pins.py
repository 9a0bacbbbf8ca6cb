"""``sluice pins``: lists a table's pins, adds one, removes one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lock_manager import LockSettings, ZookeeperLockManager
from sluice.audit.pins import FoundPin, examine_pins, problems_of
from sluice.console import table_console
from sluice.interrupts import interruptible
from sluice.local.spark import start_spark

_NAME = "sluice pins"
_TABLES = "tables and versions"


def change_pins(
    table: str,
    settings: LockSettings,
    conf: Mapping[str, str],
    *,
    add: str | None,
    expires: str | None,
    remove: str | None,
) -> None:
    """Add a pin of a table's newest version, remove one, or both.

    Args:
        table: location or name in the catalog.
        settings: of the lock.
        conf: Spark's settings.
        add: name of a pin to make; None: none.
        expires: until when it is kept: a time, or how long.
        remove: name of a pin to remove; None: none.

    Raises:
        PinError: see :func:`writer_jobs.take_pin` and :func:`writer_jobs.remove_pin`.
        SluiceError: no table, no lock, no jars.

    """
    from writer_jobs import remove_pin, take_pin  # noqa: PLC0415 (needs PySpark)
    from writer_jobs.job.time_arguments import timestamp_or_duration  # noqa: PLC0415

    try:
        until = None if expires is None else timestamp_or_duration(expires)
    except argparse.ArgumentTypeError as error:
        raise typer.BadParameter(str(error), param_hint="--expires") from error
    settings = replace(settings, job=settings.job or _NAME)
    with interruptible(), ZookeeperLockManager(settings) as manager:
        # Before Spark is started, which takes longer.
        manager.connect(settings.timeout_seconds)
        with start_spark(_NAME, conf) as spark:
            if remove is not None:
                remove_pin(spark, table, remove, manager=manager)
            if add is not None and until is not None:
                take_pin(spark, {table: None}, name=add, expires_at=until, manager=manager)


def print_pins(table: str, storage_options: Mapping[str, str], *, as_json: bool) -> bool:
    """Print a table's pins, and tell whether all hold that have not expired.

    Args:
        table: ``s3://…``, ``s3a://…``, ``file:…`` or a path.
        storage_options: as ``deltalake`` takes them.
        as_json: print JSON.

    Raises:
        LogAccessError: the store cannot be listed or read.

    """
    found, damaged = examine_pins(table, storage_options)
    problems = [*problems_of(found), *damaged]
    if as_json:
        pins = [{**each.pin.to_json(), "expired": each.has_expired, "problem": each.problem} for each in found]
        print(json.dumps({"table": table, "ok": not problems, "pins": pins, "damaged": damaged}, indent=2))
        return not problems
    console = Console(highlight=False)
    if found:
        table_console(console).print(_table(found))
    else:
        console.print(f"{table} has no pins", soft_wrap=True)
    for problem in problems:
        console.print(Text.assemble(("problem: ", "bold red"), problem), soft_wrap=True)
    return not problems


def _table(found: list[FoundPin]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("pin", "up to event time", "made", "expires", _TABLES, "holds"):
        # A URI stays whole where the terminal has room for nothing else.
        table.add_column(column, overflow="fold", no_wrap=column == _TABLES)
    for each in found:
        pin = each.pin
        table.add_row(
            pin.name,
            "all rows" if pin.at is None else f"{pin.at:%Y-%m-%d %H:%M:%S%z}",
            f"{pin.created_at:%Y-%m-%d %H:%M}",
            f"{pin.expires_at:%Y-%m-%d %H:%M}",
            "\n".join(f"{pinned.table} @{pinned.version}" for pinned in pin.tables),
            "expired" if each.has_expired else "yes" if each.problem is None else "NO",
        )
    return table
