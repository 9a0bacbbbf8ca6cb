"""An operation on a table: rows for Delta's DataFrame writer, or a method of ``DeltaTable``."""

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
_CONDITION_OPTIONS = frozenset({_REPLACE_WHERE.lower(), "replaceon"})
# The argument to use instead, by the option of Delta's writer in lower case.
_ARGUMENT_OF_OPTION = {
    "txnappid": "txn",
    "txnversion": "txn",
    "path": "table",
    _REPLACE_WHERE.lower(): "replace_where",
    _OVERWRITE_MODE.lower(): "dynamic",
}

Read: TypeAlias = DataFrame | Column | str
"""A plan, a column, or a condition in SQL."""


@dataclass(frozen=True)
class Operation:
    """One operation on a table.

    Attributes:
        run: Runs the operation, given the table's location and the ``userMetadata`` of the commit. It may be called
            again.
        schema: Returns the schema of the rows that the operation writes, for error messages.
        txn: ``(txnAppId, txnVersion)`` or None.
        user_metadata: The caller's own ``userMetadata``, which the commit keeps.
        takes_metadata: Whether ``run`` stores its ``userMetadata`` in the commit. For other operations Delta has only a
            setting of the whole session, which other threads share.
        keeps_rows: Whether the operation only puts rows of the table into other files.
        rows: Rows that the operation appends; None for any other operation.
        reads: Plans, columns and SQL conditions of the caller, or None. The gate examines them.
        options: Options of Delta's writer.
        session: Session of the rows, whose settings count when they are written; None for the writer's.

    """

    run: Callable[[str, str], object]
    schema: Callable[[], StructType] = StructType
    txn: tuple[str, int] | None = None
    user_metadata: str | None = None
    takes_metadata: bool = False
    keeps_rows: bool = False
    rows: DataFrame | None = None
    reads: Sequence[Read | None] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    session: SparkSession | None = None

    @property
    def has_storage_options(self) -> bool:
        """Whether an option configures Hadoop's file systems. Delta then uses a log of its own for the table."""
        return any(name.lower().startswith(("fs.", "dfs.")) for name in self.options)


def delta_table(spark: SparkSession, location: str) -> DeltaTable:
    """Return Delta's own handle of a table; raise UnsupportedSessionError if Delta's Python module is missing."""
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
    """Return the settings that make Delta record a transaction in a commit, or skip it if the table has it already."""
    return {"spark.databricks.delta.write.txnAppId": app_id, "spark.databricks.delta.write.txnVersion": str(version)}


def has_option(options: Mapping[str, str] | None, *names: str) -> bool:
    """Return whether any of these options is true; names are compared without case."""
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
) -> Operation:
    """Return the operation that writes rows by ``df.write``, for arguments of the writer's ``append`` or ``overwrite``.

    Raises:
        ValueError: ``options`` has an option that must be passed as an argument.

    """
    writer_options = dict(options or {})
    user_metadata: str | None = spark.conf.get(_SESSION_METADATA, None)
    for name in list(writer_options):
        if (argument := _ARGUMENT_OF_OPTION.get(name.lower())) is not None:
            raise ValueError(f"option {name!r} cannot be given: use the argument {argument}")
        if name.lower() == "usermetadata":
            user_metadata = writer_options.pop(name)
    if txn is not None:
        writer_options |= {"txnAppId": txn[0], "txnVersion": str(txn[1])}
    if mode == "overwrite":
        # The session's spark.sql.sources.partitionOverwriteMode must not count: another mode needs another lock.
        writer_options[_OVERWRITE_MODE] = "dynamic" if dynamic else "static"
    if replace_where is not None:
        writer_options[_REPLACE_WHERE] = replace_where

    def write(location: str, metadata: str) -> None:
        writer = df.write.format("delta").mode(mode).options(**writer_options).option("userMetadata", metadata)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.save(location)

    return Operation(
        write,
        lambda: df.schema,
        txn,
        user_metadata,
        takes_metadata=True,
        rows=df if mode == "append" else None,
        reads=(df, *(value for name, value in writer_options.items() if name.lower() in _CONDITION_OPTIONS)),
        options=writer_options,
        session=df.sparkSession,
    )
