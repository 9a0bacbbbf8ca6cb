"""Refuse partition values that Delta would store as other values.

Delta stores ``''`` in a string partition column as null (protocol, "Partition Value Serialization"). Spark writes null
as ``__HIVE_DEFAULT_PARTITION__``, so this text becomes null, too. Values of a binary partition column are converted to
text, and bytes that are not UTF-8 become U+FFFD (``DelayedCommitProtocol.parsePartitions``, v4.4.0). A timestamp is
converted to text in the session's time zone. So in a zone that sets clocks back, two moments become one. This also
happens to rows that an operation only copies into another file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import BinaryType, CharType, DataType, StringType, StructType, TimestampType, VarcharType

from lock_manager.partitions import HIVE_NULL
from writer_jobs.delta.java_classes import java_class
from writer_jobs.delta.jvm_errors import messages_of
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.sql_names import parsed_expression, quoted
from writer_jobs.errors import SchemaMismatchError

_TIME_ZONE_SETTING = "spark.sql.session.timeZone"
_TEXT_TYPES = (StringType, CharType, VarcharType, BinaryType)
_STORED_AS_NULL = ("", HIVE_NULL)
_EQUALITIES = ("EqualTo", "EqualNullSafe", "In")
_MAX_NAME_BYTES = 255
_FOLDER_FAILED = re.compile(r"Mkdirs failed to create (.+?)(?: \(exists=|$)|^(/.+): File name too long", re.MULTILINE)


def partition_types(state: TableState | None, partition_by: Sequence[str], rows: StructType) -> dict[str, DataType]:
    """Return the stored types of the table's and the requested partition columns, by the rows' column names."""
    stored_types = {} if state is None else {field.name.lower(): field.dataType for field in state.schema}
    names = {name.lower() for name in (*(state.partition_columns if state is not None else ()), *partition_by)}
    return {
        field.name: stored_types.get(field.name.lower(), field.dataType)
        for field in rows
        if field.name.lower() in names
    }


def unstorable_row_reason(rows: StructType, partitions: Mapping[str, DataType], prefix: str = "") -> Column:
    """Return a text column: the reason why Delta cannot store a row's partition values unchanged; null if it can.

    Args:
        partitions: Stored types of the partition columns, see :func:`partition_types`.
        prefix: Path to the struct with the columns, such as ``row.``; empty for top-level columns.

    """
    reasons = [
        unstorable_value_reason(name, F.col(prefix + quoted(name)))
        for name, stored_type in partitions.items()
        if _is_text(stored_type, rows[name].dataType)
    ]
    return F.coalesce(*reasons) if reasons else F.lit(None).cast("string")


def _is_text(stored_type: DataType, row_type: DataType) -> bool:
    """Return whether Delta stores a partition value as a text that may stand for another value."""
    return isinstance(stored_type, _TEXT_TYPES) and isinstance(row_type, _TEXT_TYPES)


def unstorable_value_reason(name: str, value: Column) -> Column:
    """Return the reason (text) why Delta cannot store a partition value (string, bytes) unchanged; null if it can."""
    text = value.cast("string")
    return F.when(
        text.isin(*_STORED_AS_NULL),
        F.concat(
            F.lit(f"the partition column {name} has the value '"),
            text,
            F.lit("', which Delta stores as null: write null or another text, or partition by another column"),
        ),
    ).when(
        ~F.is_valid_utf8(text),
        F.concat(
            F.lit(f"the partition column {name} has the bytes "),
            F.hex(text),
            F.lit(", which are not UTF-8, and Delta stores text: partition by another column"),
        ),
    )


def with_storable_values(rows: DataFrame, partitions: Mapping[str, DataType], where: Column | None = None) -> DataFrame:
    """Return the rows with a check: reading fails at a row whose partition values Delta would store as other values.

    Args:
        partitions: Stored types of the partition columns, see :func:`partition_types`.
        where: Condition of the rows to check; None for all rows.

    """
    names = [name.lower() for name in rows.columns]
    checked_rows = rows
    for name, stored_type in partitions.items():
        # Delta refuses rows with two columns of one name.
        if not _is_text(stored_type, rows.schema[name].dataType) or names.count(name.lower()) > 1:
            continue
        reason = unstorable_value_reason(name, F.col(quoted(name)))
        is_unstorable = reason.isNotNull() if where is None else reason.isNotNull() & where
        field = rows.schema[name]
        value = F.when(is_unstorable, F.raise_error(reason).cast(field.dataType)).otherwise(F.col(quoted(name)))
        checked_rows = checked_rows.withColumn(name, value.alias(name, metadata=field.metadata or {}))
    return checked_rows


def refuse_clock_changes(spark: SparkSession, table: str, partitions: Mapping[str, DataType]) -> None:
    """Raise SchemaMismatchError if a partition column is a TIMESTAMP and the session's time zone has clock changes."""
    timestamps = [name for name, stored_type in partitions.items() if isinstance(stored_type, TimestampType)]
    if not timestamps:
        return
    jvm: Any = spark._jvm  # noqa: SLF001
    zone = str(spark.conf.get(_TIME_ZONE_SETTING))
    times = java_class(jvm, "org.apache.spark.sql.catalyst.util.DateTimeUtils")
    if not times.getZoneId(zone).getRules().isFixedOffset():
        raise SchemaMismatchError(
            table=table,
            reason=f"{timestamps[0]} is a partition column with timestamps, and the clocks of the session's time zone "
            f"{zone} change or have changed, so that Delta would store two moments as one: set "
            f"{_TIME_ZONE_SETTING}=UTC (spark-submit --conf)",
        )


def refuse_predicate_of_nulls(spark: SparkSession, table: str, predicate: str, state: TableState | None) -> None:
    """Raise SchemaMismatchError if a predicate requires a text that a string partition column cannot have.

    Only ``=``, ``<=>`` and ``IN`` are refused, alone or in parts of AND and OR. Other conditions can match rows, such
    as ``<> ''`` or a function of the column.
    """
    types = {} if state is None else state.partition_types
    columns = {name.lower(): name for name, stored_type in types.items() if isinstance(stored_type, StringType)}
    # Delta reports a predicate that cannot be parsed.
    if not columns or (parsed_predicate := parsed_expression(spark, predicate)) is None:
        return
    jvm: Any = spark._jvm  # noqa: SLF001
    expressions = [parsed_predicate]
    while expressions:
        expression = expressions.pop()
        children = list(java_class(jvm, "scala.jdk.javaapi.CollectionConverters").asJava(expression.children()))
        operator = expression.getClass().getSimpleName()
        if operator in ("And", "Or"):
            expressions += children
        if operator not in _EQUALITIES:
            continue
        operands = [(child.getClass().getSimpleName(), child) for child in children]
        names = {
            str(child.name()).strip("`").lower()
            for class_name, child in operands
            if class_name == "UnresolvedAttribute"
        }
        literals = {str(child.value()) for class_name, child in operands if class_name == "Literal"}
        if (compared_columns := names & columns.keys()) and (null_texts := literals.intersection(_STORED_AS_NULL)):
            name = columns[compared_columns.pop()]
            raise SchemaMismatchError(
                table=table,
                reason=f"the predicate compares the partition column {name} with '{null_texts.pop()}', which Delta "
                f"stores as null: use {quoted(name)} IS NULL",
            )


def long_folder_reason(error: BaseException) -> str | None:
    """Return why a write failed, if the name of a partition's folder is too long; None for any other failure."""
    for message in messages_of(error):
        for match in _FOLDER_FAILED.finditer(message):
            for name in (match[1] or match[2]).split("/"):
                if "=" in name and len(name.encode()) > _MAX_NAME_BYTES:
                    return (
                        f"the value of the partition column {name.partition('=')[0]} makes a folder name of "
                        f"{len(name.encode())} bytes, and the file system allows {_MAX_NAME_BYTES}: shorten the value, "
                        "or partition the table by another column"
                    )
    return None
