"""Guarded blocks: a commit of this thread passes only if the lock to which the thread is bound still stands.

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
    TableScope,
    UnsupportedLockError,
    canonical_table_uri,
)
from lock_manager.errors import format_versions
from lock_manager.events import Event, emit
from lock_manager.guard.guarded_block import GuardedBlock
from lock_manager.guard.ticket import Ticket
from lock_manager.partitions import PartitionSchema
from writer_jobs.commit import driver_guard
from writer_jobs.delta.adoption import refuse_other_ensemble, restore_adoption
from writer_jobs.delta.java_classes import log_store
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import CommitUnknownError, StorageError, TableError

log = logging.getLogger(__name__)

_BLOCKS_PROPERTY = "spark.sluice.block"


@dataclass(frozen=True)
class GuardedTable:
    """A table whose lock is held, and whose commits in this thread are bound to the hold.

    Attributes:
        block: The block under the hold; None if the guard is off in this session, or only observes and the table's
            adoption names another lock.
        snapshot: The table, loaded under the lock after unfinished intents were settled; None if the guard is off.

    """

    block: GuardedBlock | None
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
    scope: TableScope | None = None,
) -> Iterator[GuardedTable]:
    """Bind this thread's commits to a hold, after settling the unfinished intents of earlier holds.

    Args:
        hold: Hold of the table. The guard refuses every commit under a shared one.
        metadata: JSON values that every commit records in addition to the hold.
        schema, scope: See :class:`~lock_manager.guard.guarded_block.GuardedBlock`.
        any_ensemble: Whether to skip the check of the table's adoption against the hold; needed to move the table to
            another ensemble.

    Raises:
        AdoptionMismatchError: The table is adopted by another ensemble or under another name than the hold's;
            nothing was written.
        UnsupportedLockError: The hold excludes no other writer, and the guard is not in ``required`` mode.
        TableError: The table got other partition columns before the lock was acquired; nothing was written.
        StorageError: The log cannot be read, or the version of an unfinished intent cannot be filled.

    """
    mode = driver_guard.guard_mode(spark)
    if mode != driver_guard.REQUIRED and not hold.excludes:
        raise UnsupportedLockError(
            f"has no commit guard that checks each commit (guard={mode})", resource=hold.resource
        )
    if mode == driver_guard.OFF:
        yield GuardedTable(None, None)
        return
    driver_guard.attach_once(spark)
    block = GuardedBlock(hold, metadata, table=canonical_table_uri(table_log.location), schema=schema, scope=scope)

    def load() -> tuple[Snapshot, Adoption | None]:
        snapshot = table_log.snapshot()
        adoption: Adoption | None = None
        try:
            adoption = None if any_ensemble else refuse_other_ensemble(hold, snapshot)
        except AdoptionMismatchError as error:
            if mode != driver_guard.OBSERVE:
                emit(Event.REFUSED, block.table, error=type(error).__name__)
                raise
            block.refusal = error
        refuse_other_partitioning(snapshot, schema)
        return snapshot, adoption

    # Checked before any intent is settled: if the hold does not count for this table, another writer may be at work.
    # The log store derives missing checksums for a thread that is bound to a block; without them Delta computes the
    # state.
    with _bound_thread(spark, block):
        snapshot, adoption = load()
    with _open_block(spark, block):
        if block.refusal is None and _settle_unfinished_intents(spark, table_log, block):
            # An intent that is settled now may be the commit that moved the table or changed its partition columns.
            snapshot, adoption = load()
        if block.refusal is not None:
            yield GuardedTable(None, snapshot)
            return
        if not hold.excludes:
            block.require_unchanged_since(snapshot.version)
        with _commits_recorded(spark, block), _adoption_restored(spark, table_log, block, adoption):
            yield GuardedTable(block, snapshot)


@contextmanager
def waiting_with(spark: SparkSession, ticket: Ticket) -> Iterator[None]:
    """Make commits of this ticket wait, in the block, until it is granted or refused."""
    # Threads that begin in the block inherit the property. Another Python process of this JVM may have attached later.
    driver_guard.guard_this_thread(spark.sparkContext)
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
    scope: TableScope | None = None,
    before_commit: Callable[[Hold], None] | None = None,
) -> Iterator[GuardedBlock]:
    """Let the commit that waits with a ticket pass under a hold, as :func:`guarded` does for a whole block.

    The adoption that the transaction has read is checked. If the adoption has changed since then, the table's metadata
    has changed, so Delta's commit fails with a conflict. A ticket lets no second transaction commit.

    Args:
        metadata, schema, scope: See :func:`guarded`.
        hold: Exclusive hold of the table, acquired after the commit reached the gate.
        ticket: Ticket of the commit. The caller grants it in the block.
        before_commit: Called first, in this thread, whose statements the guard allows as in :func:`guarded`.

    Raises:
        AdoptionMismatchError, TableError, StorageError: See :func:`guarded`.

    """
    block = GuardedBlock(hold, metadata, table=ticket.table, schema=schema, scope=scope)
    staged_commit = ticket.staged
    adoption = Adoption.of(staged_commit.properties) if staged_commit is not None else None
    if adoption is not None:
        with _refusal_emitted(block.table):
            adoption.check(ensemble=hold.ensemble_id, table=ticket.table)

    def load_adoption() -> Adoption | None:
        # In a thread of the block, as in :func:`guarded`.
        with _bound_thread(spark, block):
            snapshot = table_log.snapshot()
        refuse_other_partitioning(snapshot, schema)
        with _refusal_emitted(block.table):
            return refuse_other_ensemble(hold, snapshot)

    # The staged commit itself fails with Delta's conflict if the table was moved to another ensemble since it was
    # staged. Other commits of this block do not.
    is_unproven = adoption is None and hold.needs_adoption
    if before_commit is not None or is_unproven or hold.intents_of(block.table).unfinished:
        adoption = load_adoption()
        if _settle_unfinished_intents(spark, table_log, block):
            adoption = load_adoption()
    driver_guard.GUARD.add(block)
    try:
        if before_commit is not None:
            with (
                _bound_thread(spark, block),
                _commits_recorded(spark, block),
                _adoption_restored(spark, table_log, block, adoption),
            ):
                before_commit(hold)
            # The log store forgets the attempts of a hold as soon as the staged commit is stored.
            _settle(spark, block)
        yield block
    finally:
        driver_guard.GUARD.remove(block)
        if ticket.committed is None or hold.intents_of(block.table).open:
            with _errors_logged(hold):
                _settle(spark, block)


@contextmanager
def _refusal_emitted(table: str) -> Iterator[None]:
    """Emit the event of a commit that is refused because of the table's adoption."""
    try:
        yield
    except AdoptionMismatchError as error:
        emit(Event.REFUSED, table, error=type(error).__name__)
        raise


@contextmanager
def _open_block(spark: SparkSession, block: GuardedBlock) -> Iterator[None]:
    """Make the guard allow this thread's commits in a block, and settle the block's puts at its end."""
    driver_guard.GUARD.add(block)
    try:
        with _bound_thread(spark, block):
            yield
    finally:
        driver_guard.GUARD.remove(block)
        with _errors_logged(block.hold):
            _settle(spark, block)


@contextmanager
def _bound_thread(spark: SparkSession, block: GuardedBlock) -> Iterator[None]:
    """Bind this thread to a block."""
    context = spark.sparkContext
    outer_blocks = context.getLocalProperty(_BLOCKS_PROPERTY)
    try:
        context.setLocalProperty(_BLOCKS_PROPERTY, ",".join(filter(None, [outer_blocks, block.name])))
        driver_guard.guard_this_thread(context)
        yield
    finally:
        with _errors_logged(block.hold):
            context.setLocalProperty(_BLOCKS_PROPERTY, outer_blocks)


@contextmanager
def _adoption_restored(
    spark: SparkSession, table_log: DeltaTableLog, block: GuardedBlock, adoption: Adoption | None
) -> Iterator[None]:
    """Restore the table's adoption at the end of a block, also after an error."""
    try:
        yield
    except BaseException as error:
        try:
            _restore_adoption(spark, table_log, block, adoption)
        except Exception as problem:  # noqa: BLE001 (the body's error matters more than any error here)
            error.add_note(f"the adoption may have changed (from {adoption}), run `sluice adopt` again: {problem}")
        raise
    _restore_adoption(spark, table_log, block, adoption)


def _restore_adoption(
    spark: SparkSession, table_log: DeltaTableLog, block: GuardedBlock, adoption: Adoption | None
) -> None:
    if block.has_new_metadata:
        restore_adoption(spark, table_log, block.hold, adoption)


@contextmanager
def _commits_recorded(spark: SparkSession, block: GuardedBlock) -> Iterator[None]:
    """Record the commits of a block in its hold, and in an error that the block raises."""
    hold, earlier_attempts = block.hold, set(block.allowed_puts)
    try:
        try:
            yield
        finally:
            with _errors_logged(hold):
                for put in recorded_puts(spark, block):
                    if put["outcome"] == "committed" and put["attempt"] in block.allowed_puts.keys() - earlier_attempts:
                        hold.record_commit(put["version"], block.table)
    except LockLostError as error:
        if type(error) is LockLostError and error.commits != hold.commits:
            # The check that found the loss did not know yet which versions had been committed before it.
            raise LockLostError(
                resource=error.resource, hold_id=error.hold_id, reason=error.reason, commits=hold.commits
            ) from error
        raise
    except Exception as error:
        if hold.commits:
            error.add_note(f"committed before, under this lock: {format_versions(hold.commits)}")
        raise


@contextmanager
def _errors_logged(hold: Hold) -> Iterator[None]:
    """Log errors instead of raising them: if the JVM is gone or Spark was stopped, the body's error reports that."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (any error)
        log.warning("the outcome of the commits to %s is not known: %s", hold.resource, error)


def recorded_puts(spark: SparkSession, block: GuardedBlock, write_id: str | None = None) -> list[dict[str, Any]]:
    """Return the puts of a block, or of one operation attempt, with the outcomes that the log store recorded.

    These are objects with ``version``, ``txn``, ``attempt`` and ``outcome``: ``committed``, ``taken`` (the version is
    another transaction's), ``rejected`` (nothing was stored or will be), ``unknown`` (it may be stored, now or later)
    or ``pending``.
    """
    attempt_names = block.allowed_puts.keys() if write_id is None else block.puts_of(write_id)
    return [put for put in _puts_under(spark, block.hold) if put["attempt"] in attempt_names] if attempt_names else []


def _puts_under(spark: SparkSession, hold: Hold) -> list[dict[str, Any]]:
    puts: list[dict[str, Any]] = json.loads(log_store(spark, "Attempts").of(hold.hold_id))
    driver_guard.GUARD.put_spans.end(puts)
    return puts


def _settle(spark: SparkSession, block: GuardedBlock) -> None:
    """Record which attempts under the hold have an outcome, and make the log store forget them when all have one.

    An attempt belongs to the hold and the table, not to this block: one that an earlier block left open counts, too.
    """
    hold, other_blocks = block.hold, driver_guard.GUARD.sibling_blocks(block)
    intents = hold.intents_of(block.table)
    if intents.open and not block.settle(_puts_under(spark, hold)):
        if all(sibling.table != block.table for sibling in other_blocks):
            log.warning("the outcome of a commit to %s is not known: the next holder settles it", hold.resource)
        return
    # The log store knows attempts by their hold, which may be of several tables.
    if intents.settled and not other_blocks and not any(hold.intents_of(table).open for table in hold.scope):
        log_store(spark, "Attempts").forget(hold.hold_id)


def _settle_unfinished_intents(spark: SparkSession, table_log: DeltaTableLog, block: GuardedBlock) -> bool:
    """Make sure that no put of an earlier block can still succeed; return whether any intent is settled now.

    Such a put belongs to an earlier hold that left its intent unfinished, or belongs to this hold and got no answer.
    Under a shared hold, which allows no commit, this only logs a warning.
    """
    intents = block.hold.intents_of(block.table)
    busy_attempts = {
        attempt for sibling in driver_guard.GUARD.sibling_blocks(block) for attempt in list(sibling.allowed_puts)
    }
    unanswered_puts = block.unanswered_intents(_puts_under(spark, block.hold), busy_attempts) if intents.open else []
    if (intents.unfinished or unanswered_puts) and block.hold.scope[block.table].shared:
        log.warning(
            "an earlier writer of %s left an unfinished intent: its commit may appear after this read",
            block.hold.resource,
        )
        return False

    def make_empty_commit(free_version: int, hold_ids: Collection[str]) -> int:
        try:
            with _open_block(spark, block.for_empty_commit(hold_ids)):
                version = table_log.make_empty_commit()
        except (StorageError, CommitUnknownError) as error:
            version = table_log.head().version
            if version < free_version:
                raise StorageError(
                    f"nothing was written: version {free_version}, which an earlier writer left unfinished, could not "
                    f"be filled with an empty commit: {error}"
                ) from error
            # The late commit was faster, and conflicts with the empty commit.
        log.warning(
            "an earlier writer left version %d of %s unfinished: version %d settles it",
            free_version, block.hold.resource, version,
        )  # fmt: skip
        return version

    return block.settle_unfinished(unanswered_puts, lambda: table_log.head().version, make_empty_commit)


def refuse_other_partitioning(snapshot: Snapshot, schema: PartitionSchema | None) -> None:
    """Raise TableError if the table has other partition columns than the hold was, or will be, requested for."""
    if schema is not None and not snapshot.partition_schema().has_same_partitions(schema):
        raise TableError(f"{snapshot.location} got other partition columns while its lock was waited for: try again")
