"""A table's pins, read without Spark: which there are, and whether they hold."""

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
from sluice.audit.log_files import version_files
from sluice.audit.log_folder import LogFolder, open_log, open_table
from sluice.audit.reasons import reason_of
from sluice.errors import VerifyError

_SHOWN = 3
# With Delta's defaults.
_RETENTIONS = {
    "delta.deletedFileRetentionDuration": "interval 1 week",
    "delta.logRetentionDuration": "interval 30 days",
}
_INTERVAL = re.compile(r"interval (\d+) (second|minute|hour|day|week)s?", re.IGNORECASE)


@dataclass(frozen=True)
class FoundPin:
    """A pin of a table, and what is wrong with it.

    Attributes:
        pin: as it was noted.
        has_expired: whether it is kept no longer.
        problem: one sentence; None if its version can be read.

    """

    pin: Pin
    has_expired: bool
    problem: str | None


def examine_pins(
    table: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
) -> tuple[list[FoundPin], list[str]]:
    """Read a table's pins, and look whether the versions that they keep can be read: log and data files are there.

    And whether the table's retention is as long as they last. Deletion vectors are not looked for.

    Args:
        table: ``s3://…``, ``s3a://…``, ``file:…`` or a path.
        storage_options: as ``deltalake`` takes them.

    Returns:
        The pins by name, and one sentence for each file that is no pin.

    Raises:
        LogAccessError: the store cannot be listed or read.
        VerifyError: there is no Delta table.

    """
    if not version_files(open_log(table, storage_options).names()):
        raise VerifyError(f"there is no Delta table at {table}: no version file in its _delta_log")
    folder = open_log(table, storage_options, folder=PINS_FOLDER)
    pins, damaged = [], []
    for name in folder.names():
        if name.endswith(".json") and not name.startswith("."):
            try:
                pins.append(Pin.from_text(folder.read(name).decode(errors="replace"), f"{PINS_FOLDER}/{name}"))
            except PinError as error:
                damaged.append(str(error))
    there, newest = (folder.files_of_table(), _newest(folder)) if pins else (set(), None)
    return [
        FoundPin(pin, expired, None if expired else _problem(folder, pin, there, newest))
        for pin in pins
        for expired in (pin.has_expired(),)
    ], damaged


def problems_of(found: Iterable[FoundPin]) -> list[str]:
    """Return what is wrong with pins that are to be kept, one sentence each."""
    return [each.problem for each in found if each.problem is not None]


def _problem(folder: LogFolder, pin: Pin, there: set[str], newest: DeltaTable | None) -> str | None:
    try:
        pinned = pin.of(folder.uri)
    except PinError as error:
        return f"{error}: the table was copied, or is read under another name; remove the pin here, if so"
    try:
        version = open_table(folder, pinned.version)
        files = {unquote(path) for path in version.get_add_actions().column("path").to_pylist()}
        table_id = version.metadata().id
    except (DeltaError, OSError) as error:
        if newest is None:
            return f"pin {pin.name} cannot be checked: deltalake cannot open the table ({reason_of(error)})"
        return f"pin {pin.name} is broken: version {pinned.version} cannot be opened ({reason_of(error)})"
    if table_id != pinned.table_id:
        return f"pin {pin.name} is of another table, which was here before: remove it"
    if missing := sorted(files - there):
        shown = ", ".join(missing[:_SHOWN])
        return (
            f"pin {pin.name} is broken: {len(missing)} of the {len(files)} data files of version {pinned.version} are "
            f"gone, such as {shown}"
        )
    return _too_short(pin, newest)


def _too_short(pin: Pin, newest: DeltaTable | None) -> str | None:
    """Say if the table's retention is shorter than the pin lasts: stock VACUUM and log clean-up will break it."""
    properties = {} if newest is None else newest.metadata().configuration
    for name, default in _RETENTIONS.items():
        found = _INTERVAL.fullmatch(properties.get(name, default))
        # What is written in another way is not judged.
        kept = None if found is None else timedelta(**{f"{found[2]}s": int(found[1])})
        if kept is not None and kept < pin.expires_at - pin.created_at:
            return (
                f"pin {pin.name} is in danger: {name} is {properties.get(name, default)}, shorter than the pin lasts, "
                "because somebody lowered it or restored the table; make another pin, which raises it for all"
            )
    return None


def _newest(folder: LogFolder) -> DeltaTable | None:
    try:
        return open_table(folder)
    except (DeltaError, OSError):
        return None
