"""Which tables are to be looked after: those that are named, those of a list, or all of a database."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lock_manager import SluiceError
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import StorageError, TableError
from writer_jobs.maintenance.side_rows import side_tables_of

_PROVIDER = "Provider"


def tables_of(
    spark: SparkSession, named: Sequence[str], *, catalog: str | None = None, listed_in: str | None = None
) -> list[str]:
    """Return locations and names of tables, each once.

    Args:
        spark: the session.
        named: locations or names.
        catalog: database all of whose Delta tables count.
        listed_in: file with a table on each line.

    Returns:
        The tables, and the side tables that they have.

    Raises:
        StorageError: the list cannot be read.
        TableError: there is no such database, or no table in it, or in the list.

    """
    found = list(named)
    if listed_in is not None:
        found += _listed(spark, listed_in)
    of_catalog = [] if catalog is None else _in_catalog(spark, catalog)
    tables = _each_once(spark, [*found, *of_catalog]) if found else of_catalog
    return _each_once(spark, [*tables, *side_tables_of(spark, [_place(spark, table) for table in tables])])


def _each_once(spark: SparkSession, tables: Sequence[str]) -> list[str]:
    once: dict[str, str] = {}
    for table in tables:
        once.setdefault(_place(spark, table), table)
    return list(once.values())


def _place(spark: SparkSession, table: str) -> str:
    """Return where a table is; of what is none, the name: whoever looks after it says what is wrong."""
    try:
        return locate_table(spark, table)
    except SluiceError:
        return table


def _listed(spark: SparkSession, path: str) -> list[str]:
    text = HadoopFiles.of(spark).read_text(path)
    if text is None:
        raise StorageError(f"{path}: there is no such list of tables")
    # Some editors begin a file with the mark of UTF-8.
    lines = (line.partition("#")[0].strip() for line in text.removeprefix("\ufeff").splitlines())
    if not (tables := [line for line in lines if line]):
        raise TableError(f"{path} lists no table")
    return tables


def _in_catalog(spark: SparkSession, database: str) -> list[str]:
    within = ".".join(map(quoted, database.split(".")))
    try:
        tables = spark.sql(f"SHOW TABLES IN {within}").where("NOT isTemporary").collect()
        names = [f"{within}.{quoted(row['tableName'])}" for row in tables]
    except (*JVM_ERRORS, PySparkException) as error:
        raise TableError(f"the tables of {database} cannot be listed: {one_sentence(error)}") from error
    if not (tables := [name for name in names if _may_be_delta(spark, name)]):
        raise TableError(f"{database} has no Delta tables")
    return tables


def _may_be_delta(spark: SparkSession, name: str) -> bool:
    """Tell whether a table is Delta's; yes if that cannot be told: whoever looks after it says what is wrong."""
    try:
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").where(f"col_name = '{_PROVIDER}'").collect()
    except (*JVM_ERRORS, PySparkException):
        return True
    return any(str(row["data_type"]).lower() == "delta" for row in rows)
