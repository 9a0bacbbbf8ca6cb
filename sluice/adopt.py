"""``sluice adopt``: pins a table to one ensemble and one name, so that only that lock counts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lock_manager import (
    LockSettings,
    Pin,
    ResourceError,
    SettingsError,
    ZookeeperLockManager,
    canonical_table_uri,
)
from sluice.local.jars import jar_paths
from sluice.local.spark import FEW_ROWS, LOCAL_DRIVER, QUICK_JVM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = "sluice adopt"


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """What became of it.

    Attributes:
        table: canonical URI.
        ensemble: UUID of the ensemble to which the table is pinned now.
        moved_from: another one to which it was pinned before, else None.
        renamed_from: the name to which it was pinned before, if that was another one, else None.
        version: of the table, made for it; None if it was pinned so already.

    """

    table: str
    ensemble: str
    moved_from: str | None
    renamed_from: str | None
    version: int | None


def adopt_table(
    spark: SparkSession,
    table: str,
    settings: LockSettings,
    *,
    move: bool = False,
    old_hosts: str | None = None,
) -> Adoption:
    """Record in a table, under its lock, that the lock of this ensemble on this name is the one that counts.

    Args:
        spark: a session with the guarded log store.
        table: location or name in the catalog; the table must exist.
        settings: of the lock; name the ensemble.
        move: also if the table is pinned to another ensemble or name. The lock on the name to which it is pinned is
            held meanwhile, too: that may be another name of this very table. A writer that holds the
            lock of the other ensemble at the moment would go on writing until the end of its block.
        old_hosts: connection string of the ensemble that the table is moved from: its lock is held meanwhile, too, so
            that nobody can be at work.

    Raises:
        PinMismatchError: the table is pinned to another ensemble or name and ``move`` is not set, ``old_hosts`` is
            not where it is pinned to.
        TableError, StorageError: no table, or one that cannot be pinned, or that somebody else has moved meanwhile.
        LockTimeoutError, EnsembleUnavailableError and so on: no lock; see :meth:`ZookeeperLockManager.acquire`.
        SettingsError: ``old_hosts`` without ``move``, or malformed.

    """
    from writer_jobs import DeltaTableLog, TableError, locate_table  # noqa: PLC0415 (needs PySpark)
    from writer_jobs.commit.guarded import guarded  # noqa: PLC0415
    from writer_jobs.delta.adoption import own_pin, pin_table  # noqa: PLC0415

    if old_hosts is not None and not move:
        raise SettingsError("--from names the ensemble that a table is moved from: give --move, too")
    log = DeltaTableLog(spark, locate_table(spark, table))
    uri = canonical_table_uri(log.location)
    state = log.state()
    if state is None:
        raise TableError(f"there is no Delta table at {log.location}: adopt it when its first version is written")
    settings = replace(settings, job=settings.job or _NAME)
    facts = {"job": settings.job}
    pin = state.pin if move else None
    names = _names(uri, pin)
    with ExitStack() as stack:
        if old_hosts is not None:
            old = stack.enter_context(ZookeeperLockManager(replace(settings, zk_hosts=old_hosts)))
            old_hold = stack.enter_context(old.acquire_all(names))
            if pin is not None:
                pin.check(ensemble=old_hold.ensemble_id, table=pin.table or uri)
            stack.enter_context(guarded(spark, old_hold, log, facts, any_ensemble=True))
        manager = stack.enter_context(ZookeeperLockManager(settings))
        hold = stack.enter_context(manager.acquire_all(names))
        stack.enter_context(guarded(spark, hold, log, facts, any_ensemble=move))
        state = log.state()
        before = None if state is None else state.pin
        if move and before != pin:
            raise TableError(f"somebody has changed the pin of {uri} meanwhile, to {before}: look at it, and try again")
        after = own_pin(hold, log)
        version = None if before == after else pin_table(spark, log, after)
    return Adoption(
        table=uri,
        ensemble=after.ensemble,
        moved_from=before.ensemble if before is not None and before.ensemble != after.ensemble else None,
        renamed_from=before.table if before is not None and before.table != after.table else None,
        version=version,
    )


def _names(uri: str, pin: Pin | None) -> list[str]:
    """Return all names that a table may be locked by: while it gets another one, nobody else may be at work."""
    names = {uri}
    if pin is not None and pin.table is not None:
        with suppress(ResourceError):  # written by hand, and nothing that could be locked
            names.add(canonical_table_uri(pin.table))
    return sorted(names)


def describe(done: Adoption) -> str:
    """Say in a sentence what became of it."""
    if done.version is None:
        return f"{done.table} is pinned to ensemble {done.ensemble} already; nothing was committed"
    how = "pinned" if done.moved_from is None else f"moved from ensemble {done.moved_from}"
    name = f" under this name, no longer {done.renamed_from}" if done.renamed_from else ""
    return f"{done.table} was {how} to ensemble {done.ensemble}{name}, by version {done.version}"


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
