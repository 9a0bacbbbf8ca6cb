"""How a table wants to be looked after: its properties ``sluice.maintenance.*``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from writer_jobs.errors import TableError

#: Prefix of the properties.
PREFIX = "sluice.maintenance."
#: Days after which maintenance may delete rows of a side table. Feeds set it on their side tables.
FORGET_AFTER = f"{PREFIX}forgetAfterDays"
_DELTA_TARGET = "delta.targetFileSize"
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmg]?)(?:i?b)?", re.IGNORECASE)
_NOTHING = ("off", "none", "false")


class Action(StrEnum):
    """What maintenance can do to a table; the value is the name in properties, reports and options."""

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
    """How a table wants to be looked after.

    Attributes:
        target_file_size: bytes that a data file is to have after compaction; files below half of it are small.
        least_small_files: as many small files must go away before a partition is worth compacting.
        zorder_by: columns by which rows are put in Z-order; empty: not at all.
        unordered_share: as much of a partition's bytes must be new since the last time before it is ordered again.
        deleted_share: as much of a partition's rows must be deleted before its files are rewritten without them.
        forget_after_days: Days after which rows of a side table may expire; None: the property is not set.
        expired_share: Share of a side table's rows that must be expired before it is rewritten without them.
        streams: checkpoint folders of the streams that read the table: what they still need is kept.
        auto: what ``--auto`` may do to it.

    """

    target_file_size: int = 128 << 20
    least_small_files: int = 4
    zorder_by: tuple[str, ...] = ()
    unordered_share: float = 0.2
    deleted_share: float = 0.05
    forget_after_days: float | None = None
    expired_share: float = 0.2
    streams: tuple[str, ...] = ()
    auto: frozenset[Action] = frozenset(Action)

    @property
    def small_file_size(self) -> int:
        """Bytes below which a file is small."""
        return self.target_file_size // 2

    @classmethod
    def of(cls, properties: Mapping[str, str], table: str) -> Policy:
        """Read it from a table's properties; what is not set has its default.

        ``delta.targetFileSize`` counts where ``sluice.maintenance.targetFileSize`` is not set.

        Args:
            properties: all that the table has.
            table: canonical URI, for messages.

        Raises:
            TableError: a property that is not known, or has a value that makes no sense.

        """
        known = {
            "targetFileSize": ("target_file_size", _size),
            "minSmallFiles": ("least_small_files", _number),
            "zorderBy": ("zorder_by", _list),
            "unorderedShare": ("unordered_share", _share),
            "deletedRowShare": ("deleted_share", _share),
            "forgetAfterDays": ("forget_after_days", _days),
            "expiredRowShare": ("expired_share", _share),
            "streams": ("streams", _list),
            "auto": ("auto", _actions),
        }
        given = {name.removeprefix(PREFIX): value for name, value in properties.items() if name.startswith(PREFIX)}
        if _DELTA_TARGET in properties:
            given = {"targetFileSize": properties[_DELTA_TARGET], **given}
        found: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise TableError(f"{table} has a property {PREFIX}{name}; known are {', '.join(known)}")
            attribute, parse = known[name]
            try:
                found[attribute] = parse(value)
            except ValueError as error:
                raise TableError(f"{table}: the property {PREFIX}{name} = {value!r} is {error}") from error
        return cls(**found)


def parse_size(text: str) -> int:
    """Return how many bytes a text such as ``64 MiB``, ``64m`` or ``67108864`` means.

    Raises:
        ValueError: it means none.

    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (size := int(float(match["number"]) * _UNITS[match["unit"].lower()])) < 1:
        raise ValueError("no size such as 128 MiB")
    return size


def _size(text: str) -> int:
    return parse_size(text)


def _number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError("no number above 0")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError("no share between 0 and 1")
    return share


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < float("inf"):
        raise ValueError("no number of days")
    return days


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _actions(text: str) -> frozenset[Action]:
    if text.strip().lower() in _NOTHING:
        return frozenset()
    try:
        return frozenset(Action(name.lower()) for name in _list(text))
    except ValueError:
        raise ValueError(f"no list of {', '.join(Action)}, and not off") from None
