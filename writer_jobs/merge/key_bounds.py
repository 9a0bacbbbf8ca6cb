"""Conditions with literals that limit a table's keys to the bounds of a batch, so that Delta skips other files.

Delta stores the smallest and the largest value of a column for each file. It compares literals with these before it
reads the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from itertools import pairwise
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from writer_jobs.delta.moments import EPOCH
from writer_jobs.delta.sql_names import quoted
from writer_jobs.merge.merge_sql import qualified

# Suffixes of SQL's integer literals.
_SUFFIXES: dict[type[DataType], str] = {ByteType: "Y", ShortType: "S", IntegerType: "", LongType: "L"}
_BITS: dict[type[DataType], int] = {ByteType: 7, ShortType: 15, IntegerType: 31, LongType: 63}
_BOUNDED_TYPES = (*_SUFFIXES, StringType, DateType, TimestampType)
_BOUNDS = ("least", "most")
# Python's replacement for bytes that are not UTF-8.
_REPLACEMENT_CHARACTER = "\ufffd"
# Before 1900 the calendars of Spark and of Java's literals differ; after 9999 Python has no dates.
_FIRST, _LAST = datetime(1900, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
_DAY, _MICROSECOND = timedelta(days=1), timedelta(microseconds=1)
# The values of a type that a condition may have, as `_comparable` returns them.
_LIMITS: dict[type[DataType], tuple[int, int]] = {
    **{key_type: (-(2**bits), 2**bits - 1) for key_type, bits in _BITS.items()},
    DateType: ((_FIRST - EPOCH) // _DAY, (_LAST - EPOCH) // _DAY),
    TimestampType: ((_FIRST - EPOCH) // _MICROSECOND, (_LAST - EPOCH) // _MICROSECOND),
}
# Equal parts into which a column's bounds are split, and the largest number of ranges in a condition.
_BUCKETS, _MAX_RANGES = 256, 32
_BUCKET = "__sluice_bucket"


class KeyBounds:
    """The bounds of a batch's keys: two values for each column, or several ranges."""

    def __init__(self, schema: StructType, keys: Sequence[str]) -> None:
        self._types = {
            name: schema[name].dataType for name in keys if isinstance(schema[name].dataType, _BOUNDED_TYPES)
        }
        self._ranges: dict[str, list[tuple[Any, Any]]] = {}

    @classmethod
    def of(cls, rows: DataFrame, keys: Sequence[str], range_column: str | None = None) -> KeyBounds:
        """Compute the bounds of rows; with ``range_column`` in a second pass, see :meth:`refine`."""
        bounds = cls(rows.schema, keys)
        if bounds._types:
            bounds.load(rows.agg(*bounds.aggregates()).collect()[0].asDict())
            if range_column is not None:
                bounds.refine(rows, range_column)
        return bounds

    def aggregates(self) -> Iterator[Column]:
        """Yield the aggregates over the batch whose values :meth:`load` needs."""
        for name, key_type in self._types.items():
            for bound, aggregate in zip(_BOUNDS, (F.min, F.max), strict=True):
                yield aggregate(_comparable(name, key_type)).alias(f"{bound} {name}")

    def load(self, values: Mapping[str, Any]) -> None:
        """Set the bounds from the values of :meth:`aggregates`, by alias."""
        for name in self._types:
            least, most = (values.get(f"{bound} {name}") for bound in _BOUNDS)
            if least is not None and most is not None and _REPLACEMENT_CHARACTER not in f"{least}{most}":
                self._ranges[name] = [(least, most)]

    def refine(self, rows: DataFrame, name: str) -> None:
        """Split the bounds of a column into ranges that have values, so that Delta skips files between them.

        This reads the rows once. Columns other than whole numbers, dates and timestamps keep their bounds.
        """
        key_type = self._types.get(name)
        if key_type is None or isinstance(key_type, StringType) or name not in self._ranges:
            return
        ((least, most),) = self._ranges[name]
        width = (most - least) // _BUCKETS + 1
        value = _comparable(name, key_type)
        bucket = F.floor((value - least) / width).alias(_BUCKET)
        buckets = rows.groupBy(bucket).agg(F.min(value), F.max(value)).collect()
        self._ranges[name] = _merge_ranges(sorted((row[1], row[2]) for row in buckets))

    def limits(self, name: str) -> tuple[Any, Any] | None:
        """Return the smallest and the largest value of a column; None if Python may order its values differently."""
        # A collation has an order of its own.
        is_ordered = name in self._ranges and self._types[name] in (StringType(), *(kind() for kind in _LIMITS))
        return (self._ranges[name][0][0], self._ranges[name][-1][1]) if is_ordered else None

    def condition(self, alias: str | None = None) -> Column:
        """Return the condition that the keys of a table, which may have an alias, are within the rounded bounds."""
        condition = F.expr("true")
        for name, ranges in self._ranges.items():
            column = F.col(quoted(name)) if alias is None else qualified(alias, name)
            is_within = F.expr("false")
            for bounds in ranges:
                least, most = (_literal(bound, self._types[name]) for bound in rounded(*bounds, self._types[name]))
                in_range = F.expr("true") if least is None or most is None else column.between(least, most)
                is_within = is_within | in_range
            condition = condition & is_within
        return condition

    def is_at_least(self, column: Column, name: str) -> Column:
        """Return the condition that a column is at least the rounded lower bound of ``name``; true without one."""
        if name not in self._ranges:
            return F.expr("true")
        least, _ = rounded(*self._ranges[name][0], self._types[name])
        literal = _literal(least, self._types[name])
        return F.expr("true") if literal is None else column >= literal


def _comparable(name: str, key_type: DataType) -> Column:
    """Return a value that Python and Spark represent alike in every time zone of the session."""
    column = F.col(quoted(name))
    if isinstance(key_type, TimestampType):
        return F.unix_micros(column)
    return F.unix_date(column) if isinstance(key_type, DateType) else column


def rounded(least: Any, most: Any, key_type: DataType) -> tuple[Any, Any]:
    """Return bounds that are wider by at most an eighth of their distance on each side. Bounds of texts stay.

    Batches of similar keys then have the same bounds. Spark generates and compiles code for each number in a condition,
    so a stream would have new code for each batch.
    """
    limits = _LIMITS.get(type(key_type))
    if limits is None or least < limits[0] or most > limits[1]:
        return least, most
    step = 1 << max(0, (most - least).bit_length() - 4)
    return max(least // step * step, limits[0]), min((most // step + 1) * step - 1, limits[1])


def _literal(value: Any, key_type: DataType) -> Column | None:
    """Return a :func:`_comparable` value as a literal of the key's type; None before ``_FIRST`` and after ``_LAST``."""
    if isinstance(key_type, StringType):
        return F.lit(value)
    if not isinstance(key_type, TimestampType | DateType):
        return F.expr(f"{value}{_SUFFIXES[type(key_type)]}")
    smallest, largest = _LIMITS[type(key_type)]
    if not smallest <= value <= largest:
        return None
    if isinstance(key_type, TimestampType):
        return F.lit(EPOCH + value * _MICROSECOND)
    return F.lit((EPOCH + value * _DAY).date())


def _merge_ranges(ranges: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return at most ``_MAX_RANGES`` ranges: the widest gaps stay, and neighbours around other gaps are merged."""
    gaps = [(higher[0] - lower[1], number) for number, (lower, higher) in enumerate(pairwise(ranges), 1)]
    kept_gaps = {number for gap, number in nlargest(_MAX_RANGES - 1, gaps) if gap > 1}
    merged_ranges: list[tuple[Any, Any]] = []
    for number, (least, most) in enumerate(ranges):
        if number and number not in kept_gaps:
            merged_ranges[-1] = (merged_ranges[-1][0], most)
        else:
            merged_ranges.append((least, most))
    return merged_ranges
