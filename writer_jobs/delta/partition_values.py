"""Refuse partition values that Delta would store as other values.

Delta stores ``''`` in a string partition column as null (protocol, "Partition Value Serialization"), and Spark writes
null as ``__HIVE_DEFAULT_PARTITION__``, so that this text is null, too. Values of a binary partition column pass through
a text as well, and bytes that are not UTF-8 become U+FFFD (``DelayedCommitProtocol.parsePartitions``, v4.4.0). A
timestamp passes through a text in the session's time zone. So in a zone that puts clocks back two moments
become one, also in rows that an operation only copies into another file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import BinaryType, CharType, DataType, StringType, StructType, TimestampType, VarcharType

from lock_manager.partitions import HIVE_NULL
from writer_jobs.delta.jvm_errors import messages_of
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.sql_names import parsed_expression, quoted
from writer_jobs.errors import SchemaMismatchError

_ZONE = "spark.sql.session.timeZone"
_TEXTS = (StringType, CharType, VarcharType, BinaryType)
_STORED_AS_NULL = ("", HIVE_NULL)
_EQUALITIES = ("EqualTo", "EqualNullSafe", "In")
_MOST_BYTES = 255
_FOLDER_FAILED = re.compile(r"Mkdirs failed to create (.+?)(?: \(exists=|$)|^(/.+): File name too long", re.MULTILINE)


def partition_types(state: TableState | None, partition_by: Sequence[str], rows: StructType) -> dict[str, DataType]:
    """Return the stored types of the partition columns that rows have, by the rows' names.

    Args:
        state: State of the table; None if there is no table.
        partition_by: Partition columns that a write asks for.
        rows: Schema of the rows.

    """
    stored = {} if state is None else {field.name.lower(): field.dataType for field in state.schema}
    names = {name.lower() for name in (*(state.partition_columns if state is not None else ()), *partition_by)}
    return {field.name: stored.get(field.name.lower(), field.dataType) for field in rows if field.name.lower() in names}


def unstorable_reason(rows: StructType, partitions: Mapping[str, DataType], prefix: str = "") -> Column:
    """Return a text column: why Delta cannot store a row's partition values as they are; null if it can.

    Args:
        rows: Schema of the rows.
        partitions: Stored types of partition columns by the rows' names, see :func:`partition_types`.
        prefix: Path to the struct that has the columns, such as ``row.``; empty: they are columns of the rows.

    """
    reasons = [
        unstorable_text(name, F.col(prefix + quoted(name)))
        for name, kind in partitions.items()
        if _is_text(kind, rows[name].dataType)
    ]
    return F.coalesce(*reasons) if reasons else F.lit(None).cast("string")


def _is_text(stored: DataType, row_type: DataType) -> bool:
    """Return whether a partition value passes through a text that may mean another value."""
    return isinstance(stored, _TEXTS) and isinstance(row_type, _TEXTS)


def unstorable_text(name: str, value: Column) -> Column:
    """Return a text column: why Delta cannot store a partition value as it is; null if it can.

    Args:
        name: Name of the partition column.
        value: Text, or bytes.

    """
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
            F.lit(", which are not UTF-8, and Delta stores a text: partition by another column"),
        ),
    )


def with_storable_values(rows: DataFrame, partitions: Mapping[str, DataType], where: Column | None = None) -> DataFrame:
    """Return the rows; reading them fails at a row whose partition values Delta would store as other values.

    Args:
        rows: Rows for a table.
        partitions: As for :func:`unstorable_reason`.
        where: Only rows that match are checked; None: all rows.

    """
    names = [name.lower() for name in rows.columns]
    checked = rows
    for name, kind in partitions.items():
        if not _is_text(kind, rows.schema[name].dataType):
            continue
        if names.count(name.lower()) > 1:
            # Delta refuses rows with two columns of one name.
            continue
        reason = unstorable_text(name, F.col(quoted(name)))
        fails = reason.isNotNull() if where is None else reason.isNotNull() & where
        field = rows.schema[name]
        value = F.when(fails, F.raise_error(reason).cast(field.dataType)).otherwise(F.col(quoted(name)))
        checked = checked.withColumn(name, value.alias(name, metadata=field.metadata or {}))
    return checked


def refuse_clock_changes(spark: SparkSession, table: str, partitions: Mapping[str, DataType]) -> None:
    """Make sure that a session writes timestamps of partition columns as they are.

    Args:
        spark: Session that writes.
        table: Canonical URI, for the message.
        partitions: Stored types of partition columns by name.

    Raises:
        SchemaMismatchError: A partition column is a TIMESTAMP, and the session's time zone changes its clocks, or has
            ever changed them: a value may be of that time.

    """
    moments = [name for name, kind in partitions.items() if isinstance(kind, TimestampType)]
    if not moments:
        return
    jvm: Any = spark._jvm  # noqa: SLF001
    zone = str(spark.conf.get(_ZONE))
    if not jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId(zone).getRules().isFixedOffset():
        raise SchemaMismatchError(
            table=table,
            reason=f"{moments[0]} is a partition column with timestamps, and the clocks of the session's time zone "
            f"{zone} change or have changed, so that Delta would store two moments as one: set {_ZONE}=UTC "
            "(spark-submit --conf)",
        )


def refuse_predicate_of_nulls(spark: SparkSession, table: str, predicate: str, state: TableState | None) -> None:
    """Make sure that a predicate does not require a text that a string partition column cannot have.

    Only ``=``, ``<=>`` and ``IN`` are refused, alone or in parts of AND and OR. Other conditions match rows: ``<> ''``,
    or a function of the column.

    Args:
        spark: Session that parses the predicate.
        table: Canonical URI, for the message.
        predicate: SQL predicate.
        state: State of the table; None if there is no table.

    Raises:
        SchemaMismatchError: The predicate compares a string partition column with a text that Delta stores as null.

    """
    types = {} if state is None else state.partition_types
    columns = {name.lower(): name for name, kind in types.items() if isinstance(kind, StringType)}
    if not columns:
        return
    if (parsed := parsed_expression(spark, predicate)) is None:
        # Delta reports it.
        return
    jvm: Any = spark._jvm  # noqa: SLF001
    expressions = [parsed]
    while expressions:
        expression = expressions.pop()
        children = list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(expression.children()))
        operator = expression.getClass().getSimpleName()
        if operator in ("And", "Or"):
            expressions += children
        if operator not in _EQUALITIES:
            continue
        kinds = [(child.getClass().getSimpleName(), child) for child in children]
        names = {str(child.name()).strip("`").lower() for kind, child in kinds if kind == "UnresolvedAttribute"}
        texts = {str(child.value()) for kind, child in kinds if kind == "Literal"}
        if (found := names & columns.keys()) and (text := texts.intersection(_STORED_AS_NULL)):
            name = columns[found.pop()]
            raise SchemaMismatchError(
                table=table,
                reason=f"the predicate compares the partition column {name} with '{text.pop()}', which Delta stores as "
                f"null: use {quoted(name)} IS NULL",
            )


def long_folder_name(error: BaseException) -> str | None:
    """Return the reason of a write that failed because a partition's folder has too long a name; None: another reason.

    Args:
        error: Error of the write.

    """
    for message in messages_of(error):
        for match in _FOLDER_FAILED.finditer(message):
            for name in (match[1] or match[2]).split("/"):
                if "=" in name and len(name.encode()) > _MOST_BYTES:
                    return (
                        f"the value of the partition column {name.partition('=')[0]} makes a folder name of "
                        f"{len(name.encode())} bytes, and the file system allows {_MOST_BYTES}: shorten the value, or "
                        "partition the table by another column"
                    )
    return None
