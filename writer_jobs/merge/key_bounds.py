"""Conditions on literals that a table's keys are near those of a batch, so that Delta passes over other files.

Delta knows of each file the least and the largest value of a column. What is compared with a literal, it compares with
these before it reads.
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
from writer_jobs.merge.merge_sql import of

# By which SQL tells the type of a whole number.
_SUFFIXES: dict[type[DataType], str] = {ByteType: "Y", ShortType: "S", IntegerType: "", LongType: "L"}
_ENDS = ("least", "most")
# What Python has in place of bytes that are no UTF-8.
_NO_UTF8 = "\ufffd"
# Before that the calendars of Spark and of Java's literals are not the same; after it Python has no dates.
_FIRST, _LAST = datetime(1900, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
_DAY = timedelta(days=1)
_BUCKETS, _MOST_RANGES = 256, 32
_BUCKET = "__sluice_bucket"


class KeyBounds:
    """Where the keys of a batch are: between two values, or within several ranges.

    Args:
        schema: of the batch.
        keys: their columns.

    """

    def __init__(self, schema: StructType, keys: Sequence[str]) -> None:
        self._types = {name: schema[name].dataType for name in keys if _is_bounded(schema[name].dataType)}
        self._ranges: dict[str, list[tuple[Any, Any]]] = {}

    @classmethod
    def of(cls, rows: DataFrame, keys: Sequence[str], ranged_by: str) -> KeyBounds:
        """Make it of rows: two passes; see :meth:`refine`."""
        bounds = cls(rows.schema, keys)
        if bounds._types:
            bounds.found(rows.agg(*bounds.aggregates()).collect()[0].asDict())
            bounds.refine(rows, ranged_by)
        return bounds

    def aggregates(self) -> Iterator[Column]:
        """Yield what is to be found out of the batch for :meth:`found`."""
        for number, (name, kind) in enumerate(self._types.items()):
            for end, of_rows in zip(_ENDS, (F.min, F.max), strict=True):
                yield of_rows(_comparable(name, kind)).alias(f"{end}{number}")

    def found(self, values: Mapping[str, Any]) -> None:
        """Take the values of :meth:`aggregates`, by name."""
        for number, name in enumerate(self._types):
            least, most = (values.get(f"{end}{number}") for end in _ENDS)
            if least is not None and most is not None and _NO_UTF8 not in f"{least}{most}":
                self._ranges[name] = [(least, most)]

    def refine(self, rows: DataFrame, name: str) -> None:
        """Find out in which ranges the values of a column are, if it is a number, a day or a moment: one pass.

        So that files between them are passed over, too.
        """
        kind = self._types.get(name)
        if kind is None or isinstance(kind, StringType) or name not in self._ranges:
            return
        ((least, most),) = self._ranges[name]
        width = (most - least) // _BUCKETS + 1
        value = _comparable(name, kind)
        bucket = F.floor((value - least) / width).alias(_BUCKET)
        found = rows.groupBy(bucket).agg(F.min(value), F.max(value)).collect()
        self._ranges[name] = _joined(sorted((row[1], row[2]) for row in found))

    def condition(self, alias: str | None = None) -> Column:
        """Return the condition on a table's keys that they are not outside those of the batch.

        Args:
            alias: of the table; None: it has none.

        """
        condition = F.expr("true")
        for name, ranges in self._ranges.items():
            column = F.col(quoted(name)) if alias is None else of(alias, name)
            within = F.expr("false")
            for each in ranges:
                least, most = (_literal(end, self._types[name]) for end in each)
                within = F.expr("true") if least is None or most is None else within | column.between(least, most)
            condition = condition & within
        return condition


def _is_bounded(kind: DataType) -> bool:
    return isinstance(kind, (*_SUFFIXES, StringType, DateType, TimestampType))


def _comparable(name: str, kind: DataType) -> Column:
    """Return a value as Python and Spark have it alike, whatever the session's time zone."""
    column = F.col(quoted(name))
    if isinstance(kind, TimestampType):
        return F.unix_micros(column)
    return F.unix_date(column) if isinstance(kind, DateType) else column


def _literal(value: Any, kind: DataType) -> Column | None:
    """Return a value of :func:`_comparable` as a literal of its type, not a cast; None if Python has none of it."""
    if isinstance(kind, StringType):
        return F.lit(value)
    if not isinstance(kind, TimestampType | DateType):
        return F.expr(f"{value}{_SUFFIXES[type(kind)]}")
    since = timedelta(microseconds=value) if isinstance(kind, TimestampType) else value * _DAY
    if not _FIRST - EPOCH <= since <= _LAST - EPOCH:
        return None
    moment = EPOCH + since
    return F.lit(moment if isinstance(kind, TimestampType) else moment.date())


def _joined(ranges: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Join neighbours until few ranges are left: those with the widest gaps between them stay apart."""
    gaps = [(after[0] - before[1], number) for number, (before, after) in enumerate(pairwise(ranges), 1)]
    apart = {number for gap, number in nlargest(_MOST_RANGES - 1, gaps) if gap > 1}
    joined: list[tuple[Any, Any]] = []
    for number, each in enumerate(ranges):
        if number and number not in apart:
            joined[-1] = (joined[-1][0], each[1])
        else:
            joined.append(each)
    return joined
