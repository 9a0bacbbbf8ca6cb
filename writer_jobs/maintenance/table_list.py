"""The tables of a maintenance run, and their order: with a budget, the table with the most valuable work first."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Iterable, Sequence

from pyspark.sql import SparkSession

from lock_manager import SluiceError
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import SPARK_ERRORS, error_reason
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import StorageError, TableError
from writer_jobs.maintenance.measure import Measurement, measure, with_zorder
from writer_jobs.maintenance.plan import plan
from writer_jobs.maintenance.policy import Action
from writer_jobs.maintenance.side_rows import side_tables_of

log = logging.getLogger(__name__)

# Share of the budget that measuring all tables may take.
_MEASURING_SHARE = 0.5


def list_tables(
    spark: SparkSession, names: Sequence[str], *, catalog: str | None = None, tables_file: str | None = None
) -> list[str]:
    """Return locations and names of tables and of their side tables, each table once.

    Args:
        names: Locations of tables, or names in the catalog.
        catalog: Database; all of its Delta tables are added.
        tables_file: Path of a file with one table per line.

    Raises:
        StorageError: The list cannot be read.
        TableError: The list or the database has no table, or the database does not exist.

    """
    tables = list(names)
    if tables_file is not None:
        tables += _read_list(spark, tables_file)
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
        raise StorageError(f"the list of tables {path} does not exist")
    # Some editors write a byte order mark at the start of a UTF-8 file.
    lines = (line.partition("#")[0].strip() for line in text.removeprefix("\ufeff").splitlines())
    if not (tables := [line for line in lines if line]):
        raise TableError(f"{path} lists no table")
    return tables


def _list_database(spark: SparkSession, database: str) -> list[str]:
    quoted_database = ".".join(map(quoted, database.split(".")))
    try:
        rows = spark.sql(f"SHOW TABLES IN {quoted_database}").where("NOT isTemporary").collect()
    except SPARK_ERRORS as error:
        raise TableError(f"the tables of {database} cannot be listed: {error_reason(error)}") from error
    names = (f"{quoted_database}.{quoted(row['tableName'])}" for row in rows)
    if not (tables := [name for name in names if _may_be_delta(spark, name)]):
        raise TableError(f"{database} has no Delta tables")
    return tables


def _may_be_delta(spark: SparkSession, name: str) -> bool:
    """Return whether a table is a Delta table; True if Spark cannot describe it: the executor reports the error."""
    try:
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").where("col_name = 'Provider'").collect()
    except SPARK_ERRORS:
        return True
    return any(str(row["data_type"]).lower() == "delta" for row in rows)


def order_by_worth(
    spark: SparkSession,
    tables: Sequence[str],
    actions: Collection[Action] | None,
    *,
    budget_seconds: float | None,
    zorder_by: tuple[str, ...] = (),
) -> list[tuple[str, Measurement | None]]:
    """Return tables in the order of their maintenance, each with its measurement if there is one.

    With a budget all tables are measured first, for half of the budget at most, and sorted by the descending worth of
    their work. Tables are measured in random order. Tables that were not measured in time come last.

    Args:
        budget_seconds: Seconds for all tables; None: no limit, and the tables keep their order.
        zorder_by: Columns of the Z-order in place of each table's policy.

    """
    if budget_seconds is None or len(tables) == 1:
        return [(table, None) for table in tables]
    end = time.monotonic() + budget_seconds * _MEASURING_SHARE
    measurements: list[tuple[float, str, Measurement]] = []
    for table in random.sample(tables, len(tables)):
        if time.monotonic() >= end:
            break
        try:
            measurement = measure(spark, table)
            planned_measurement = with_zorder(measurement, zorder_by) if zorder_by else measurement
        except Exception as error:  # noqa: BLE001 (the executor reports the error)
            log.info("%s is maintained last: %s", table, error)
            continue
        worth = sum(unit.worth for unit in plan(planned_measurement.health, planned_measurement.policy, actions))
        measurements.append((worth, table, measurement))
    measurements.sort(key=lambda entry: -entry[0])
    measured_tables = {table for _, table, _ in measurements}
    return [
        *((table, measurement) for _, table, measurement in measurements),
        *((table, None) for table in tables if table not in measured_tables),
    ]
