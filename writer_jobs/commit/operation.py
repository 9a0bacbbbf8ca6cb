"""The work of a write: rows for Delta's DataFrame writer, or an operation of ``DeltaTable``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import StructType

from writer_jobs.errors import UnsupportedSessionError

if TYPE_CHECKING:
    from delta.tables import DeltaTable

_SESSION_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_OVERWRITE_MODE = "partitionOverwriteMode"
_REPLACE_WHERE = "replaceWhere"
#: Options of Delta's writer that change the schema of a table.
MERGE_SCHEMA, OVERWRITE_SCHEMA = "mergeSchema", "overwriteSchema"
_CONDITIONS = frozenset({_REPLACE_WHERE.lower(), "replaceon"})
_OWN_OPTIONS = {
    "txnappid": "txn",
    "txnversion": "txn",
    "path": "table",
    _REPLACE_WHERE.lower(): "replace_where",
    _OVERWRITE_MODE.lower(): "dynamic",
}


Read: TypeAlias = DataFrame | Column | str
"""A plan, a column, or a condition in SQL."""


@dataclass(frozen=True)
class Work:
    """One operation on a table.

    Attributes:
        do: does it, given the table's location and the ``userMetadata`` of the commit; may be called again.
        schema: Returns the schema of the rows that it writes, for messages.
        rows: that it appends; None for any other operation.
        reads: Plans, columns and SQL conditions of the caller. The gate examines them.
        options: of Delta's writer.
        session: of the rows, whose settings count when they are written; None if it is the writer's.
        txn: ``(txnAppId, txnVersion)`` or None.
        user_metadata: the caller's own, to be kept.
        keeps_rows: whether it only puts rows of the table into other files.
        takes_metadata: whether the commit has the ``userMetadata`` that is given to it. Where it has not, Delta has
            only a setting for the whole session, which other threads share.

    """

    do: Callable[[str, str], object]
    schema: Callable[[], StructType] = StructType
    txn: tuple[str, int] | None = None
    user_metadata: str | None = None
    takes_metadata: bool = False
    keeps_rows: bool = False
    rows: DataFrame | None = None
    reads: Sequence[Read] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    session: SparkSession | None = None


def delta_table(spark: SparkSession, location: str) -> DeltaTable:
    """Return Delta's own handle of a table.

    Raises:
        UnsupportedSessionError: Delta's Python module is not there.

    """
    try:
        from delta.tables import DeltaTable  # noqa: PLC0415 (appending does not need it)
    except ModuleNotFoundError as error:
        raise UnsupportedSessionError(
            "merge, delete, update and optimize need Delta's Python module: give spark-submit the --py-files that "
            "`sluice submit-args` prints, or install delta-spark for the driver"
        ) from error
    table: DeltaTable = DeltaTable.forPath(spark, location)
    return table


def transaction_settings(app_id: str, version: int) -> dict[str, str]:
    """Return the settings with which Delta notes a transaction in a commit, and skips one that it has already."""
    return {"spark.databricks.delta.write.txnAppId": app_id, "spark.databricks.delta.write.txnVersion": str(version)}


def has_option(options: Mapping[str, str] | None, *names: str) -> bool:
    """Return whether one of some options is true; their names have no case."""
    lower = {name.lower() for name in names}
    return any(name.lower() in lower and str(value).lower() == "true" for name, value in (options or {}).items())


def write_rows(
    spark: SparkSession,
    df: DataFrame,
    *,
    mode: str,
    partition_by: Sequence[str],
    options: Mapping[str, str] | None,
    txn: tuple[str, int] | None,
    replace_where: str | None = None,
    dynamic: bool = False,
) -> Work:
    """Return the work of ``df.write``.

    Args:
        spark: the session.
        df: the rows.
        mode: ``append`` or ``overwrite``.
        partition_by: partition columns of a new table.
        options: of Delta's writer.
        txn: ``(txnAppId, txnVersion)`` or None.
        replace_where: overwrite what this matches only.
        dynamic: overwrite the partitions that the rows are in only.

    Raises:
        ValueError: ``options`` has what is an argument of its own.

    """
    given = dict(options or {})
    user_metadata: str | None = spark.conf.get(_SESSION_METADATA, None)
    for name in list(given):
        if (argument := _OWN_OPTIONS.get(name.lower())) is not None:
            raise ValueError(f"option {name!r} cannot be given: use the argument {argument}")
        if name.lower() == "usermetadata":
            user_metadata = given.pop(name)
    if txn is not None:
        given |= {"txnAppId": txn[0], "txnVersion": str(txn[1])}
    if mode == "overwrite":
        # Whatever spark.sql.sources.partitionOverwriteMode says: another meaning needs another lock.
        given[_OVERWRITE_MODE] = "dynamic" if dynamic else "static"
    if replace_where is not None:
        given[_REPLACE_WHERE] = replace_where

    def do(location: str, metadata: str) -> None:
        writer = df.write.format("delta").mode(mode).options(**given).option("userMetadata", metadata)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.save(location)

    return Work(
        do,
        lambda: df.schema,
        txn,
        user_metadata,
        takes_metadata=True,
        rows=df if mode == "append" else None,
        reads=(df, *(value for name, value in given.items() if name.lower() in _CONDITIONS)),
        options=given,
        session=df.sparkSession,
    )
