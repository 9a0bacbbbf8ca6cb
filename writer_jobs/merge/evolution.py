"""Schema evolution: the ALTER TABLE clauses that add columns and widen types for a batch of changes."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, AtomicType, DataType, MapType, StructType, TimestampNTZType

from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.type_differences import TypeDifference, holds, is_wider, type_differences

_WIDENING, _LOCAL_TIMES = "delta.enableTypeWidening", "delta.feature.timestampNtz"


def target_type(column_type: DataType, row_type: DataType) -> DataType:
    """Return the type that a column needs to store rows: its own, or that of the rows if its own would lose values.

    If one of the types is not an ``AtomicType``, the type of the rows is returned.
    """
    if not (isinstance(column_type, AtomicType) and isinstance(row_type, AtomicType)):
        return row_type
    return column_type if holds(column_type, row_type) and not is_wider(row_type, column_type) else row_type


def alter_clauses(table: StructType, changes: StructType, columns: tuple[str, ...]) -> list[str]:
    """Return the clauses that alter a table so that it can store changes; empty if it can store them as it is.

    Nested fields are added and widened, too. ``columns`` are the columns of the changes that the table gets. Each
    clause is for an ``ALTER TABLE name`` statement of its own.
    """
    fields = StructType([changes[name] for name in columns])
    differences = list(type_differences(table, fields))
    clauses = []
    has_new_local_times = any(difference.is_unknown and _has_local_times(difference.rows) for difference in differences)
    if has_new_local_times and not _has_local_times(table):
        # Delta enables this feature by itself only when it creates a table.
        clauses.append(f"SET TBLPROPERTIES ('{_LOCAL_TIMES}' = 'supported')")
    if definitions := [_definition(difference, fields) for difference in differences if difference.is_unknown]:
        clauses.append(f"ADD COLUMNS ({', '.join(definitions)})")
    if wider_differences := [difference for difference in differences if difference.is_wider]:
        clauses.append(f"SET TBLPROPERTIES ('{_WIDENING}' = 'true')")
        clauses += [
            f"ALTER COLUMN {column.quoted_path} TYPE {column.rows.simpleString()}" for column in wider_differences
        ]
    return clauses


def _definition(difference: TypeDifference, fields: StructType) -> str:
    metadata = fields[difference.name].metadata if len(difference.path) == 1 else {}
    comment = str(metadata.get("comment", "")).replace("\\", "\\\\").replace("'", "\\'")
    return f"{difference.quoted_path} {sql_type(difference.rows)}" + (f" COMMENT '{comment}'" if comment else "")


def _has_local_times(data_type: DataType) -> bool:
    """Return whether a type is ``timestamp_ntz``, or contains it at any depth."""
    if isinstance(data_type, StructType):
        return any(_has_local_times(field.dataType) for field in data_type)
    if isinstance(data_type, ArrayType):
        return _has_local_times(data_type.elementType)
    if isinstance(data_type, MapType):
        return _has_local_times(data_type.keyType) or _has_local_times(data_type.valueType)
    return isinstance(data_type, TimestampNTZType)


def sql_type(data_type: DataType) -> str:
    """Return the SQL text of a type. ``simpleString`` does not quote field names."""
    if isinstance(data_type, StructType):
        return f"struct<{', '.join(f'{quoted(field.name)}: {sql_type(field.dataType)}' for field in data_type)}>"
    if isinstance(data_type, ArrayType):
        return f"array<{sql_type(data_type.elementType)}>"
    if isinstance(data_type, MapType):
        return f"map<{sql_type(data_type.keyType)}, {sql_type(data_type.valueType)}>"
    return str(data_type.simpleString())
