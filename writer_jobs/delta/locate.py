"""Find the location of a table, given by URI, path or catalog name."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.java_classes import log_store
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import StorageError, TableError

_PATH_IDENTIFIER = re.compile(r"delta\.`(?P<path>.+)`", re.IGNORECASE)
_DETAILS = "# Detailed Table Information"
_SESSION_CATALOG = "spark_catalog"


def locate_table(spark: SparkSession, table: str, *, new: bool = False) -> str:
    """Return the qualified location of a table, given by URI, path or catalog name.

    A text with a slash or a colon is a location: ``s3a://lake/flights``, ``./flights``. So is ``delta.`flights```.
    A location need not exist. Any other text is a catalog name, which Spark resolves once. If the catalog moves the
    table afterwards, the old location is still locked and written.

    Args:
        spark: Spark session.
        table: Location or catalog name.
        new: Whether the table may be new: if the session catalog does not have the name, return the location where
            ``saveAsTable`` would create the table.

    Raises:
        TableError: The catalog does not have the table, it is a view or has another format, the text is neither a
            location nor a name, its file system does not exist, or it names a name node of HDFS instead of the name
            service.

    """
    path_match = _PATH_IDENTIFIER.fullmatch(table.strip())
    location = path_match["path"] if path_match else table
    if is_catalog_name(table):
        location = _catalog_location(spark, location, new=new)
    try:
        location = HadoopFiles.of(spark).qualify(location)
    except StorageError as error:
        raise TableError(f"no table can be at {error}") from error
    if location.startswith("hdfs:"):
        conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 (PySpark has no public way)
        refusal = None
        # A session without a guard may lack the log store.
        with suppress(Py4JError):
            refusal = log_store(spark, "NameServices").refusal(location, conf)
        if refusal is not None:
            raise TableError(str(refusal))
    return location


def is_catalog_name(table: str) -> bool:
    """Return whether :func:`locate_table` takes a text for a catalog name."""
    return not (_PATH_IDENTIFIER.fullmatch(table.strip()) or "/" in table or ":" in table)


def _catalog_location(spark: SparkSession, name: str, *, new: bool) -> str:
    try:
        parser = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
        parts = list(parser.parseMultipartIdentifier(name).mkString("\0").split("\0"))
    except ParseException as error:
        raise TableError(f"{name!r} is neither a location nor a table's name (CATALOG.SCHEMA.TABLE)") from error
    full_name = ".".join(map(quoted, parts))
    try:
        if not spark.catalog.tableExists(full_name):
            if new and (location := _new_location(spark, parts)) is not None:
                return location
            raise TableError(f"table {name} does not exist in the catalog: create it, or name its location")
        rows = [(row[0], row[1]) for row in spark.sql(f"DESCRIBE TABLE EXTENDED {full_name}").collect()]
    except JVM_ERRORS as error:
        raise TableError(f"table {name} cannot be looked up in the catalog: {error_reason(error)}") from error
    # The details follow the columns. A column may have the name of a detail. A temporary view has no details.
    titles = [title for title, _ in rows]
    details = dict(rows[titles.index(_DETAILS) :]) if _DETAILS in titles else {"Type": "VIEW"}
    if details.get("Type") == "VIEW":
        raise TableError(f"{name} is a view: name the table that it reads")
    if str(details.get("Provider", "")).lower() != "delta":
        raise TableError(f"{name} is not a Delta table but {details.get('Provider', 'of unknown format')}")
    return str(details["Location"])


def _new_location(spark: SparkSession, parts: list[str]) -> str | None:
    """Return where the session catalog would create a table; None for other catalogs, which decide at its creation."""
    *namespace, name = parts
    if namespace[:1] == [_SESSION_CATALOG]:
        namespace = namespace[1:]
    elif spark.catalog.currentCatalog() != _SESSION_CATALOG:
        return None
    if len(namespace) > 1:
        return None
    jvm: Any = spark._jvm  # noqa: SLF001
    database = jvm.scala.Option.apply(namespace[0] if namespace else spark.catalog.currentDatabase())
    identifier = jvm.org.apache.spark.sql.catalyst.TableIdentifier(name, database)
    catalog = spark._jsparkSession.sessionState().catalog()  # noqa: SLF001
    return str(catalog.defaultTablePath(identifier).toString())
