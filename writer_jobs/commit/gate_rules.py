"""The rules by which a write goes through the gate, or holds the lock from its beginning.

Other rules can be checked only on the commit itself (:func:`lock_manager.guard.ticket.staging_obstacle`). A write that
breaks one of those is done again, with the lock held from its beginning. So most of these rules only save work. Safety
depends on the rule on plans: Delta does not register every read. docs/gate.md has all of them in one table.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession

from lock_manager import ResourceError, canonical_table_uri
from lock_manager.intents import NO_VERSION
from lock_manager.nesting import REGISTRY
from writer_jobs.commit.driver_guard import AUTO_COMPACT, REQUIRED
from writer_jobs.commit.operation import MERGE_SCHEMA, OVERWRITE_SCHEMA, Read, Work, has_option
from writer_jobs.delta.jvm_errors import JVM_ERRORS
from writer_jobs.delta.log_store import log_store
from writer_jobs.delta.session import COMMIT_LOCK
from writer_jobs.delta.table_log import DeltaTableLog

_SETTINGS = (COMMIT_LOCK, AUTO_COMPACT)
_NOTHING_KNOWN = {
    "guard": "",
    "settings": [],
    "version": NO_VERSION,
    "identity": False,
    "dated": False,
    "hooks": [],
    "reads": [],
    "table_id": None,
}


def why_whole(spark: SparkSession, table_log: DeltaTableLog, work: Work) -> str | None:
    """Return why a write needs the lock from its beginning; None if it can have it at its commit, as far as is known.

    Raises:
        TableError, StorageError: the table's log cannot be read.

    """
    if REGISTRY.of(threading.current_thread()):
        return "this thread holds a lock already"
    if (reason := _of_options(work)) is not None:
        return reason
    facts = facts_of(spark, table_log, work)
    return (
        _of_driver(facts)
        or next(filter(None, map(_of_settings, facts["settings"])), None)
        or _of_table(facts, work)
        or _of_reads(facts, table_log.location)
    )


def facts_of(spark: SparkSession, table_log: DeltaTableLog, work: Work) -> Mapping[str, Any]:
    """Return what the JVM knows of a write, see ``StagingFacts.java``.

    Args:
        spark: the session.
        table_log: of the table.
        work: the write.

    Raises:
        TableError, StorageError: the table's log cannot be read.

    """
    known = _facts_of(spark, table_log.location, work)
    if known is not None and known["version"] >= 0:
        return known
    # There is none, or none that this driver has heard of; or this says in one sentence what is wrong.
    if table_log.head().version < 0:
        return known or _NOTHING_KNOWN
    return _facts_of(spark, table_log.location, work) or _NOTHING_KNOWN


def _facts_of(spark: SparkSession, location: str, work: Work) -> Mapping[str, Any] | None:
    # Delta takes the settings of the rows' session.
    other = None if work.session in (None, spark) else work.session._jsparkSession  # noqa: SLF001
    # Delta refuses a value of another type.
    reads = [_in_jvm(read) for read in work.reads if isinstance(read, str | DataFrame | Column)]
    facts = log_store(spark, "StagingFacts")
    # A driver whose guard is off may be without our log store.
    with suppress(Py4JError, *JVM_ERRORS):
        answer = facts.of(spark._jsparkSession, other, reads, location, ",".join(_SETTINGS))  # noqa: SLF001
        found: Mapping[str, Any] = json.loads(answer)
        return found
    return None


def _in_jvm(read: Read) -> Any:
    if isinstance(read, str):
        return read
    return read._jdf if isinstance(read, DataFrame) else read._jc  # noqa: SLF001


def _of_driver(facts: Mapping[str, Any]) -> str | None:
    guarded = str(facts["guard"]).strip().lower() == REQUIRED
    return None if guarded else "commits of this session are not guarded, or only observed"


def _of_settings(settings: Mapping[str, str | None]) -> str | None:
    if settings[COMMIT_LOCK] != "false":
        return f"{COMMIT_LOCK} is not false: a commit that waits would stop all others of this driver"
    if (settings[AUTO_COMPACT] or "").lower() != "false":
        return f"{AUTO_COMPACT} is not false: there may be a second commit within the first"
    return None


def _of_options(work: Work) -> str | None:
    return "it may change the schema" if has_option(work.options, MERGE_SCHEMA, OVERWRITE_SCHEMA) else None


def _of_table(facts: Mapping[str, Any], work: Work) -> str | None:
    if facts["hooks"]:
        return f"Delta runs after each commit to it: {', '.join(facts['hooks'])}"
    # Rows that are there already have theirs.
    if work.keeps_rows:
        return None
    if facts["dated"]:
        return "the table's commits have in-commit timestamps"
    return "the table counts identities" if facts["identity"] else None


def _of_reads(facts: Mapping[str, Any], location: str) -> str | None:
    """Return why a write depends on the Delta table at a location, or may; None if its plans read other data only."""
    table = canonical_table_uri(location)
    for read in facts["reads"]:
        if "unknown" in read:
            return f"it may read the table: {read['unknown']}"
        # The table's id tells names of one table that paths do not, such as an alias of a bucket.
        same = facts["table_id"] is not None and read.get("table_id") == facts["table_id"]
        if same or any(_overlaps(root, table) for root in read["roots"]):
            return "it reads the table itself"
    return None


def _overlaps(root: str, table: str) -> bool:
    """Return whether files below a root may be the table's, or the root may be another spelling of its location."""
    try:
        files = canonical_table_uri(root).rstrip("/")
    except ResourceError:
        return True
    return f"{files}/".startswith(f"{table}/") or f"{table}/".startswith(f"{files}/")
