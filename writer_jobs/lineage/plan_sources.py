"""The sources of a write, from its plans: ``PlanSources.java`` examines them in one call."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from writer_jobs.commit.operation import Read
from writer_jobs.delta.java_classes import log_store
from writer_jobs.delta.locate import is_catalog_name
from writer_jobs.lineage.dataset_names import database_table_name, location_name, topic_name
from writer_jobs.lineage.log_once import errors_logged, log_once
from writer_jobs.lineage.records import DatasetName, SourceRecord
from writer_jobs.lineage.sender import PROCESS_SENDER


def sources_of(spark: SparkSession, reads: Iterable[Read | None]) -> tuple[list[SourceRecord], int]:
    """Return the sources of an operation's reads, and the number of plan leaves whose source is not known."""
    plans = [read._jdf for read in reads if isinstance(read, DataFrame)]  # noqa: SLF001
    response = log_store(spark, "PlanSources").of(spark._jsparkSession, plans)  # noqa: SLF001
    sources: list[SourceRecord] = []
    unknown_count = 0
    for source in json.loads(response):
        name = _name_of(source)
        if name is None:
            unknown_count += 1
            # Not its location, which can have a password.
            noun = "a location" if "path" in source else source.get("unknown") or "a table of a database"
            log_once(logging.INFO, f"lineage events leave out a source that is not known: {noun}")
        elif (record := SourceRecord(name, _symlink_of(source.get("symlink")), source.get("version"))) not in sources:
            sources.append(record)
    return sources, unknown_count


def remember_sources(rows: DataFrame, copy: DataFrame) -> None:
    """Remember the sources of rows for a local checkpoint of them, whose plan has no sources, if events are sent."""
    if PROCESS_SENDER.get() is not None:
        with errors_logged():
            log_store(rows.sparkSession, "PlanSources").remember(rows._jdf, copy._jdf)  # noqa: SLF001


def catalog_symlink(spark: SparkSession, table: str) -> DatasetName | None:
    """Return the catalog's name of a table, if events are sent.

    None for a table that is given by its location, and for a table that is not in the session catalog.
    """
    if PROCESS_SENDER.get() is None or not is_catalog_name(table):
        return None
    with errors_logged():
        response = log_store(spark, "PlanSources").symlink(spark._jsparkSession, table)  # noqa: SLF001
        return None if response is None else _symlink_of(json.loads(response))
    return None


def _name_of(source: Mapping[str, Any]) -> DatasetName | None:
    match source:
        case {"path": path}:
            return location_name(path)
        case {"kafka": servers, "topic": topic}:
            return topic_name(servers, topic)
        case {"jdbc": url, "table": table}:
            return database_table_name(url, table)
    return None


def _symlink_of(symlink: Mapping[str, str] | None) -> DatasetName | None:
    """Return a catalog's name. A namespace that is the location of a warehouse becomes canonical."""
    if symlink is None:
        return None
    namespace = symlink["namespace"]
    if not namespace.startswith(("arn:", "hive:")) and (name := location_name(namespace)) is not None:
        is_file = name.namespace == "file"
        namespace = f"file:{name.name}" if is_file else f"{name.namespace}/{name.name.removeprefix('/')}"
    return DatasetName(namespace, symlink["name"])
