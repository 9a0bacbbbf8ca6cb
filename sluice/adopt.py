"""Pin a table to the ensemble whose lock counts from now on: the work behind ``sluice adopt``, with its own Spark."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lock_manager import LockSettings, SettingsError, ZookeeperLockManager, canonical_table_uri
from sluice.jars import jar_paths
from sluice.local_spark import FEW_ROWS, LOCAL_DRIVER, QUICK_JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = "sluice adopt"


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """What became of it.

    Attributes:
        table: canonical URI.
        ensemble: UUID of the ensemble to which the table is pinned now.
        moved_from: to which it was pinned before; None if to none.
        version: of the table, made for it; None if it was pinned there already.

    """

    table: str
    ensemble: str
    moved_from: str | None
    version: int | None


def adopt_table(
    spark: SparkSession,
    table: str,
    settings: LockSettings,
    *,
    move: bool = False,
    old_hosts: str | None = None,
) -> Adoption:
    """Record in a table, under its lock, that the lock of this ensemble is the one that counts.

    Args:
        spark: a session with the guarded log store.
        table: location or name in the catalog; the table must exist.
        settings: of the lock; name the ensemble.
        move: also if the table is pinned to another one. Whoever has that one's lock at the moment would go on
            writing until the end of his block.
        old_hosts: connection string of the ensemble that the table is moved from: its lock is held meanwhile, too, so
            that nobody can be at work.

    Raises:
        EnsembleMismatchError: the table is pinned to another ensemble and ``move`` is not set, or ``old_hosts`` is not
            where it is pinned to.
        TableError, StorageError: no table, or one that cannot be pinned.
        LockTimeoutError, EnsembleUnavailableError and so on: no lock; see :meth:`ZookeeperLockManager.acquire`.
        SettingsError: ``old_hosts`` without ``move``, or malformed.

    """
    from writer_jobs import DeltaTableLog, TableError, locate_table  # noqa: PLC0415 (needs PySpark)
    from writer_jobs.ensembles import pin_table  # noqa: PLC0415
    from writer_jobs.guarded import guarded  # noqa: PLC0415

    if old_hosts is not None and not move:
        raise SettingsError("--from names the ensemble that a table is moved from: give --move, too")
    log = DeltaTableLog(spark, locate_table(spark, table))
    uri = canonical_table_uri(log.location)
    if log.state() is None:
        raise TableError(f"there is no Delta table at {log.location}: adopt it when its first version is written")
    settings = replace(settings, job=settings.job or _NAME)
    facts = {"job": settings.job}
    with ExitStack() as stack:
        if old_hosts is not None:
            old = stack.enter_context(ZookeeperLockManager(replace(settings, zk_hosts=old_hosts)))
            stack.enter_context(guarded(spark, stack.enter_context(old.acquire(uri)), log, facts))
        manager = stack.enter_context(ZookeeperLockManager(settings))
        hold = stack.enter_context(manager.acquire(uri))
        stack.enter_context(guarded(spark, hold, log, facts, any_ensemble=move))
        state = log.state()
        before = state.ensemble if state is not None else None
        version = None if before == hold.ensemble_id else pin_table(spark, log, hold.ensemble_id)
    moved_from = None if version is None else before
    return Adoption(table=uri, ensemble=hold.ensemble_id, moved_from=moved_from, version=version)


def describe(done: Adoption) -> str:
    """Say in a sentence what became of it."""
    if done.version is None:
        return f"{done.table} is pinned to ensemble {done.ensemble} already; nothing was committed"
    how = "pinned" if done.moved_from is None else f"moved from ensemble {done.moved_from}"
    return f"{done.table} was {how} to ensemble {done.ensemble}, by version {done.version}"


def start_spark(conf: Mapping[str, str]) -> SparkSession:
    """Start a small driver with the jars of this installation; leaving its ``with`` block stops it.

    Args:
        conf: Spark's settings; they win over ``spark-defaults.conf``.

    Raises:
        JarsError: the jars are not there; the message says how to bring them.

    """
    from writer_jobs import build_session  # noqa: PLC0415 (needs PySpark)

    small = {
        **LOCAL_DRIVER,
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        **FEW_ROWS,
    }
    return build_session(_NAME, jars=jar_paths(), launch_conf={**small, **conf}, log_level="FATAL")
