"""Partitions of a table, named by normalized values of its first partition columns.

All spellings of one partition must lead to one lock, and the guard compares the partitions of a commit with the locked
ones. So each value is converted by the type of its column to the form that Delta writes into ``partitionValues``. Delta
has several forms for timestamps; here they are in UTC with microseconds.

Source of the forms: Delta's protocol, "Partition Value Serialization".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal, localcontext
from functools import cached_property
from numbers import Integral
from zoneinfo import ZoneInfo

from lock_manager.errors import ResourceError

MAX_PARTITIONS = 64
"""Maximum number of partitions in one request. A request for more partitions locks the whole table."""

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Spark's folder name for null; Delta reads a string partition value of this text as null."""

# Bits of each type, without the sign.
_INTEGER_BITS = {"byte": 7, "short": 15, "integer": 31, "long": 63}
_SUPPORTED_TYPE = re.compile(
    r"byte|short|integer|long|string|varchar\(\d+\)|char\(\d+\)|boolean|date|timestamp|timestamp_ntz|decimal\(\d+,\s*\d+\)"
)
# More digits than Spark's decimals have (38).
_DECIMAL_PRECISION = 80
_INTEGER = re.compile(r"[+-]?\d+")
# Characters that Hive escapes in a path component, or that ZooKeeper rejects or interprets.
_ESCAPED_CHARACTERS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff\"#%'*/:=?\\{}\[\]^]"
)


@dataclass(frozen=True, order=True)
class Partition:
    """The partition with these values of the table's first partition columns, outermost first.

    With fewer values than the table has partition columns, it contains all partitions below.

    Attributes:
        values: Pairs of a column's physical name, which a rename does not change, and its normalized value or None.

    """

    values: tuple[tuple[str, str | None], ...]

    def __str__(self) -> str:
        return "/".join(self.components)

    @cached_property
    def components(self) -> tuple[str, ...]:
        """The name of each level, as Hive names folders: ``month=1``."""
        return tuple(
            f"{_escape(column)}={HIVE_NULL if value is None else _escape(value)}" for column, value in self.values
        )

    @cached_property
    def sort_key(self) -> tuple[str, ...]:
        """Key of the order in which all locks are acquired; a partition comes after its ancestors."""
        return self.components

    def contains(self, other: Partition) -> bool:
        """Return whether ``other`` is this partition or a part of it."""
        return other.values[: len(self.values)] == self.values

    def ancestors(self) -> tuple[Partition, ...]:
        """Return the partitions that contain this one, outermost first."""
        return tuple(Partition(self.values[:depth]) for depth in range(1, len(self.values)))


@dataclass(frozen=True)
class PartitionColumn:
    """A partition column.

    Attributes:
        name: Name in the schema.
        type: Delta's name of the type: ``integer``, ``string``, ``decimal(10,2)``, ``date``, ``timestamp`` and so on.
        physical_name: Key in ``partitionValues``; the name by default. It differs with column mapping.

    """

    name: str
    type: str
    physical_name: str = ""

    def __post_init__(self) -> None:
        """Set the default of the physical name."""
        object.__setattr__(self, "physical_name", self.physical_name or self.name)


@dataclass(frozen=True)
class PartitionSchema:
    """The partition columns of a table, outermost first.

    Attributes:
        columns: The columns in the table's order.
        time_zone: Time zone of timestamps that have none: an IANA name or an offset. It is Spark's session time zone.

    """

    columns: tuple[PartitionColumn, ...]
    time_zone: str = "UTC"

    def __post_init__(self) -> None:
        """Check the types of the columns.

        Raises:
            ResourceError: A column has a type that Delta does not write exactly into ``partitionValues``.

        """
        for column in self.columns:
            if not _SUPPORTED_TYPE.fullmatch(column.type):
                raise ResourceError(
                    f"{column.name!r} is a {column.type} column, whose partitions cannot be locked one by one: "
                    "lock the table"
                )

    def has_same_partitions(self, other: PartitionSchema) -> bool:
        """Return whether both schemas have the same partitions; columns may have been renamed."""
        return [(column.physical_name, column.type) for column in self.columns] == [
            (column.physical_name, column.type) for column in other.columns
        ]

    def partition(self, values: Mapping[str, object]) -> Partition:
        """Return the partition with these values.

        Args:
            values: Values of all partition columns or of the first ones, by column. ``1``, ``"1"`` and ``"01"`` are the
                same in a column of whole numbers; None and, as in Delta, ``""`` are null.

        Raises:
            ResourceError: A column is unknown, named twice or left out before a later one, or a value does not fit its
                type.

        """
        # Names ignore case, as in Spark.
        by_name = {name.lower(): value for name, value in values.items()}
        known_names = {column.name.lower() for column in self.columns}
        if len(by_name) < len(values):
            raise ResourceError(f"a column is named twice: {', '.join(values)}")
        if unknown := [name for name in values if name.lower() not in known_names]:
            names = ", ".join(column.name for column in self.columns) or "none"
            raise ResourceError(f"{unknown[0]!r} is not a partition column; the partition columns are {names}")
        if not by_name:
            raise ResourceError("a partition without values is the whole table: omit the argument partitions")
        columns = self.columns[: len(by_name)]
        if missing := [column.name for column in columns if column.name.lower() not in by_name]:
            raise ResourceError(
                f"the value of {missing[0]!r} is missing: give the first partition columns, in the table's order "
                f"{', '.join(column.name for column in self.columns)}"
            )
        return Partition(
            tuple((column.physical_name, self._normalize(column, by_name[column.name.lower()])) for column in columns)
        )

    def partition_of_file(self, partition_values: Mapping[str, str | None]) -> Partition:
        """Return the partition of a file from the ``partitionValues`` of its action in Delta's log.

        Raises:
            ResourceError: The values name a column that this schema lacks, or do not fit a type.

        """
        if not partition_values.keys() <= {column.physical_name for column in self.columns}:
            raise ResourceError(f"a file has the partition values {dict(partition_values)}, which do not fit the table")
        return self.partition({column.name: partition_values.get(column.physical_name) for column in self.columns})

    def _normalize(self, column: PartitionColumn, value: object) -> str | None:
        if value is None or value in ("", HIVE_NULL):
            return None
        try:
            return self._normalize_timestamp(value) if column.type == "timestamp" else _normalize(column.type, value)
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            raise ResourceError(f"{value!r} does not fit the {column.type} column {column.name!r}") from error

    def _normalize_timestamp(self, value: object) -> str:
        timestamp = _parse_timestamp(value)
        if not timestamp.tzinfo:
            # A local time that occurs twice, when clocks are set back, means its first occurrence, as in Java.
            timestamp = timestamp.replace(tzinfo=self._tzinfo)
        return _format_timestamp(timestamp.astimezone(UTC)) + "Z"

    @cached_property
    def _tzinfo(self) -> tzinfo:
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
                f"Python does not know the time zone {self.time_zone!r}: set spark.sql.session.timeZone to a region, "
                "such as Europe/Berlin"
            ) from error


def smallest_cover(partitions: Iterable[Partition]) -> tuple[Partition, ...]:
    """Return the partitions in lock order, without those that another one contains."""
    cover: list[Partition] = []
    for partition in sorted(set(partitions), key=lambda partition: partition.sort_key):
        # In this order a partition is followed by all its parts.
        if not cover or not cover[-1].contains(partition):
            cover.append(partition)
    return tuple(cover)


def _normalize(type_name: str, value: object) -> str:
    base_type = type_name.partition("(")[0]
    if base_type in _INTEGER_BITS:
        return _normalize_integer(value, _INTEGER_BITS[base_type])
    if base_type == "decimal":
        scale = type_name.rpartition(",")[2].rstrip(")")
        return _normalize_decimal(value, int(scale))
    return _NORMALIZERS[base_type](value)


def _normalize_string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _normalize_boolean(value: object) -> str:
    return {"true": "true", "false": "false"}[str(value).strip().lower()]


def _normalize_local_timestamp(value: object) -> str:
    timestamp = _parse_timestamp(value)
    if timestamp.tzinfo:
        raise ValueError
    return _format_timestamp(timestamp)


def _normalize_integer(value: object, bits: int) -> str:
    if isinstance(value, bool) or not isinstance(value, (Integral, str)):
        raise TypeError
    if isinstance(value, str) and not _INTEGER.fullmatch(value.strip()):
        raise ValueError
    number = int(value)
    if not -(2**bits) <= number < 2**bits:
        raise ValueError
    return str(number)


def _normalize_date(value: object) -> str:
    if isinstance(value, datetime):
        raise TypeError
    return (value if isinstance(value, date) else date.fromisoformat(str(value).strip())).isoformat()


def _parse_timestamp(value: object) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(str(value).strip())


def _format_timestamp(timestamp: datetime) -> str:
    return timestamp.replace(tzinfo=None).isoformat(timespec="microseconds")


def _normalize_decimal(value: object, scale: int) -> str:
    if isinstance(value, bool | float):
        raise TypeError
    with localcontext(prec=_DECIMAL_PRECISION):
        number = Decimal(str(value))
        if not number.is_finite() or (rounded_number := number.quantize(Decimal(1).scaleb(-scale))) != number:
            raise ValueError
        # Adding 0 turns negative zero into zero.
        return f"{rounded_number + 0:f}"


_NORMALIZERS = {
    "string": _normalize_string,
    "varchar": _normalize_string,
    "char": _normalize_string,
    "boolean": _normalize_boolean,
    "date": _normalize_date,
    "timestamp_ntz": _normalize_local_timestamp,
}


def _escape(text: str) -> str:
    return _ESCAPED_CHARACTERS.sub(
        lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass")), text
    )


def format_partitions(partitions: Sequence[Partition], limit: int = 5) -> str:
    """Return the names of the first partitions, and the number of the remaining ones, for a message."""
    names = ", ".join(map(str, partitions[:limit]))
    return names if len(partitions) <= limit else f"{names} and {len(partitions) - limit} more"
