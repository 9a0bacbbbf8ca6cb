"""Guarded blocks: a commit of this thread passes if and only if the lock to which the thread is bound still stands.

Three parts meet here: the hold (:mod:`lock_manager`), the decision (:mod:`lock_manager.guard.commit_guard`), and the
log store in the driver's JVM (``log_store/``), which asks for the decision. A Spark local property binds a thread to
the blocks that it has entered. The JVM thread has that property at each commit. A ``pyspark.InheritableThread``
inherits the property.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from lock_manager import (
    Adoption,
    AdoptionMismatchError,
    Hold,
    LockLostError,
    canonical_table_uri,
)
from lock_manager.errors import format_versions
from lock_manager.guard.guarded_hold import GuardedHold
from lock_manager.guard.ticket import Ticket
from lock_manager.partitions import PartitionSchema
from writer_jobs.commit import driver_guard
from writer_jobs.delta.adoption import refuse_other_ensemble, restore_adoption
from writer_jobs.delta.log_store import follow_transactions, log_store
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import CommitUnknownError, StorageError, TableError

log = logging.getLogger(__name__)

_BLOCKS_PROPERTY = "spark.sluice.block"


@dataclass(frozen=True)
class GuardedTable:
    """A table whose lock is held, and whose commits in this thread are bound to the hold.

    Attributes:
        hold: as the guard knows it; None if the guard is off in this session, or only observes a hold that does not
            count.
        snapshot: loaded under the lock, after what was unfinished had been settled; None if the guard is off.

    """

    hold: GuardedHold | None
    snapshot: Snapshot | None


@contextmanager
def guarded(
    spark: SparkSession,
    hold: Hold,
    table_log: DeltaTableLog,
    metadata: Mapping[str, Any],
    *,
    any_ensemble: bool = False,
    schema: PartitionSchema | None = None,
) -> Iterator[GuardedTable]:
    """Bind this thread's commits to a hold, and settle first the unfinished intents of holds before it.

    Args:
        spark: the session.
        hold: exclusive, of the table of ``table_log``.
        table_log: of the table.
        metadata: what every commit notes beside the hold (JSON values).
        schema: of the table's partitions, where the hold is of some of them.
        any_ensemble: do not check the table's adoption against the hold: to move the table.

    Yields:
        The hold as the guard knows it, and the table as it is now.

    Raises:
        AdoptionMismatchError: the table is adopted by another ensemble or under another name than the hold's;
            nothing was written.
        TableError: it was partitioned anew while the lock was waited for; nothing was written.

    """
    mode = driver_guard.guard_mode(spark)
    if mode == driver_guard.OFF:
        yield GuardedTable(None, None)
        return
    driver_guard.attach_once(spark)
    bound = GuardedHold(hold, metadata, table=canonical_table_uri(table_log.location), schema=schema)

    def look() -> tuple[Snapshot, Adoption | None]:
        seen = table_log.snapshot()
        adoption = None if any_ensemble else _adoption_of(hold, seen, bound, observe=mode == driver_guard.OBSERVE)
        refuse_other_partitioning(seen, schema)
        return seen, adoption

    # Before anything is read or filled: under this lock another writer may be at work. A thread of a block gets
    # checksums that other writers have not stored yet; without them Delta reads the whole state.
    with _bound_thread(spark, bound):
        snapshot, adoption = look()
    with _bound(spark, bound):
        if bound.refusal is None and _fill_intended_versions(spark, table_log, bound):
            # What was unfinished is finished now, and may be what moved the table or partitioned it anew.
            snapshot, adoption = look()
        if bound.refusal is not None:
            yield GuardedTable(None, snapshot)
            return
        with _recorded(spark, bound), _adoption_restored(spark, table_log, bound, adoption):
            yield GuardedTable(bound, snapshot)


@contextmanager
def waiting_with(spark: SparkSession, ticket: Ticket) -> Iterator[None]:
    """Have commits of this ticket wait, in the block, until it is granted or refused."""
    # Threads that begin in the block inherit it. Another Python process of this JVM may have attached later.
    driver_guard.ask_for_this_thread(spark.sparkContext)
    driver_guard.GUARD.open(ticket)
    try:
        yield
    finally:
        driver_guard.GUARD.close(ticket)


@contextmanager
def guarded_commit(
    spark: SparkSession,
    hold: Hold,
    table_log: DeltaTableLog,
    metadata: Mapping[str, Any],
    ticket: Ticket,
    *,
    schema: PartitionSchema | None = None,
    before_commit: Callable[[Hold], None] | None = None,
) -> Iterator[GuardedHold]:
    """Let the commit that waits with a ticket pass under a hold, as :func:`guarded` does for a whole block.

    The adoption that the transaction has read counts. If it has changed since, the metadata of the table has, which
    Delta takes for a conflict of every transaction; and a second transaction has no turn with the same ticket.

    Args:
        spark: the session.
        hold: exclusive, of the table of ``table_log``, had after the commit came.
        table_log: of the table.
        metadata: recorded by the commit beside the hold (JSON values).
        ticket: with its commit; to be granted in the block.
        schema: of the table's partitions, where the hold is of some of them.
        before_commit: called first, in this thread, whose statements the guard allows as in :func:`guarded`.

    Yields:
        The hold as the guard knows it.

    Raises:
        AdoptionMismatchError, TableError: as :func:`guarded`.

    """
    bound = GuardedHold(hold, metadata, table=ticket.table, schema=schema)
    staged = ticket.staged
    adoption = Adoption.of(staged.properties) if staged is not None else None
    if adoption is not None:
        adoption.check(ensemble=hold.ensemble_id, table=ticket.table)

    def look() -> Adoption | None:
        # In a thread of the block, as in :func:`guarded`.
        with _bound_thread(spark, bound):
            snapshot = table_log.snapshot()
        refuse_other_partitioning(snapshot, schema)
        return refuse_other_ensemble(hold, snapshot)

    # The staged commit itself meets Delta's conflict if the table was moved to another ensemble since it was staged.
    # Other commits of this block do not.
    if before_commit is not None or hold.intents_of(bound.table).unfinished:
        adoption = look()
        if _fill_intended_versions(spark, table_log, bound):
            adoption = look()
    driver_guard.GUARD.add(bound)
    try:
        if before_commit is not None:
            with (
                _bound_thread(spark, bound),
                _recorded(spark, bound),
                _adoption_restored(spark, table_log, bound, adoption),
            ):
                before_commit(hold)
            # The log store forgets the attempts of a hold as soon as the staged commit is stored.
            _settle(spark, bound)
        yield bound
    finally:
        driver_guard.GUARD.remove(bound)
        if ticket.committed is None or hold.intents_of(bound.table).open:
            with _only_logged(hold):
                _settle(spark, bound)


@contextmanager
def _bound(spark: SparkSession, bound: GuardedHold) -> Iterator[None]:
    """Have the guard allow this thread's commits in a block, and settle the block's puts at its end."""
    driver_guard.GUARD.add(bound)
    try:
        with _bound_thread(spark, bound):
            yield
    finally:
        driver_guard.GUARD.remove(bound)
        with _only_logged(bound.hold):
            _settle(spark, bound)


@contextmanager
def _bound_thread(spark: SparkSession, bound: GuardedHold) -> Iterator[None]:
    """Bind this thread to a block that the guard knows."""
    context = spark.sparkContext
    outer_blocks = context.getLocalProperty(_BLOCKS_PROPERTY)
    try:
        context.setLocalProperty(_BLOCKS_PROPERTY, ",".join(filter(None, [outer_blocks, bound.name])))
        driver_guard.ask_for_this_thread(context)
        follow_transactions(spark)
        yield
    finally:
        with _only_logged(bound.hold):
            context.setLocalProperty(_BLOCKS_PROPERTY, outer_blocks)


def _adoption_of(hold: Hold, snapshot: Snapshot, bound: GuardedHold, *, observe: bool) -> Adoption | None:
    """Return the table's adoption, if the hold is of it; a driver that only observes has it noted."""
    try:
        return refuse_other_ensemble(hold, snapshot)
    except AdoptionMismatchError as error:
        if not observe:
            raise
        bound.refusal = error
        return None


@contextmanager
def _adoption_restored(
    spark: SparkSession, table_log: DeltaTableLog, bound: GuardedHold, adoption: Adoption | None
) -> Iterator[None]:
    """Restore the table's adoption at the end of a block, also after an error."""
    try:
        yield
    except BaseException as error:
        try:
            _restore_adoption(spark, table_log, bound, adoption)
        except Exception as problem:  # noqa: BLE001 (any error here is second to the body's)
            error.add_note(f"the block changed the table's adoption ({adoption}), run `sluice adopt` again: {problem}")
        raise
    _restore_adoption(spark, table_log, bound, adoption)


def _restore_adoption(
    spark: SparkSession, table_log: DeltaTableLog, bound: GuardedHold, adoption: Adoption | None
) -> None:
    if bound.new_metadata:
        restore_adoption(spark, table_log, bound.hold, adoption)


@contextmanager
def _recorded(spark: SparkSession, bound: GuardedHold) -> Iterator[None]:
    """Have the hold, and the error that says that it was lost, know what the block committed."""
    hold, before = bound.hold, set(bound.allowed_puts)
    try:
        try:
            yield
        finally:
            with _only_logged(hold):
                for each in attempts(spark, bound):
                    if each["outcome"] == "committed" and each["attempt"] in bound.allowed_puts.keys() - before:
                        hold.record_commit(each["version"], bound.table)
    except LockLostError as error:
        if type(error) is LockLostError and error.commits != hold.commits:
            # The check that found it out did not know yet what had been committed before.
            raise LockLostError(
                resource=error.resource, hold_id=error.hold_id, reason=error.reason, commits=hold.commits
            ) from error
        raise
    except Exception as error:
        if hold.commits:
            error.add_note(f"committed before, under this lock: {format_versions(hold.commits)}")
        raise


@contextmanager
def _only_logged(hold: Hold) -> Iterator[None]:
    """Log what goes wrong where the JVM may be gone, or Spark was stopped: the body's own error says so."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (whatever it is)
        log.warning("what became of the commits to %s is not known: %s", hold.resource, error)


def attempts(spark: SparkSession, bound: GuardedHold, write_id: str | None = None) -> list[dict[str, Any]]:
    """Return the puts of a block with their outcomes, as the log store saw them.

    Args:
        spark: the session.
        bound: the block.
        write_id: only the puts of this operation attempt; None: all puts.

    Returns:
        Objects with ``version``, ``txn``, ``attempt`` and ``outcome``: ``committed``, ``taken`` (the version is another
        transaction's), ``rejected`` (nothing was stored), ``unknown`` (no answer, and the version is still free) or
        ``pending``.

    """
    names = bound.allowed_puts.keys() if write_id is None else bound.puts_of(write_id)
    return [put for put in _attempts_under(spark, bound.hold) if put["attempt"] in names] if names else []


def _attempts_under(spark: SparkSession, hold: Hold) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(log_store(spark, "Attempts").of(hold.hold_id))
    return found


def _settle(spark: SparkSession, bound: GuardedHold) -> None:
    """Note which attempts under the hold have an outcome by now; have the log store forget them when all have.

    An attempt belongs to the hold and the table, not to this block: one that an earlier block left open stays open.
    """
    others = driver_guard.GUARD.sibling_blocks(bound)
    intents = bound.hold.intents_of(bound.table)
    if intents.open and not bound.settle(_attempts_under(spark, bound.hold)):
        if all(other.table != bound.table for other in others):
            log.warning("what became of a commit to %s is not known: the next holder will see", bound.hold.resource)
        return
    # The log store knows attempts by their hold, which may be of several tables.
    if intents.settled and not others and not any(bound.hold.intents_of(table).open for table in bound.hold.scope):
        log_store(spark, "Attempts").forget(bound.hold.hold_id)


def _fill_intended_versions(spark: SparkSession, table_log: DeltaTableLog, bound: GuardedHold) -> bool:
    """Make sure that no put of a block before this one can still succeed.

    That is a put of an earlier hold that left its intent unfinished, or one under this very hold without an answer.

    Returns:
        Whether there was anything unfinished.

    """
    left_behind = bound.hold.intents_of(bound.table)
    busy = {attempt for block in driver_guard.GUARD.sibling_blocks(bound) for attempt in list(block.allowed_puts)}
    unanswered = bound.unanswered(_attempts_under(spark, bound.hold), busy) if left_behind.open else []
    if (left_behind.unfinished or unanswered) and bound.hold.scope[bound.table].shared:
        log.warning("what is read of %s may be overtaken: a writer left an unfinished intent", bound.hold.resource)
        return False

    def fill(free: int, left_by: Collection[str]) -> int:
        try:
            with _bound(spark, bound.for_empty_commit(left_by)):
                version = table_log.commit_nothing()
        except (StorageError, CommitUnknownError) as error:
            version = table_log.head().version
            if version < free:
                raise StorageError(
                    f"nothing was written: version {free}, which the writer before had not finished, could not be "
                    f"filled with an empty commit: {error}"
                ) from error
            # The late commit was faster, and changed what an empty one conflicts with.
        log.warning(
            "the writer before had not finished version %d of %s: it is filled now (%d)",
            free, bound.hold.resource, version,
        )  # fmt: skip
        return version

    return bound.settle_unfinished(unanswered, lambda: table_log.head().version, fill)


def refuse_other_partitioning(snapshot: Snapshot, schema: PartitionSchema | None) -> None:
    """Make sure that the table's partitions are still those by which the hold was, or will be, asked for.

    Raises:
        TableError: somebody has partitioned the table in another way since.

    """
    if schema is not None and not snapshot.partition_schema().partitions_as(schema):
        raise TableError(f"{snapshot.location} was partitioned anew while its lock was waited for: try again")
