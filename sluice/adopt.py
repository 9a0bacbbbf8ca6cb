"""``sluice adopt``: has one ensemble adopt a table under one name, so that only that lock counts."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lock_manager import (
    Adoption,
    LockSettings,
    ResourceError,
    SettingsError,
    ZookeeperLockManager,
    canonical_table_uri,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = "sluice adopt"


@dataclass(frozen=True, kw_only=True)
class AdoptResult:
    """What ``sluice adopt`` did.

    Attributes:
        table: canonical URI.
        ensemble: UUID of the ensemble that has adopted the table now.
        moved_from: another one that had adopted it before, else None.
        renamed_from: the name under which it was adopted before, if that was another one, else None.
        version: of the table, made for it; None if it was adopted so already.

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
) -> AdoptResult:
    """Record in a table, under its lock, that the lock of this ensemble on this name is the one that counts.

    Args:
        spark: a session with the guarded log store.
        table: location or name in the catalog; the table must exist.
        settings: of the lock; name the ensemble.
        move: also if the table is adopted by another ensemble or under another name. The lock on its adopted name is
            held meanwhile, too: that may be another name of this very table. A writer that holds the lock of the other
            ensemble at the moment would go on writing until the end of its block.
        old_hosts: connection string of the ensemble that the table is moved from: its lock is held meanwhile, too, so
            that nobody can be at work.

    Raises:
        AdoptionMismatchError: the table is adopted by another ensemble or under another name and ``move`` is not set,
            or ``old_hosts`` is not the ensemble that has adopted it.
        TableError, StorageError: no table, or one that cannot be adopted, or that somebody else has moved meanwhile.
        LockTimeoutError, EnsembleUnavailableError and so on: no lock; see :meth:`ZookeeperLockManager.acquire`.
        SettingsError: ``old_hosts`` without ``move``, or malformed.

    """
    from writer_jobs import DeltaTableLog, TableError, locate_table  # noqa: PLC0415 (needs PySpark)
    from writer_jobs.commit.guarded import guarded  # noqa: PLC0415
    from writer_jobs.delta.adoption import commit_adoption, own_adoption  # noqa: PLC0415

    if old_hosts is not None and not move:
        raise SettingsError("--from names the ensemble that a table is moved from: give --move, too")
    log = DeltaTableLog(spark, locate_table(spark, table))
    uri = canonical_table_uri(log.location)
    state = log.state()
    if state is None:
        raise TableError(f"there is no Delta table at {log.location}: adopt it when its first version is written")
    settings = replace(settings, job=settings.job or _NAME)
    facts = {"job": settings.job}
    adoption = state.adoption if move else None
    names = _names(uri, adoption)
    with ExitStack() as stack:
        if old_hosts is not None:
            old = stack.enter_context(ZookeeperLockManager(replace(settings, zk_hosts=old_hosts)))
            old_hold = stack.enter_context(old.acquire_all(names))
            if adoption is not None:
                adoption.check(ensemble=old_hold.ensemble_id, table=adoption.table or uri)
            stack.enter_context(guarded(spark, old_hold, log, facts, any_ensemble=True))
        manager = stack.enter_context(ZookeeperLockManager(settings))
        hold = stack.enter_context(manager.acquire_all(names))
        stack.enter_context(guarded(spark, hold, log, facts, any_ensemble=move))
        state = log.state()
        before = None if state is None else state.adoption
        if move and before != adoption:
            raise TableError(
                f"somebody has changed the adoption of {uri} meanwhile, to {before}: look at it, and try again"
            )
        after = own_adoption(hold, log)
        version = None if before == after else commit_adoption(spark, log, after)
    return AdoptResult(
        table=uri,
        ensemble=after.ensemble,
        moved_from=before.ensemble if before is not None and before.ensemble != after.ensemble else None,
        renamed_from=before.table if before is not None and before.table != after.table else None,
        version=version,
    )


def _names(uri: str, adoption: Adoption | None) -> list[str]:
    """Return all names that a table may be locked by: while it gets another one, nobody else may be at work."""
    names = {uri}
    if adoption is not None and adoption.table is not None:
        with suppress(ResourceError):  # written by hand, and nothing that could be locked
            names.add(canonical_table_uri(adoption.table))
    return sorted(names)


def describe(done: AdoptResult) -> str:
    """Say in a sentence what ``sluice adopt`` did."""
    if done.version is None:
        return f"{done.table} is adopted by ensemble {done.ensemble} already; nothing was committed"
    how = "adopted by" if done.moved_from is None else f"moved from ensemble {done.moved_from} to"
    name = f" under this name, no longer {done.renamed_from}" if done.renamed_from else ""
    return f"{done.table} was {how} ensemble {done.ensemble}{name}, by version {done.version}"
