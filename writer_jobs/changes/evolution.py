"""What a table's columns become when changes bring new ones, or values that need wider types."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import (
    AtomicType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from writer_jobs.delta.sql_names import quoted

_WIDENING = "delta.enableTypeWidening"
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_FRACTIONS = (FloatType, DoubleType)


def is_wider(wide: DataType, narrow: DataType) -> bool:
    """Tell whether each value of one type is a value of the other, and Delta can widen a column from one to the other.

    Source: Delta's protocol, "Type Widening": byte, short, int and long, in that order; float to double; decimals that
    have as many digits before and behind the point.
    """
    if isinstance(wide, _WHOLE) and isinstance(narrow, _WHOLE):
        return _WHOLE.index(type(wide)) > _WHOLE.index(type(narrow))
    if isinstance(wide, DecimalType) and isinstance(narrow, DecimalType):
        before = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(wide != narrow and before and wide.scale >= narrow.scale)
    return isinstance(wide, DoubleType) and isinstance(narrow, FloatType)


def loses(table: DataType, changes: DataType) -> bool:
    """Tell whether a value of the changes may become another one, in silence, in a column of the table.

    A whole number that is too large for its column, or a text that is no number, is an error of Spark's; a number that
    is rounded, or a moment that becomes a day, is none.
    """
    if table == changes or is_wider(table, changes):
        return False
    if isinstance(table, DoubleType):
        return isinstance(changes, LongType | DecimalType)
    if isinstance(table, FloatType):
        return isinstance(changes, IntegerType | LongType | DoubleType | DecimalType)
    if isinstance(table, DecimalType) and isinstance(changes, DecimalType):
        return bool(changes.scale > table.scale)
    if isinstance(table, (*_WHOLE, DecimalType)):
        return isinstance(changes, _FRACTIONS) or (isinstance(changes, DecimalType) and changes.scale > 0)
    return isinstance(table, DateType) and isinstance(changes, TimestampType | TimestampNTZType)


def confuses(table: DataType, keys: DataType) -> bool:
    """Tell whether two values of a key may become one, or one another, in silence, in a column of the table.

    Beside what :func:`loses` says: a moment is another text, and another local time, in another time zone.
    """
    are_moments = isinstance(keys, TimestampType | TimestampNTZType) and type(keys) is not type(table)
    return are_moments or loses(table, keys)


def joined(table: DataType, rows: DataType) -> DataType:
    """Return the type in which rows come into a column: that of the column, or theirs if it would lose something."""
    if not (isinstance(table, AtomicType) and isinstance(rows, AtomicType)):
        return rows
    return rows if is_wider(rows, table) or confuses(table, rows) else table


def evolution_of(table: StructType, changes: StructType, columns: tuple[str, ...]) -> list[str]:
    """Return what is to be altered so that a table takes changes; nothing if it takes them as it is.

    Args:
        table: its schema.
        changes: theirs.
        columns: that the table gets of them.

    Returns:
        What follows ``ALTER TABLE name``, each a statement of its own.

    """
    return [*_added(table, changes, columns), *_widened(table, changes, columns)]


def _added(table: StructType, changes: StructType, columns: tuple[str, ...]) -> Iterator[str]:
    known = {name.lower() for name in table.names}
    new = [changes[name] for name in columns if name.lower() not in known]
    if new:
        yield f"ADD COLUMNS ({', '.join(map(_definition, new))})"


def _definition(field: StructField) -> str:
    comment = str(field.metadata.get("comment", "")).replace("\\", "\\\\").replace("'", "\\'")
    return f"{quoted(field.name)} {field.dataType.simpleString()}" + (f" COMMENT '{comment}'" if comment else "")


def _widened(table: StructType, changes: StructType, columns: tuple[str, ...]) -> Iterator[str]:
    kinds = {field.name.lower(): field for field in table}
    wider = [
        (kinds[name.lower()].name, changes[name].dataType)
        for name in columns
        if name.lower() in kinds and is_wider(changes[name].dataType, kinds[name.lower()].dataType)
    ]
    if wider:
        yield f"SET TBLPROPERTIES ('{_WIDENING}' = 'true')"
    for name, kind in wider:
        yield f"ALTER COLUMN {quoted(name)} TYPE {kind.simpleString()}"
