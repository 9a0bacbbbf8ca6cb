"""Reads a table's pins without Spark, and checks that the pinned versions can be read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lock_manager.errors import PinError
from lock_manager.table_records.pins import PINS_FOLDER, Pin
from sluice.audit.log_files import existing_versions
from sluice.audit.log_folder import LogFolder, column_values, error_text, open_log, open_table

# Delta's properties of retention, and their defaults.
_RETENTIONS = {
    "delta.deletedFileRetentionDuration": "interval 1 week",
    "delta.logRetentionDuration": "interval 30 days",
}
_INTERVAL = re.compile(r"interval (\d+) (second|minute|hour|day|week)s?", re.IGNORECASE)


@dataclass(frozen=True)
class PinStatus:
    """A pin of a table, and the result of its check.

    Attributes:
        has_expired: Whether the pin has expired. An expired pin is not checked.
        problem: One sentence; None if the pinned version can be read, and no retention of the table endangers it.

    """

    pin: Pin
    has_expired: bool
    problem: str | None


def examine_pins(
    table: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
) -> tuple[list[PinStatus], list[str]]:
    """Read a table's pins, and check that log and data files of each pinned version exist.

    Also check that the table's retention is at least as long as the pin lasts. Deletion vectors are not checked.

    Returns:
        The pins, ordered by name, and one sentence for each file that cannot be parsed as a pin.

    Raises:
        LogAccessError: The store cannot be listed or read.
        AuditError: There is no Delta table.

    """
    log = open_log(table, storage_options)
    existing_versions(log.names(), log.uri)
    folder = open_log(table, storage_options, folder=PINS_FOLDER)
    pins, file_problems = read_pins(folder)
    table_files, newest = (folder.files_of_table(), _newest_table(folder)) if pins else (set(), None)
    statuses = []
    for pin in pins:
        has_expired = pin.has_expired()
        problem = None if has_expired else _pin_problem(folder, pin, table_files, newest)
        statuses.append(PinStatus(pin, has_expired, problem))
    return statuses, file_problems


def read_pins(folder: LogFolder) -> tuple[list[Pin], list[str]]:
    """Read the files of a table's folder of pins.

    Returns:
        The pins, ordered by name, and one sentence for each file that cannot be parsed as a pin.

    Raises:
        LogAccessError: The store cannot be listed or read.

    """
    pins, problems = [], []
    for name in folder.names():
        if name.endswith(".json") and not name.startswith("."):
            try:
                pins.append(Pin.from_text(folder.read(name).decode(errors="replace"), f"{PINS_FOLDER}/{name}"))
            except PinError as error:
                problems.append(str(error))
    return pins, problems


def pin_problems(pins: Iterable[PinStatus]) -> list[str]:
    """Return the problems of the pins that have one."""
    return [status.problem for status in pins if status.problem is not None]


def _pin_problem(folder: LogFolder, pin: Pin, table_files: set[str], newest: DeltaTable | None) -> str | None:
    try:
        pinned = pin.of(folder.uri)
    except PinError:
        pinned_uris = ", ".join(table.table for table in pin.tables)
        return (
            f"pin {pin.name} keeps a version of {pinned_uris}, not of {folder.uri}: the table was copied, or is read "
            "under another name; if it was copied, remove the pin here"
        )
    try:
        version = open_table(folder, pinned.version)
        missing = sorted({path for path in map(unquote, column_values(version, "path")) if path not in table_files})
        table_id = version.metadata().id
    except (DeltaError, OSError) as error:
        if newest is None:
            return f"pin {pin.name} cannot be checked: deltalake cannot open the table ({error_text(error)})"
        return f"pin {pin.name} is broken: version {pinned.version} cannot be opened ({error_text(error)})"
    if table_id != pinned.table_id:
        return f"pin {pin.name} is of an earlier table at this location; remove the pin"
    if missing:
        file_count = len(set(column_values(version, "path")))
        return (
            f"pin {pin.name} is broken: {len(missing)} of the {file_count} data files of version {pinned.version} are "
            f"missing, such as {', '.join(missing[:3])}"
        )
    return _retention_problem(pin, newest)


def _retention_problem(pin: Pin, newest: DeltaTable | None) -> str | None:
    """Return a problem if a retention of the table is shorter than the pin lasts.

    Then Delta's own VACUUM or log clean-up can break the pin. A retention that is not a simple interval is ignored.
    """
    properties = {} if newest is None else newest.metadata().configuration
    for name, default in _RETENTIONS.items():
        interval = _INTERVAL.fullmatch(properties.get(name, default))
        if interval is None:
            continue
        if timedelta(**{f"{interval[2].lower()}s": int(interval[1])}) < pin.expires_at - pin.created_at:
            return (
                f"pin {pin.name} is in danger: {name} is {properties.get(name, default)}, shorter than the pin lasts, "
                "because it was lowered or the table was restored; make another pin, which raises it for all pins"
            )
    return None


def _newest_table(folder: LogFolder) -> DeltaTable | None:
    try:
        return open_table(folder)
    except (DeltaError, OSError):
        return None
