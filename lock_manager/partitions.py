"""The name of a partition: the values of a table's first partition columns, each in one spelling.

Two spellings of one partition must be one lock, and the guard compares what a commit touches with what is locked. So
each value is converted by the type of its column to the form that Delta writes into ``partitionValues``. Delta has
several forms for timestamps; here they are in UTC with microseconds.

Source of the forms: Delta's protocol, "Partition Value Serialization".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal, localcontext
from functools import cached_property
from numbers import Integral
from zoneinfo import ZoneInfo

from lock_manager.errors import ResourceError

MOST_PARTITIONS = 64
"""A request for more partitions of one table than this takes the table."""

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Spark's name of the folder of null; Delta reads a string partition value of this text as null."""

_RANGES = {"byte": 7, "short": 15, "integer": 31, "long": 63}
_KNOWN = re.compile(
    r"byte|short|integer|long|string|varchar\(\d+\)|char\(\d+\)|boolean|date|timestamp|timestamp_ntz|decimal\(\d+,\s*\d+\)"
)
# More than a decimal of Spark has.
_DIGITS = 80
_WHOLE = re.compile(r"[+-]?\d+")
_TRUTH = {"true": "true", "false": "false"}
# What Hive escapes in a path component, and what ZooKeeper does not take or takes for something else.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff\"#%'*/:=?\\\x7f{}\[\]^]")

Value = str | None
"""A value in its one form; None is null."""


@dataclass(frozen=True, order=True)
class Partition:
    """The values of a table's first partition columns, outermost first; of all of them, or of fewer.

    Attributes:
        values: pairs of column (its physical name, so that a renamed column is the same) and value in its one form.

    """

    values: tuple[tuple[str, str | None], ...]

    def __str__(self) -> str:
        return "/".join(self.components)

    @cached_property
    def components(self) -> tuple[str, ...]:
        """One name for each level, as Hive writes a folder: ``month=1``."""
        return tuple(f"{_escaped(column)}={_escaped_value(value)}" for column, value in self.values)

    @cached_property
    def sort_key(self) -> tuple[str, ...]:
        """Place in the one order in which everybody asks; a partition comes after what it is part of."""
        return self.components

    def contains(self, other: Partition) -> bool:
        """Tell whether ``other`` is this partition, or a part of it."""
        return other.values[: len(self.values)] == self.values

    def ancestors(self) -> tuple[Partition, ...]:
        """Return the partitions that this one is a part of, outermost first."""
        return tuple(Partition(self.values[:depth]) for depth in range(1, len(self.values)))


@dataclass(frozen=True)
class PartitionColumn:
    """A partition column.

    Attributes:
        name: as the schema has it.
        type: as Delta writes it: ``integer``, ``string``, ``decimal(10,2)``, ``date``, ``timestamp`` and so on.
        physical_name: under which ``partitionValues`` has it; differs with column mapping.

    """

    name: str
    type: str
    physical_name: str = ""

    def __post_init__(self) -> None:
        """Take the name for the physical one, if none is given."""
        object.__setattr__(self, "physical_name", self.physical_name or self.name)


@dataclass(frozen=True)
class PartitionSchema:
    """The partition columns of a table, outermost first.

    Attributes:
        columns: in the table's order.
        time_zone: of timestamps that say none: the session's. IANA name or offset.

    """

    columns: tuple[PartitionColumn, ...]
    time_zone: str = "UTC"
    _by_name: Mapping[str, PartitionColumn] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Find columns by name, in any case, as Spark does; refuse types of which Delta writes no exact values.

        Raises:
            ResourceError: such a type.

        """
        for column in self.columns:
            if not _KNOWN.fullmatch(column.type):
                raise ResourceError(
                    f"{column.name!r} is a {column.type} column, whose partitions cannot be locked one by one: "
                    "lock the table"
                )
        object.__setattr__(self, "_by_name", {column.name.lower(): column for column in self.columns})

    def partitions_as(self, other: PartitionSchema) -> bool:
        """Tell whether a partition of one is a partition of the other: a column may have been renamed."""
        ours, theirs = ([(column.physical_name, column.type) for column in each.columns] for each in (self, other))
        return ours == theirs

    def partition(self, values: Mapping[str, object]) -> Partition:
        """Return the partition with these values.

        Args:
            values: by column; of all columns or of the first ones. ``1``, ``"1"`` and ``"01"`` are one for a column of
                whole numbers; None and, as for Delta, ``""`` are null.

        Raises:
            ResourceError: no such column, one is left out before a later one, or a value does not fit its type.

        """
        given = {name.lower(): value for name, value in values.items()}
        if len(given) < len(values):
            raise ResourceError(f"a column is named twice: {', '.join(values)}")
        if unknown := [name for name in values if name.lower() not in self._by_name]:
            names = ", ".join(column.name for column in self.columns)
            raise ResourceError(f"{unknown[0]!r} is not a partition column; those are {names or 'none'}")
        if not given:
            raise ResourceError("a partition without values is the whole table: leave partitions out")
        first = self.columns[: len(given)]
        if missing := [column.name for column in first if column.name.lower() not in given]:
            raise ResourceError(
                f"the value of {missing[0]!r} is missing: give the first partition columns, in the table's order "
                f"{', '.join(column.name for column in self.columns)}"
            )
        return Partition(
            tuple((column.physical_name, self._normal(column, given[column.name.lower()])) for column in first)
        )

    def touched(self, partition_values: Mapping[str, str | None]) -> Partition:
        """Return the partition of a file by the ``partitionValues`` of its action in Delta's log.

        Raises:
            ResourceError: they are not those of this schema's columns.

        """
        if not partition_values.keys() <= {column.physical_name for column in self.columns}:
            raise ResourceError(f"a file has the partition values {dict(partition_values)}, which do not fit the table")
        return self.partition({column.name: partition_values.get(column.physical_name) for column in self.columns})

    def _normal(self, column: PartitionColumn, value: object) -> Value:
        if value is None or value in ("", HIVE_NULL):
            return None
        try:
            return self._normal_moment(value) if column.type == "timestamp" else _normal(column.type, value)
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise ResourceError(f"{value!r} is no value of the {column.type} column {column.name!r}") from error

    def _normal_moment(self, value: object) -> str:
        moment = _moment(value)
        if not moment.tzinfo:
            # Where clocks are put back a time may be two moments; the first one, as for Java.
            moment = moment.replace(tzinfo=self._zone)
        return _written(moment.astimezone(UTC)) + "Z"

    @cached_property
    def _zone(self) -> tzinfo:
        if self.time_zone.upper() in ("UTC", "GMT", "Z"):
            return UTC
        match = re.fullmatch(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?", self.time_zone)
        if match:
            offset = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
            return timezone(-offset if match[1] == "-" else offset)
        try:
            return ZoneInfo(self.time_zone)
        except (LookupError, ValueError) as error:
            raise ResourceError(
                f"Python does not know the time zone {self.time_zone!r}: name a region, such as Europe/Berlin"
            ) from error


def smallest_cover(partitions: Iterable[Partition]) -> tuple[Partition, ...]:
    """Return the partitions in the one order, without those that are part of others."""
    found: list[Partition] = []
    for each in sorted(set(partitions), key=lambda partition: partition.sort_key):
        # In this order a partition is followed by all that are part of it.
        if not found or not found[-1].contains(each):
            found.append(each)
    return tuple(found)


def _normal(type_name: str, value: object) -> str:
    kind = type_name.partition("(")[0]
    if kind in _RANGES:
        return _whole(value, _RANGES[kind])
    if kind == "decimal":
        scale = type_name.rpartition(",")[2].rstrip(")")
        return _decimal(value, int(scale))
    return _NORMAL[kind](value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _truth(value: object) -> str:
    return _TRUTH[str(value).strip().lower()]


def _local_moment(value: object) -> str:
    moment = _moment(value)
    if moment.tzinfo:
        raise ValueError
    return _written(moment)


def _whole(value: object, bits: int) -> str:
    if isinstance(value, bool) or not isinstance(value, (Integral, str)):
        raise TypeError
    if isinstance(value, str) and not _WHOLE.fullmatch(value.strip()):
        raise ValueError
    number = int(value)
    if not -(2**bits) <= number < 2**bits:
        raise ValueError
    return str(number)


def _date(value: object) -> str:
    if isinstance(value, datetime):
        raise TypeError
    found = value if isinstance(value, date) else date.fromisoformat(str(value).strip())
    return found.isoformat()


def _moment(value: object) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(str(value).strip())


def _written(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds")


def _decimal(value: object, scale: int) -> str:
    if isinstance(value, bool | float):
        raise TypeError
    with localcontext(prec=_DIGITS):
        exact = Decimal(str(value))
        if not exact.is_finite() or (rounded := exact.quantize(Decimal(1).scaleb(-scale))) != exact:
            raise ValueError
        # There is no negative zero.
        return f"{rounded + 0:f}"


_NORMAL = {
    "string": _text,
    "varchar": _text,
    "char": _text,
    "boolean": _truth,
    "date": _date,
    "timestamp_ntz": _local_moment,
}


def _escaped_value(value: Value) -> str:
    return HIVE_NULL if value is None else _escaped(value)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(
        lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass")), text
    )


def names_of(partitions: Sequence[Partition], most: int = 5) -> str:
    """Return the names of some partitions for a message."""
    shown = ", ".join(str(each) for each in partitions[:most])
    return shown if len(partitions) <= most else f"{shown} and {len(partitions) - most} more"
