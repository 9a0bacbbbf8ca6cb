"""What a table's columns become when changes bring new ones, or values that need wider types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql.types import ArrayType, AtomicType, DataType, MapType, StructType

from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.type_differences import TypeDifference, holds, is_wider, type_differences

_WIDENING = "delta.enableTypeWidening"


def joined(table: DataType, rows: DataType) -> DataType:
    """Return the type in which rows come into a column: that of the column, or theirs if it would lose something."""
    if not (isinstance(table, AtomicType) and isinstance(rows, AtomicType)):
        return rows
    return table if holds(table, rows) and not is_wider(rows, table) else rows


def evolution_of(table: StructType, changes: StructType, columns: tuple[str, ...]) -> list[str]:
    """Return what is to be altered so that a table takes changes; nothing if it takes them as it is.

    Nested fields are added and widened, too.

    Args:
        table: its schema.
        changes: theirs.
        columns: that the table gets of them.

    Returns:
        What follows ``ALTER TABLE name``, each a statement of its own.

    """
    fields = StructType([changes[name] for name in columns])
    differences = list(type_differences(table, fields))
    return [*_added(differences, fields), *_widened(differences)]


def _added(differences: Iterable[TypeDifference], fields: StructType) -> Iterator[str]:
    new = [_definition(difference, fields) for difference in differences if difference.is_unknown]
    if new:
        yield f"ADD COLUMNS ({', '.join(new)})"


def _definition(difference: TypeDifference, fields: StructType) -> str:
    metadata = fields[difference.name].metadata if len(difference.path) == 1 else {}
    comment = str(metadata.get("comment", "")).replace("\\", "\\\\").replace("'", "\\'")
    return f"{difference.quoted_path} {sql_type(difference.rows)}" + (f" COMMENT '{comment}'" if comment else "")


def _widened(differences: Iterable[TypeDifference]) -> Iterator[str]:
    wider = [difference for difference in differences if difference.is_wider]
    if wider:
        yield f"SET TBLPROPERTIES ('{_WIDENING}' = 'true')"
    for difference in wider:
        yield f"ALTER COLUMN {difference.quoted_path} TYPE {difference.rows.simpleString()}"


def sql_type(kind: DataType) -> str:
    """Write a type as SQL; ``simpleString`` does not quote the names of fields."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(field.name)}: {sql_type(field.dataType)}' for field in kind)}>"
    if isinstance(kind, ArrayType):
        return f"array<{sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return str(kind.simpleString())
