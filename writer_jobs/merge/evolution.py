"""Schema evolution: the ALTER TABLE clauses that add columns and widen types for a batch of changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql.types import ArrayType, AtomicType, DataType, MapType, StructType

from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.type_differences import TypeDifference, holds, is_wider, type_differences

_WIDENING = "delta.enableTypeWidening"


def target_type(column: DataType, rows: DataType) -> DataType:
    """Return the type that stores rows in a column: that of the column, or that of the rows if it would lose values."""
    if not (isinstance(column, AtomicType) and isinstance(rows, AtomicType)):
        return rows
    return column if holds(column, rows) and not is_wider(rows, column) else rows


def alter_clauses(table: StructType, changes: StructType, columns: tuple[str, ...]) -> list[str]:
    """Return the clauses that alter a table so that it can store changes; empty if it can store them as it is.

    Nested fields are added and widened, too.

    Args:
        table: Schema of the table.
        changes: Schema of the changes.
        columns: Columns of the changes that the table gets.

    Returns:
        Clauses of ``ALTER TABLE name``. Each is a statement of its own.

    """
    fields = StructType([changes[name] for name in columns])
    differences = list(type_differences(table, fields))
    return [*_add_clauses(differences, fields), *_widen_clauses(differences)]


def _add_clauses(differences: Iterable[TypeDifference], fields: StructType) -> Iterator[str]:
    definitions = [_definition(difference, fields) for difference in differences if difference.is_unknown]
    if definitions:
        yield f"ADD COLUMNS ({', '.join(definitions)})"


def _definition(difference: TypeDifference, fields: StructType) -> str:
    metadata = fields[difference.name].metadata if len(difference.path) == 1 else {}
    comment = str(metadata.get("comment", "")).replace("\\", "\\\\").replace("'", "\\'")
    return f"{difference.quoted_path} {sql_type(difference.rows)}" + (f" COMMENT '{comment}'" if comment else "")


def _widen_clauses(differences: Iterable[TypeDifference]) -> Iterator[str]:
    wider = [difference for difference in differences if difference.is_wider]
    if wider:
        yield f"SET TBLPROPERTIES ('{_WIDENING}' = 'true')"
    for difference in wider:
        yield f"ALTER COLUMN {difference.quoted_path} TYPE {difference.rows.simpleString()}"


def sql_type(data_type: DataType) -> str:
    """Return the SQL text of a type. ``simpleString`` does not quote field names."""
    if isinstance(data_type, StructType):
        return f"struct<{', '.join(f'{quoted(field.name)}: {sql_type(field.dataType)}' for field in data_type)}>"
    if isinstance(data_type, ArrayType):
        return f"array<{sql_type(data_type.elementType)}>"
    if isinstance(data_type, MapType):
        return f"map<{sql_type(data_type.keyType)}, {sql_type(data_type.valueType)}>"
    return str(data_type.simpleString())
