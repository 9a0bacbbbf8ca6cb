"""The location of a table that is named by URI, by path or by its name in the catalog."""

from __future__ import annotations

import re
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import StorageError, TableError

_PATH_IDENTIFIER = re.compile(r"delta\.`(?P<path>.+)`", re.IGNORECASE)
_DETAILS = "# Detailed Table Information"


def locate_table(spark: SparkSession, table: str, *, new: bool = False) -> str:
    """Return the qualified location of a table that is named by URI, by path or by its name in the catalog.

    What has a slash or a colon is a location (``s3a://lake/flights``, ``./flights``, also ``delta.`/data/flights```);
    it need not exist. Anything else is a catalog name, asked of Spark once: a table that is moved in the catalog
    afterwards is still locked and written where it was.

    Args:
        spark: the session.
        table: location or name.
        new: take a name that the session catalog does not have for the table that ``saveAsTable`` would make.

    Raises:
        TableError: no such table in the catalog, a view, a table of another format, or no usable name.
        StorageError: no such file system.

    """
    by_path = _PATH_IDENTIFIER.fullmatch(table.strip())
    location = by_path["path"] if by_path else table
    if "/" not in location and ":" not in location:
        location = _catalog_location(spark, location, new=new)
    try:
        return HadoopFiles.of(spark).qualify(location)
    except StorageError as error:
        raise TableError(f"no table can be at {error}") from error


def _catalog_location(spark: SparkSession, name: str, *, new: bool) -> str:
    try:
        parser = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
        parts = list(parser.parseMultipartIdentifier(name).mkString("\0").split("\0"))
    except ParseException as error:
        raise TableError(f"{name!r} is neither a location nor a table's name (CATALOG.SCHEMA.TABLE)") from error
    full_name = ".".join(map(quoted, parts))
    try:
        if not spark.catalog.tableExists(full_name):
            if new and (location := _location_of_new(spark, parts)) is not None:
                return location
            raise TableError(f"table {name} does not exist in the catalog: create it, or name its location")
        rows = [(row[0], row[1]) for row in spark.sql(f"DESCRIBE TABLE EXTENDED {full_name}").collect()]
    except JVM_ERRORS as error:
        raise TableError(f"table {name} cannot be looked up in the catalog: {one_sentence(error)}") from error
    # Behind the columns, one of which may be named like a detail. A temporary view has no details.
    titles = [title for title, _ in rows]
    details = dict(rows[titles.index(_DETAILS) :]) if _DETAILS in titles else {"Type": "VIEW"}
    if details.get("Type") == "VIEW":
        raise TableError(f"{name} is a view: name the table below it")
    if str(details.get("Provider", "")).lower() != "delta":
        raise TableError(f"{name} is not a Delta table but {details.get('Provider', 'of unknown format')}")
    return str(details["Location"])


def _location_of_new(spark: SparkSession, parts: list[str]) -> str | None:
    """Return where Spark's own catalog would put a new table; other catalogs decide that when they make it."""
    *before, name = parts
    if before[:1] == ["spark_catalog"]:
        before = before[1:]
    if len(before) > 1:
        return None
    jvm: Any = spark._jvm  # noqa: SLF001
    database = jvm.scala.Option.apply(before[0] if before else spark.catalog.currentDatabase())
    identifier = jvm.org.apache.spark.sql.catalyst.TableIdentifier(name, database)
    catalog = spark._jsparkSession.sessionState().catalog()  # noqa: SLF001
    return str(catalog.defaultTablePath(identifier).toString())
