"""Compare the types of rows with the types of a table: columns, struct fields, array elements, map keys and values.

Paths have the form of Delta's ``ALTER TABLE``: ``address.zip``, ``lines.element.amount``, ``labels.value.text``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from pyspark.sql import types as T  # noqa: N812 (its name everywhere)

from writer_jobs.delta.sql_names import quoted

#: Function of a column's name. It returns equal texts for names of the same column.
Fold = Callable[[str], str]

_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_FRACTIONS = (T.FloatType, T.DoubleType)
#: Digits before the decimal point of the smallest decimal to which Delta widens a type of whole numbers.
DIGITS: dict[type[T.DataType], int] = {T.ByteType: 10, T.ShortType: 10, T.IntegerType: 10, T.LongType: 20}
# For each type of a column: the types from which a cast keeps each value. The cast of a number out of range fails.
_EXACT_IN: dict[type[T.DataType], tuple[type[T.DataType], ...]] = {
    T.StringType: (T.StringType, T.BooleanType, *_WHOLE, *_FRACTIONS, T.DecimalType, T.DateType, T.TimestampNTZType),
    T.FloatType: (T.ByteType, T.ShortType),
    T.DoubleType: (T.ByteType, T.ShortType, T.IntegerType),
    T.TimestampNTZType: (T.DateType,),
    **dict.fromkeys((*_WHOLE, T.DecimalType), _WHOLE),
}


@dataclass(frozen=True)
class TypeDifference:
    """A field of rows that the table lacks or has with another type.

    Attributes:
        path: Names from the column to the field, with ``element``, ``key`` and ``value`` for arrays and maps.
        table: Type in the table; None if the table lacks the field.

    """

    path: tuple[str, ...]
    table: T.DataType | None
    rows: T.DataType

    @property
    def name(self) -> str:
        """Path for an error message."""
        return ".".join(self.path)

    @property
    def quoted_path(self) -> str:
        """Path for an SQL statement."""
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
        """Whether ``ALTER TABLE`` can give the table this field with the type of the rows."""
        return self.is_unknown or self.is_wider

    @property
    def is_refused(self) -> bool:
        """Whether a cast to the type of the table could change a value."""
        return self.table is not None and not holds(self.table, self.rows)

    @property
    def is_accepted_by_append(self) -> bool:
        """Whether an append to the table's field accepts the type of the rows without a cast.

        Source: Delta's ``SchemaMergingUtils.mergeDataTypes``. Parquet stores byte, short and int as one type.
        """
        if self.table is None or isinstance(self.rows, T.NullType):
            return self.table is not None
        return isinstance(self.table, T.ShortType | T.IntegerType) and is_wider(self.table, self.rows)

    def __str__(self) -> str:
        """Return the field and its types."""
        table = "none" if self.table is None else self.table.simpleString()
        return f"{self.name}: table {table}, rows {self.rows.simpleString()}"


def type_differences(
    table: T.DataType, rows: T.DataType, fold: Fold = str.lower, path: tuple[str, ...] = ()
) -> Iterator[TypeDifference]:
    """Yield the fields of rows that the table lacks or has with another type.

    Fields that only the table has are not reported.
    """
    if isinstance(table, T.StructType) and isinstance(rows, T.StructType):
        fields = {fold(field.name): field for field in table}
        for field in rows:
            column = fields.get(fold(field.name))
            if column is None:
                yield TypeDifference((*path, field.name), None, field.dataType)
            else:
                yield from type_differences(column.dataType, field.dataType, fold, (*path, column.name))
    elif isinstance(table, T.ArrayType) and isinstance(rows, T.ArrayType):
        yield from type_differences(table.elementType, rows.elementType, fold, (*path, "element"))
    elif isinstance(table, T.MapType) and isinstance(rows, T.MapType):
        yield from type_differences(table.keyType, rows.keyType, fold, (*path, "key"))
        yield from type_differences(table.valueType, rows.valueType, fold, (*path, "value"))
    elif table != rows:
        yield TypeDifference(path, table, rows)


def missing_fields(table: T.DataType, rows: T.DataType) -> Iterator[str]:
    """Yield the paths of the table's nested fields that the rows lack, in columns that both have."""
    names = {name.lower() for name in rows.names} if isinstance(rows, T.StructType) else set()
    for difference in type_differences(rows, table):
        if difference.is_unknown and len(difference.path) > 1 and difference.path[0].lower() in names:
            yield difference.name


def is_wider(wide: T.DataType, narrow: T.DataType) -> bool:
    """Return whether a column may be widened from ``narrow`` to ``wide``, which holds every value of ``narrow``.

    Source: Delta's protocol, "Type Widening": byte, short, int and long, in that order; float to double; a decimal to
    one with at least as many digits before and after the decimal point; byte, short and int to a decimal with at least
    10 digits before the point, long to one with at least 20. The protocol's changes of byte, short and int to double,
    and of date to a timestamp without a time zone, are not used.
    """
    if isinstance(wide, _WHOLE) and isinstance(narrow, _WHOLE):
        return _WHOLE.index(type(wide)) > _WHOLE.index(type(narrow))
    if isinstance(wide, T.DecimalType) and isinstance(narrow, T.DecimalType):
        holds_whole_part = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(wide != narrow and holds_whole_part and wide.scale >= narrow.scale)
    if isinstance(wide, T.DecimalType) and isinstance(narrow, _WHOLE):
        return bool(wide.precision - wide.scale >= DIGITS[type(narrow)])
    return isinstance(wide, T.DoubleType) and isinstance(narrow, T.FloatType)


def wider_of(left_type: T.DataType, right_type: T.DataType) -> T.DataType | None:
    """Return the one of two types to which Delta can widen the other; None if it can widen neither."""
    if left_type == right_type or is_wider(left_type, right_type):
        return left_type
    return right_type if is_wider(right_type, left_type) else None


def holds(table: T.DataType, rows: T.DataType) -> bool:
    """Return whether a cast from the type of the rows to the type of the table keeps each value, or fails.

    A cast that depends on the time zone does not count: a timestamp to text; a local time or a date to a timestamp.
    """
    if isinstance(table, T.StructType | T.ArrayType | T.MapType):
        return type(table) is type(rows) and not any(
            difference.is_unknown or difference.is_refused for difference in type_differences(table, rows)
        )
    if table == rows or isinstance(rows, T.NullType) or is_wider(table, rows):
        return True
    if isinstance(rows, T.DecimalType):
        scale = table.scale if isinstance(table, T.DecimalType) else 0
        return isinstance(table, T.StringType) or (isinstance(table, (*_WHOLE, T.DecimalType)) and rows.scale <= scale)
    return isinstance(rows, _EXACT_IN.get(type(table), ()))


def type_to_read(
    table: T.DataType, inferred_type: T.DataType, fold: Fold = str.lower, *, widens: bool = False
) -> T.DataType:
    """Return the type to read JSON with: the type of the table, plus the fields that the table lacks.

    Args:
        inferred_type: Type that Spark infers from the JSON: a struct for a JSON object, also if the table has a map.
        widens: Whether to return the inferred type where it is wider.

    """
    if isinstance(table, T.StructType) and isinstance(inferred_type, T.StructType):
        json_fields = {fold(field.name): field for field in inferred_type}
        names = {fold(field.name) for field in table}
        # Spark's JSON reader matches names exactly, so the returned type has the names in the files.
        columns = [
            T.StructField(field.name, field.dataType)
            if (match := json_fields.get(fold(field.name))) is None
            else T.StructField(match.name, type_to_read(field.dataType, match.dataType, fold, widens=widens))
            for field in table
        ]
        return T.StructType([*columns, *(field for field in inferred_type if fold(field.name) not in names)])
    if isinstance(table, T.ArrayType) and isinstance(inferred_type, T.ArrayType):
        return T.ArrayType(type_to_read(table.elementType, inferred_type.elementType, fold, widens=widens))
    if isinstance(table, T.MapType) and isinstance(inferred_type, T.StructType):
        value_type = table.valueType
        for field in inferred_type:
            value_type = type_to_read(value_type, field.dataType, fold, widens=widens)
        return T.MapType(table.keyType, value_type)
    return inferred_type if widens and is_wider(inferred_type, table) else table


def merged_schema(table: T.StructType | None, schemas: Sequence[T.StructType], fold: Fold) -> T.StructType:
    """Return the schema to read files with. Each field has its widest type in the files and the table.

    If two types of a field cannot be widened to one type, raise ValueError with the path and both types.
    """
    columns = T.StructType() if table is None else table
    merged_type: T.DataType = schemas[0]
    for schema in schemas:
        merged_type = _merged_type(columns, merged_type, schema, fold, ())
    return cast("T.StructType", merged_type)


def _merged_type(
    table: T.DataType | None, merged_type: T.DataType, new_type: T.DataType, fold: Fold, path: tuple[str, ...]
) -> T.DataType:
    """Return the type that holds the values of two types; ``table`` is the type of the same part of the table."""

    def part_of(name: str, attribute: str) -> T.DataType:
        table_part, part, new_part = (
            getattr(data_type, attribute, None) for data_type in (table, merged_type, new_type)
        )
        return _merged_type(table_part, part, new_part, fold, (*path, name))

    if isinstance(merged_type, T.StructType) and isinstance(new_type, T.StructType):
        types = {fold(field.name): field.dataType for field in (table if isinstance(table, T.StructType) else ())}
        fields = {fold(field.name): field for field in merged_type}
        for field in new_type:
            key = fold(field.name)
            merged_field = fields.setdefault(key, field)
            field_type = _merged_type(
                types.get(key), merged_field.dataType, field.dataType, fold, (*path, merged_field.name)
            )
            fields[key] = T.StructField(merged_field.name, field_type)
        return T.StructType(list(fields.values()))
    if isinstance(merged_type, T.ArrayType) and isinstance(new_type, T.ArrayType):
        return T.ArrayType(part_of("element", "elementType"))
    if isinstance(merged_type, T.MapType) and isinstance(new_type, T.MapType):
        return T.MapType(part_of("key", "keyType"), part_of("value", "valueType"))
    if table is not None and all(
        data_type == table or is_wider(table, data_type) for data_type in (merged_type, new_type)
    ):
        return table
    if (wider := wider_of(merged_type, new_type)) is not None:
        return wider
    raise ValueError(f"{'.'.join(path)}: {merged_type.simpleString()} and {new_type.simpleString()}")


def mismatch(differences: Iterable[TypeDifference]) -> str | None:
    """Return an error message about fields that a table lacks and types that do not match; None if there are none."""
    fields = list(differences)
    unknown_columns = [field.name for field in fields if field.is_unknown]
    conflicts = [str(field) for field in fields if not field.is_unknown]
    reasons = [f"the table has no column {', '.join(unknown_columns)}"] if unknown_columns else []
    if conflicts:
        reasons.append(f"the types do not match ({'; '.join(conflicts)}): cast the rows to the types of the table")
    return "; ".join(reasons) or None
