"""``sluice adopt``: binds a table to one ensemble and one name, so that no other lock is accepted."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lock_manager import Adoption, LockSettings, ResourceError, SettingsError, canonical_table_uri
from lock_manager.managers import manager_of
from lock_manager.settings import OPTIMISTIC_URL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class AdoptResult:
    """The result of ``sluice adopt``.

    Attributes:
        table: Canonical URI of the table.
        ensemble: UUID of the adopting ensemble.
        moved_from: UUID of the previous ensemble; None if that is the adopting ensemble, or there was none.
        renamed_from: The previous adopted name; None if that is the current name, or there was none.
        version: The version that records the adoption; None if the table already had this adoption.

    """

    table: str
    ensemble: str
    moved_from: str | None
    renamed_from: str | None
    version: int | None


def adopt_table(
    spark: SparkSession, table: str, settings: LockSettings, *, move: bool = False, old_hosts: str | None = None
) -> AdoptResult:
    """Record in the table's properties, under its lock, that only this ensemble's lock on this name is accepted.

    Args:
        spark: A session with the guarded log store.
        table: Location, or name in the catalog. The table must exist.
        settings: Settings of the lock. They name the adopting ensemble.
        move: Whether to adopt a table that is adopted by another ensemble or under another name. The lock on the
            previous name is held, too, because that may be another name of the same table. A writer that holds the
            previous ensemble's lock keeps writing until the end of its block, unless ``old_hosts`` is given.
        old_hosts: Connection string or URL of the previous coordinator. Its lock is held, too, so that no writer is
            active.

    Raises:
        AdoptionMismatchError: The table is adopted by another ensemble or under another name and ``move`` is false,
            or ``old_hosts`` is not the ensemble that adopted it.
        TableError, StorageError: There is no table, it cannot be adopted, or its adoption was changed concurrently.
        LockTimeoutError, EnsembleUnavailableError and so on: The lock was not acquired; see
            :meth:`.BaseManager.acquire`.
        SettingsError: ``old_hosts`` is given without ``move``, or is malformed.

    """
    from writer_jobs import DeltaTableLog, TableError, locate_table  # noqa: PLC0415 (needs PySpark)
    from writer_jobs.commit.guarded import guarded  # noqa: PLC0415
    from writer_jobs.delta.adoption import adoption_under, commit_adoption  # noqa: PLC0415
    from writer_jobs.progress import Progress, shown  # noqa: PLC0415

    if old_hosts is not None and not move:
        raise SettingsError("--from names the previous ensemble of a table that is moved; pass --move, too")
    log = DeltaTableLog(spark, locate_table(spark, table))
    uri = canonical_table_uri(log.location)
    state = log.state()
    if state is None:
        raise TableError(f"there is no Delta table at {log.location}: adopt it after its first version is written")
    settings = replace(settings, job=settings.job or "sluice adopt")
    old_settings: LockSettings | None = None
    if old_hosts is not None:
        old_settings = _without_queue(settings.of_coordinator(old_hosts))
    elif settings.fallback:
        # Writers with a fallback go on without the lock of their ensemble. So no writer may hold it when they begin.
        old_settings = replace(settings, fallback="")
    settings = _without_queue(settings)
    metadata = {"job": settings.job}
    expected_adoption = state.adoption if move else None
    names = _names_to_lock(uri, expected_adoption)
    progress = Progress(uri)
    with ExitStack() as stack:
        if old_settings is not None:
            old_manager = stack.enter_context(manager_of(old_settings))
            with shown(progress, spark):
                old_hold = stack.enter_context(old_manager.acquire_all(names, needs_exclusion=False))
            if old_hosts is not None and expected_adoption is not None:
                expected_adoption.check(ensemble=old_hold.ensemble_id, table=expected_adoption.table or uri)
            stack.enter_context(guarded(spark, old_hold, log, metadata, any_ensemble=True))
        manager = stack.enter_context(manager_of(settings))
        with shown(progress, spark):
            hold = stack.enter_context(manager.acquire_all(names, needs_exclusion=False))
            progress.outcome = "the lock is held"
        stack.enter_context(guarded(spark, hold, log, metadata, any_ensemble=move))
        state = log.state()
        previous = None if state is None else state.adoption
        if move and previous != expected_adoption:
            change = "removed" if previous is None else f"changed to {previous}"
            raise TableError(f"the adoption of {uri} was {change} concurrently; check it, and try again")
        current = adoption_under(hold, log)
        version = None if previous == current else commit_adoption(spark, log, current)
    return AdoptResult(
        table=uri,
        ensemble=current.ensemble,
        moved_from=previous.ensemble if previous is not None and previous.ensemble != current.ensemble else None,
        renamed_from=previous.table if previous is not None and previous.table != current.table else None,
        version=version,
    )


def _without_queue(settings: LockSettings) -> LockSettings:
    """Return settings that do not wait in the queue of a fallback; its place would be in the way of the old lock."""
    return settings.of_coordinator(OPTIMISTIC_URL) if settings.fallback else settings


def _names_to_lock(uri: str, adoption: Adoption | None) -> list[str]:
    """Return the names to lock while the adoption changes: the table's URI, and its adopted name."""
    names = {uri}
    if adoption is not None and adoption.table is not None:
        with suppress(ResourceError):  # the property was edited by hand and is not a usable URI
            names.add(canonical_table_uri(adoption.table))
    return sorted(names)


def describe(result: AdoptResult) -> str:
    """Return the result of ``sluice adopt`` as one sentence."""
    if result.version is None:
        return f"{result.table} is adopted by ensemble {result.ensemble} already; nothing was committed"
    change = "adopted by" if result.moved_from is None else f"moved from ensemble {result.moved_from} to"
    name = f" under this name, no longer {result.renamed_from}" if result.renamed_from else ""
    return f"{result.table} was {change} ensemble {result.ensemble}{name}, by version {result.version}"
