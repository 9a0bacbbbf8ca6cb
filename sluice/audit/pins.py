"""A table's pins, read without Spark: which there are, and whether they hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lock_manager.errors import PinError
from lock_manager.pins import PINS_FOLDER, Pin
from sluice.audit.log_folder import LogFolder, open_log

_SHOWN = 3


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

    Deletion vectors are not looked for.

    Args:
        table: ``s3://…``, ``s3a://…``, ``file:…`` or a path.
        storage_options: as ``deltalake`` takes them.

    Returns:
        The pins by name, and one sentence for each file that is no pin.

    Raises:
        LogAccessError: the store cannot be listed or read.

    """
    folder = open_log(table, storage_options, folder=PINS_FOLDER)
    pins, damaged = [], []
    for name in folder.names():
        if name.endswith(".json") and not name.startswith("."):
            try:
                pins.append(Pin.of_text(folder.read(name).decode(errors="replace"), f"{PINS_FOLDER}/{name}"))
            except PinError as error:
                damaged.append(str(error))
    there = folder.files_of_table() if pins else set()
    return [
        FoundPin(pin, expired, None if expired else _problem(folder, pin, there))
        for pin in pins
        for expired in (pin.has_expired(),)
    ], damaged


def problems_of(found: Iterable[FoundPin]) -> list[str]:
    """Return what is wrong with pins that are to be kept, one sentence each."""
    return [each.problem for each in found if each.problem is not None]


def _problem(folder: LogFolder, pin: Pin, there: set[str]) -> str | None:
    try:
        pinned = pin.of(folder.uri)
    except PinError as error:
        return f"{error}: the table was copied, or is read under another name"
    try:
        table = DeltaTable(folder.uri, version=pinned.version, storage_options=folder.options or None)
    except (DeltaError, OSError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return f"pin {pin.name} is broken: version {pinned.version} cannot be opened ({lines[0]})"
    files = {unquote(path) for path in table.get_add_actions().column("path").to_pylist()}
    if missing := sorted(files - there):
        shown = ", ".join(missing[:_SHOWN])
        return (
            f"pin {pin.name} is broken: {len(missing)} of the {len(files)} data files of version {pinned.version} are "
            f"gone, such as {shown}"
        )
    return None
