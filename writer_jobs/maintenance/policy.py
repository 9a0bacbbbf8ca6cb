"""The maintenance policy of a table: its properties ``sluice.maintenance.*``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from writer_jobs.errors import TableError

#: Prefix of the properties.
PREFIX = "sluice.maintenance."
#: Days after which maintenance may delete rows of a side table. Feeds set this property on their side tables.
FORGET_AFTER = f"{PREFIX}forgetAfterDays"
#: HBase families with one version, separated by commas. Feeds set this property on ``TABLE_cells``. A release of Sluice
#: that does not know it refuses to maintain the table, because it would delete cells that are needed.
SINGLE_VERSION_FAMILIES = f"{PREFIX}singleVersionFamilies"
_DELTA_TARGET = "delta.targetFileSize"
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmg]?)(?:i?b)?", re.IGNORECASE)
_NO_ACTIONS = ("off", "none", "false")


class Action(StrEnum):
    """An action of maintenance; the value is its name in properties, reports and options."""

    COMPACT = "compact"
    ZORDER = "zorder"
    CLUSTER = "cluster"
    PURGE = "purge"
    VACUUM = "vacuum"
    CHECKPOINT = "checkpoint"
    CLEAN_LOG = "clean-log"
    FORGET = "forget"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The maintenance policy of a table.

    Attributes:
        target_file_size: Size of a data file after compaction, in bytes; a file below half of it is small.
        min_small_files: Number of files that compaction must save in a partition to be worthwhile.
        zorder_by: Columns of the Z-order; empty: no Z-order.
        unordered_share: Share of a partition's bytes that must be newer than its last Z-order before the next one.
        deleted_share: Share of a partition's rows that must be deleted before a purge rewrites its files.
        forget_after_days: Days after which rows of a side table may expire; None: the property is not set.
        single_version_families: HBase families whose older versions expire at once.
        expired_share: Share of a side table's rows that must be expired before a rewrite drops them.
        streams: Checkpoint folders of the streams that read the table. Maintenance keeps the files and versions that
            these streams still need.
        auto: Actions that ``--auto`` may execute.

    """

    target_file_size: int = 128 << 20
    min_small_files: int = 4
    zorder_by: tuple[str, ...] = ()
    unordered_share: float = 0.2
    deleted_share: float = 0.05
    forget_after_days: float | None = None
    single_version_families: tuple[str, ...] = ()
    expired_share: float = 0.2
    streams: tuple[str, ...] = ()
    auto: frozenset[Action] = frozenset(Action)

    @property
    def small_file_size(self) -> int:
        """Size below which a file is small, in bytes."""
        return self.target_file_size // 2

    @classmethod
    def of(cls, properties: Mapping[str, str], table: str) -> Policy:
        """Read a policy from the properties of a table; a property that is not set has its default.

        ``delta.targetFileSize`` is the target size if ``sluice.maintenance.targetFileSize`` is not set.

        Args:
            table: Canonical URI, for error messages.

        Raises:
            TableError: A property below ``sluice.maintenance`` is unknown, or a property has an invalid value.

        """
        parsers: dict[str, tuple[str, Callable[[str], Any]]] = {
            "targetFileSize": ("target_file_size", parse_size),
            "minSmallFiles": ("min_small_files", _positive_integer),
            "zorderBy": ("zorder_by", _list),
            "unorderedShare": ("unordered_share", _share),
            "deletedRowShare": ("deleted_share", _share),
            "forgetAfterDays": ("forget_after_days", _days),
            "singleVersionFamilies": ("single_version_families", _list),
            "expiredRowShare": ("expired_share", _share),
            "streams": ("streams", _list),
            "auto": ("auto", _actions),
        }
        names = {name.removeprefix(PREFIX): name for name in properties if name.startswith(PREFIX)}
        if _DELTA_TARGET in properties:
            names = {"targetFileSize": _DELTA_TARGET, **names}
        attributes: dict[str, Any] = {}
        for key, name in names.items():
            if key not in parsers:
                raise TableError(f"{table}: unknown property {name}; valid names are {', '.join(parsers)}")
            attribute, parse = parsers[key]
            try:
                attributes[attribute] = parse(properties[name])
            except ValueError as error:
                raise TableError(f"{table}: invalid property {name} = {properties[name]!r}: {error}") from error
        return cls(**attributes)


def parse_size(text: str) -> int:
    """Return the number of bytes in a text such as ``64 MiB``, ``64m`` or ``67108864``.

    A text that is not a size of at least one byte raises ValueError.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (size := int(float(match["number"]) * _SIZE_UNITS[match["unit"].lower()])) < 1:
        raise ValueError("expected a size such as 128 MiB")
    return size


def _positive_integer(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError("expected a whole number above 0")
    return int(text)


def _number_up_to(limit: float, expected: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= limit:
        raise ValueError(f"expected {expected}")
    return number


_share = partial(_number_up_to, 1.0, "a share between 0 and 1")
_days = partial(_number_up_to, sys.float_info.max, "a number of days")


def _list(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


def _actions(text: str) -> frozenset[Action]:
    if text.strip().lower() in _NO_ACTIONS:
        return frozenset()
    try:
        return frozenset(Action(name.lower()) for name in _list(text))
    except ValueError:
        raise ValueError(f"expected off, or a list of {', '.join(Action)}") from None
