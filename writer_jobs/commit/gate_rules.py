"""The rules that decide whether a write goes through the gate or holds the lock from its beginning.

Other rules can be checked only on the commit itself (:func:`lock_manager.guard.ticket.staging_obstacle`). A write that
breaks one of those is repeated with the lock held from its beginning. So most of the rules here only save work. Safety
depends on :func:`own_read_reason`, because Delta does not register every read. docs/gate.md has all rules in one table.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession

from lock_manager import canonical_table_uri
from lock_manager.guard.table_reads import own_read_reason
from lock_manager.nesting import REGISTRY
from writer_jobs.commit.driver_guard import REQUIRED
from writer_jobs.commit.operation import MERGE_SCHEMA, OVERWRITE_SCHEMA, Operation, Read, has_option
from writer_jobs.delta.java_classes import log_store
from writer_jobs.delta.jvm_errors import JVM_ERRORS
from writer_jobs.delta.session import AUTO_COMPACT, COMMIT_LOCK
from writer_jobs.delta.table_log import DeltaTableLog

_SETTINGS = (COMMIT_LOCK, AUTO_COMPACT)


def reason_for_whole_write(spark: SparkSession, table_log: DeltaTableLog, operation: Operation) -> str | None:
    """Return why an operation needs the lock from its beginning; None if no rule here demands it.

    Raises:
        TableError, StorageError: The table's log cannot be read.

    """
    if REGISTRY.of(threading.current_thread()):
        return "this thread holds a lock already"
    if (reason := _options_reason(operation)) is not None:
        return reason
    facts = staging_facts(spark, table_log, operation)
    if facts is None or str(facts["guard"]).strip().lower() != REQUIRED:
        return "commits of this session are not guarded, or only observed"
    return (
        next(filter(None, map(_settings_reason, facts["settings"])), None)
        or _table_reason(facts, operation)
        or own_read_reason(facts["reads"], canonical_table_uri(table_log.location), facts["table_id"])
    )


def staging_facts(spark: SparkSession, table_log: DeltaTableLog, operation: Operation) -> Mapping[str, Any] | None:
    """Return the facts about an operation that the JVM knows (``StagingFacts.java``); None without our log store."""
    facts = _read_facts(spark, table_log.location, operation)
    if facts is not None and facts["version"] >= 0:
        return facts
    # There is no table, or this driver knows none yet. If the log cannot be read, this raises an error of one sentence.
    if table_log.head().version < 0:
        return facts
    return _read_facts(spark, table_log.location, operation)


def _read_facts(spark: SparkSession, location: str, operation: Operation) -> Mapping[str, Any] | None:
    # Delta takes the settings of the rows' session.
    rows_session = None if operation.session in (None, spark) else operation.session._jsparkSession  # noqa: SLF001
    # Delta refuses a value of another type.
    reads = [_java_object(read) for read in operation.reads if isinstance(read, str | DataFrame | Column)]
    jvm_facts = log_store(spark, "StagingFacts")
    # A driver whose guard is off may lack our log store.
    with suppress(Py4JError, *JVM_ERRORS):
        response = jvm_facts.of(spark._jsparkSession, rows_session, reads, location, ",".join(_SETTINGS))  # noqa: SLF001
        facts: Mapping[str, Any] = json.loads(response)
        return facts
    return None


def _java_object(read: Read) -> Any:
    if isinstance(read, str):
        return read
    return read._jdf if isinstance(read, DataFrame) else read._jc  # noqa: SLF001


def _settings_reason(settings: Mapping[str, str | None]) -> str | None:
    if settings[COMMIT_LOCK] != "false":
        return f"{COMMIT_LOCK} is not false: a commit that waits would stop all others of this driver"
    if (settings[AUTO_COMPACT] or "").lower() != "false":
        return f"{AUTO_COMPACT} is not false: there may be a second commit within the first"
    return None


def _options_reason(operation: Operation) -> str | None:
    return "the write may change the schema" if has_option(operation.options, MERGE_SCHEMA, OVERWRITE_SCHEMA) else None


def _table_reason(facts: Mapping[str, Any], operation: Operation) -> str | None:
    if facts["hooks"]:
        return f"Delta runs hooks after each commit to the table: {', '.join(facts['hooks'])}"
    # The time of a commit that changes no row does not matter, and it assigns no identity values.
    if operation.keeps_rows:
        return None
    if facts["in_commit_timestamps"]:
        return "the table's commits have in-commit timestamps"
    return "the table has an identity column" if facts["identity"] else None
