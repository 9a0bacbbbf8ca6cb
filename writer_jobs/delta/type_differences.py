"""Compare the types of rows with those of a table, at every depth: struct fields, array elements, map keys and values.

The paths are those of Delta's ``ALTER TABLE``: ``address.zip``, ``lines.element.amount``, ``labels.value.text``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import cast

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from writer_jobs.delta.sql_names import quoted

Fold = Callable[[str], str]
"""Returns equal texts for names that mean one column."""

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_FRACTIONS = (FloatType, DoubleType)
#: Digits before the point of a decimal to which Delta widens a type of whole numbers.
DIGITS: dict[type[DataType], int] = {ByteType: 10, ShortType: 10, IntegerType: 10, LongType: 20}
_EXACT_IN: dict[type[DataType], tuple[type[DataType], ...]] = {
    StringType: (StringType, BooleanType, *_WHOLE, *_FRACTIONS, DecimalType, DateType, TimestampNTZType),
    FloatType: (ByteType, ShortType),
    DoubleType: (ByteType, ShortType, IntegerType),
    TimestampNTZType: (DateType,),
    **dict.fromkeys((*_WHOLE, DecimalType), _WHOLE),
}
"""By the type of a column, the other types of which it holds each value, or Spark fails: a number that is too large."""


@dataclass(frozen=True)
class TypeDifference:
    """A field of rows that has another type in the table, or is not there.

    Attributes:
        path: Names from the column to the field, with ``element``, ``key`` and ``value`` for arrays and maps.
        table: Type in the table; None if the table lacks the field.
        rows: Type in the rows.

    """

    path: tuple[str, ...]
    table: DataType | None
    rows: DataType

    @property
    def name(self) -> str:
        """The path for a message."""
        return ".".join(self.path)

    @property
    def quoted_path(self) -> str:
        """The path for a statement."""
        return ".".join(map(quoted, self.path))

    @property
    def is_unknown(self) -> bool:
        """Whether the table lacks the field."""
        return self.table is None

    @property
    def is_wider(self) -> bool:
        """Whether Delta can widen the table's field to the type of the rows."""
        return self.table is not None and is_wider(self.rows, self.table)

    @property
    def can_evolve(self) -> bool:
        """Whether ``ALTER TABLE`` gives the table this field with the type of the rows."""
        return self.is_unknown or self.is_wider

    @property
    def is_refused(self) -> bool:
        """Whether a value could be changed when it is cast to the type of the table."""
        return self.table is not None and not holds(self.table, self.rows)

    @property
    def is_appended(self) -> bool:
        """Whether Delta appends the field of the rows as it is.

        Source: Delta's ``SchemaMergingUtils.mergeDataTypes``. Parquet stores byte, short and int as one type.
        """
        if self.table is None or isinstance(self.rows, NullType):
            return self.table is not None
        return isinstance(self.table, ShortType | IntegerType) and is_wider(self.table, self.rows)

    def __str__(self) -> str:
        """Return the field and its types."""
        table = "none" if self.table is None else self.table.simpleString()
        return f"{self.name}: table {table}, rows {self.rows.simpleString()}"


def type_differences(
    table: DataType, rows: DataType, fold: Fold = str.lower, path: tuple[str, ...] = ()
) -> Iterator[TypeDifference]:
    """Yield the fields of rows that the table lacks or has with another type.

    A field that only the table has is no difference.

    Args:
        table: Type of the table, of one of its columns or of a part of one.
        rows: Type of the same part of the rows.
        fold: Returns equal texts for names that mean one column.
        path: Names that lead to this part.

    """
    if isinstance(table, StructType) and isinstance(rows, StructType):
        fields = {fold(field.name): field for field in table}
        for field in rows:
            column = fields.get(fold(field.name))
            if column is None:
                yield TypeDifference((*path, field.name), None, field.dataType)
            else:
                yield from type_differences(column.dataType, field.dataType, fold, (*path, column.name))
    elif isinstance(table, ArrayType) and isinstance(rows, ArrayType):
        yield from type_differences(table.elementType, rows.elementType, fold, (*path, "element"))
    elif isinstance(table, MapType) and isinstance(rows, MapType):
        yield from type_differences(table.keyType, rows.keyType, fold, (*path, "key"))
        yield from type_differences(table.valueType, rows.valueType, fold, (*path, "value"))
    elif table != rows:
        yield TypeDifference(path, table, rows)


def missing_fields(table: DataType, rows: DataType) -> Iterator[str]:
    """Yield the nested fields that the rows lack, of columns and fields that both have."""
    names = {name.lower() for name in rows.names} if isinstance(rows, StructType) else set()
    for difference in type_differences(rows, table):
        if difference.is_unknown and (len(difference.path) > 1 and difference.path[0].lower() in names):
            yield difference.name


def is_wider(wide: DataType, narrow: DataType) -> bool:
    """Return whether Delta can widen a column from one type to the other, which holds each value of the first.

    Source: Delta's protocol, "Type Widening": byte, short, int and long, in that order; float to double; decimals that
    have as many digits before and behind the point; byte, short and int to decimals with 10 digits before the point,
    long to those with 20.
    """
    if isinstance(wide, _WHOLE) and isinstance(narrow, _WHOLE):
        return _WHOLE.index(type(wide)) > _WHOLE.index(type(narrow))
    if isinstance(wide, DecimalType) and isinstance(narrow, DecimalType):
        holds_whole_part = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(wide != narrow and holds_whole_part and wide.scale >= narrow.scale)
    if isinstance(wide, DecimalType) and isinstance(narrow, _WHOLE):
        return bool(wide.precision - wide.scale >= DIGITS[type(narrow)])
    return isinstance(wide, DoubleType) and isinstance(narrow, FloatType)


def wider_of(one: DataType, two: DataType) -> DataType | None:
    """Return the type of the two to which Delta can widen the other; None if there is none."""
    if one == two or is_wider(one, two):
        return one
    return two if is_wider(two, one) else None


def holds(table: DataType, rows: DataType) -> bool:
    """Return whether a cast from the type of rows to that of the table keeps each value, or fails.

    It depends on no time zone: a timestamp is not held as text, and a local time or a date not as a timestamp.
    """
    if isinstance(table, StructType | ArrayType | MapType):
        return type(table) is type(rows) and not any(
            difference.is_unknown or difference.is_refused for difference in type_differences(table, rows)
        )
    if table == rows or isinstance(rows, NullType) or is_wider(table, rows):
        return True
    if isinstance(rows, DecimalType):
        scale = table.scale if isinstance(table, DecimalType) else 0
        return isinstance(table, StringType) or (isinstance(table, (*_WHOLE, DecimalType)) and rows.scale <= scale)
    return isinstance(rows, _EXACT_IN.get(type(table), ()))


def type_to_read(table: DataType, inferred: DataType, fold: Fold = str.lower, *, widens: bool = False) -> DataType:
    """Return the type to read JSON with: the type of the table, plus the fields that the table lacks.

    Args:
        table: Type of a column.
        inferred: Type that Spark infers from the JSON; of a JSON object a struct, also where the table has a map.
        fold: Returns equal texts for names that mean one column.
        widens: Whether to read with the inferred type where it is wider.

    """
    if isinstance(table, StructType) and isinstance(inferred, StructType):
        names_in_json = {fold(field.name): field for field in inferred}
        names = {fold(field.name) for field in table}
        # Spark's JSON reader matches names exactly: the names are those of the files.
        columns = [
            StructField(field.name, field.dataType)
            if (match := names_in_json.get(fold(field.name))) is None
            else StructField(match.name, type_to_read(field.dataType, match.dataType, fold, widens=widens))
            for field in table
        ]
        return StructType([*columns, *(field for field in inferred if fold(field.name) not in names)])
    if isinstance(table, ArrayType) and isinstance(inferred, ArrayType):
        return ArrayType(type_to_read(table.elementType, inferred.elementType, fold, widens=widens))
    if isinstance(table, MapType) and isinstance(inferred, StructType):
        values = (field.dataType for field in inferred)
        value = reduce(lambda kind, new: type_to_read(kind, new, fold, widens=widens), values, table.valueType)
        return MapType(table.keyType, value)
    return inferred if widens and is_wider(inferred, table) else table


def merged_schema(table: StructType | None, schemas: Sequence[StructType], fold: Fold) -> StructType:
    """Return the schema to read files with: of each field the widest type, in the files or in the table.

    Args:
        table: Schema of the table; None if there is no table.
        schemas: Schemas of the files.
        fold: Returns equal texts for names that mean one column.

    Raises:
        ValueError: No type is as wide as the others; the message has the path and two types.

    """
    columns = StructType() if table is None else table
    first: DataType = schemas[0]
    return cast("StructType", reduce(lambda kind, new: _merged(columns, kind, new, fold, ()), schemas, first))


def _merged(table: DataType | None, one: DataType, two: DataType, fold: Fold, path: tuple[str, ...]) -> DataType:
    def part(name: str, attribute: str) -> DataType:
        first, second, third = (getattr(kind, attribute, None) for kind in (table, one, two))
        return _merged(first, second, third, fold, (*path, name))

    if isinstance(one, StructType) and isinstance(two, StructType):
        types = {fold(field.name): field.dataType for field in (table if isinstance(table, StructType) else ())}
        fields = {fold(field.name): field for field in one}
        for field in two:
            key = fold(field.name)
            first = fields.setdefault(key, field)
            kind = _merged(types.get(key), first.dataType, field.dataType, fold, (*path, first.name))
            fields[key] = StructField(first.name, kind)
        return StructType(list(fields.values()))
    if isinstance(one, ArrayType) and isinstance(two, ArrayType):
        return ArrayType(part("element", "elementType"))
    if isinstance(one, MapType) and isinstance(two, MapType):
        return MapType(part("key", "keyType"), part("value", "valueType"))
    if table is not None and all(kind == table or is_wider(table, kind) for kind in (one, two)):
        return table
    if (wider := wider_of(one, two)) is not None:
        return wider
    raise ValueError(f"{'.'.join(path)}: {one.simpleString()} and {two.simpleString()}")


def mismatch(differences: Iterable[TypeDifference]) -> str | None:
    """Return a sentence about fields that a table lacks, and about types that cannot be cast; None without any."""
    listed = list(differences)
    unknown = [difference.name for difference in listed if difference.is_unknown]
    types = [str(difference) for difference in listed if not difference.is_unknown]
    parts = [f"the table has no column {', '.join(unknown)}"] if unknown else []
    if types:
        parts.append(f"the types do not match ({'; '.join(types)}): cast the rows to the types of the table")
    return "; ".join(parts) or None
