"""Which writes go through the gate, and which hold the lock from their beginning: the rules that are known before.

What can be seen only in the commit itself is looked at there, see :func:`lock_manager.ticket.why_not_staged`: such a
write is done again, with the lock held from its beginning. So these rules save work; they are not what makes it safe.
docs/gate.md has all of them in one table.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Literal

from py4j.java_gateway import is_instance_of
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from lock_manager import ResourceError, canonical_table_uri
from lock_manager.nesting import REGISTRY
from writer_jobs.delta_log import DeltaTableLog
from writer_jobs.failures import JVM_ERRORS
from writer_jobs.guarded import AUTO_COMPACT, REQUIRED, guard_mode
from writer_jobs.session import COMMIT_LOCK
from writer_jobs.work import Work

Hold = Literal["commit", "write"]
"""What of a write the lock is held for: its commit, or all of it."""

HOLDS: tuple[Hold, ...] = ("commit", "write")
_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_CHANGES_SCHEMA = frozenset({"mergeschema", "overwriteschema"})


def why_whole(spark: SparkSession, table_log: DeltaTableLog, work: Work) -> str | None:
    """Return why a write needs the lock from its beginning; None if it can have it at its commit, as far as is known.

    Raises:
        TableError, StorageError: the table's log cannot be read.

    """
    # Delta takes those of the rows' session.
    other = None if work.session in (None, spark) else work.session
    return (
        _of_driver(spark)
        or _of_settings(spark)
        or (None if other is None else _of_settings(other))
        or _of_options(work)
        or _of_table(table_log, work.rows)
    )


def check_hold(hold: str) -> None:
    """Make sure that it is one of :data:`HOLDS`.

    Raises:
        ValueError: it is not.

    """
    if hold not in HOLDS:
        raise ValueError(f"hold={hold!r}: choose {' or '.join(map(repr, HOLDS))}")


def _of_driver(spark: SparkSession) -> str | None:
    if guard_mode(spark) != REQUIRED:
        return "commits of this session are not guarded, or only observed"
    if REGISTRY.of(threading.current_thread()):
        return "this thread holds a lock already"
    return None


def _of_settings(session: SparkSession) -> str | None:
    if session.conf.get(COMMIT_LOCK, None) != "false":
        return f"{COMMIT_LOCK} is not false: a commit that waits would stop all others of this driver"
    if (session.conf.get(AUTO_COMPACT, None) or "").lower() != "false":
        return f"{AUTO_COMPACT} is not false: there may be a second commit within the first"
    return None


def _of_options(work: Work) -> str | None:
    changes = any(name.lower() in _CHANGES_SCHEMA and value.lower() == "true" for name, value in work.options.items())
    return "it may change the schema" if changes else None


def _of_table(table_log: DeltaTableLog, rows: DataFrame | None) -> str | None:
    if not table_log.takes_staged_commits():
        return "there is no table yet, or it counts identities"
    return "it reads the table itself" if rows is not None and _reads(rows, table_log.location) else None


def _reads(df: DataFrame, location: str) -> bool:
    """Tell whether a plan reads the Delta table at a location, or may; not counting its subqueries."""
    table = canonical_table_uri(location)
    with suppress(*JVM_ERRORS, ResourceError):
        leaves = df._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
        return any(_is_of(leaves.apply(index), table) for index in range(leaves.size()))
    return True


def _is_of(leaf: Any, table: str) -> bool:
    if leaf.getClass().getSimpleName() != "LogicalRelation":
        return False
    relation = leaf.relation()
    if "CDF" in relation.getClass().getName():
        # Of this table or another: of which is not told, and Delta does not count it as read.
        return True
    # Delta's is a subclass without a name.
    if not is_instance_of(SparkContext._gateway, relation, _FILES):  # noqa: SLF001 (py4j's only way to ask)
        return False
    roots = relation.location().rootPaths()
    return any(_is_at(str(roots.apply(index).toString()), table) for index in range(roots.size()))


def _is_at(root: str, table: str) -> bool:
    # By another spelling Delta itself takes it for another table.
    try:
        return canonical_table_uri(root) == table
    except ResourceError:
        return False
