"""The tables of a maintenance run: tables that are named or listed in a file, and the tables of a database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lock_manager import SluiceError
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import StorageError, TableError
from writer_jobs.maintenance.side_rows import side_tables_of

_PROVIDER = "Provider"


def list_tables(
    spark: SparkSession, names: Sequence[str], *, catalog: str | None = None, listed_in: str | None = None
) -> list[str]:
    """Return locations and names of tables, each table once.

    Args:
        names: Locations of tables, or names in the catalog.
        catalog: Database; all of its Delta tables are added.
        listed_in: File with one table per line.

    Returns:
        The tables, and their side tables.

    Raises:
        StorageError: The list cannot be read.
        TableError: The list or the database has no table, or the database does not exist.

    """
    tables = list(names)
    if listed_in is not None:
        tables += _read_list(spark, listed_in)
    if catalog is not None:
        tables += _list_database(spark, catalog)
    locations = _unique_locations(spark, tables)
    with_side_tables = [*locations.values(), *side_tables_of(spark, list(locations))]
    return list(_unique_locations(spark, with_side_tables).values())


def _unique_locations(spark: SparkSession, tables: Iterable[str]) -> dict[str, str]:
    """Return the first name of each table, by the table's location."""
    names: dict[str, str] = {}
    for table in tables:
        names.setdefault(_location(spark, table), table)
    return names


def _location(spark: SparkSession, table: str) -> str:
    """Return the location of a table, or its name if it cannot be resolved; the executor reports the error."""
    try:
        return locate_table(spark, table)
    except SluiceError:
        return table


def _read_list(spark: SparkSession, path: str) -> list[str]:
    text = HadoopFiles.of(spark).read_text(path)
    if text is None:
        raise StorageError(f"{path}: there is no such list of tables")
    # Some editors write a byte order mark at the start of a UTF-8 file.
    lines = (line.partition("#")[0].strip() for line in text.removeprefix("\ufeff").splitlines())
    if not (tables := [line for line in lines if line]):
        raise TableError(f"{path} lists no table")
    return tables


def _list_database(spark: SparkSession, database: str) -> list[str]:
    quoted_database = ".".join(map(quoted, database.split(".")))
    try:
        rows = spark.sql(f"SHOW TABLES IN {quoted_database}").where("NOT isTemporary").collect()
    except (*JVM_ERRORS, PySparkException) as error:
        raise TableError(f"the tables of {database} cannot be listed: {error_reason(error)}") from error
    names = (f"{quoted_database}.{quoted(row['tableName'])}" for row in rows)
    if not (tables := [name for name in names if _may_be_delta(spark, name)]):
        raise TableError(f"{database} has no Delta tables")
    return tables


def _may_be_delta(spark: SparkSession, name: str) -> bool:
    """Return whether a table is a Delta table, or its provider is unknown; the executor reports that error."""
    try:
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").where(f"col_name = '{_PROVIDER}'").collect()
    except (*JVM_ERRORS, PySparkException):
        return True
    return any(str(row["data_type"]).lower() == "delta" for row in rows)
