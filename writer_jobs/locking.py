"""``locked`` and ``locked_all``: a lock around any block of code that uses Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from pyspark.sql import SparkSession

from lock_manager import Hold, LockManager, tracing
from writer_jobs.commit.driver_guard import attach_unless_off, default_manager
from writer_jobs.commit.lock_target import LockTarget, job_note
from writer_jobs.delta.checkpoints import write_due_checkpoints
from writer_jobs.delta.jvm_errors import is_conflict
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.progress import Progress, shown


@contextmanager
def locked(
    spark: SparkSession,
    table: str,
    *,
    partitions: Collection[Mapping[str, object]] | None = None,
    manager: LockManager | None = None,
    timeout_seconds: float | None = None,
) -> Iterator[Hold]:
    """Lock a table for all Spark statements of a block: SQL, MERGE, OPTIMIZE, ``saveAsTable``, in this thread.

    ::

        with locked(spark, "s3a://lake/flights"):
            spark.sql("DELETE FROM delta.`s3a://lake/flights` WHERE year < 2010")

    A commit passes only while the lock stands. If the lock is lost or cannot be confirmed, the statement raises
    LockLostError or LockNotHeldError, and that commit is not made. A statement that makes several commits may have made
    earlier ones.

    Inside the block, ``locked`` and the writes of a :class:`LockedDeltaWriter` in this thread use the same hold, with
    any manager of the same ensemble.

    After a DROP, version files have the same names again. So a late commit to the dropped table may land in the next
    table at the same location. Replace the table instead, or see docs/operate.md ("DROP and CREATE at one place").

    Args:
        spark: A session with the guarded log store, see :func:`attach`.
        table: Location, or name in the catalog; resolved once, before the lock is requested. It need not exist yet.
        partitions: Values of the table's first partition columns by name, such as ``[{"year": 2013, "month": 1}]``.
            Only these partitions are locked, and a commit that touches anything else is refused. The table must exist.
        manager: Lock manager. By default one that this process shares, with the settings of
            :meth:`LockSettings.from_spark`.
        timeout_seconds: Total seconds to wait for the lock; 0 takes the lock only if it is free now. By default the
            manager's ``timeout_seconds``.

    Raises:
        GuardMissingError, UnsupportedSessionError: See :func:`attach`.
        TableError: The location has files but no Delta table, or a catalog decides the table's commits.
        StorageError: The location cannot be read, or the version of an unfinished intent cannot be filled.
        ResourceError: The table has no such partition column, or a value does not fit its type.
        SettingsError: No ensemble is configured.
        LockTimeoutError and so on: See :meth:`ZookeeperLockManager.acquire`.
        AdoptionMismatchError: The table is adopted by another ensemble, or under another name; the block was not
            entered.
        LockLostError: At the end of the block the lock turns out to be lost, so some reads of the block may have run
            without it.

    """
    tables = {table: partitions}
    with locked_all(spark, tables, manager=manager, timeout_seconds=timeout_seconds) as hold:
        yield hold


@contextmanager
def locked_all(
    spark: SparkSession,
    tables: Mapping[str, Collection[Mapping[str, object]] | None],
    *,
    manager: LockManager | None = None,
    timeout_seconds: float | None = None,
) -> Iterator[Hold]:
    """Lock several tables, or partitions of them, at once; like :func:`locked`, all or nothing and without a deadlock.

    Args:
        spark: A session with the guarded log store.
        tables: Partitions by location or name in the catalog; None locks the whole table.
        manager: Lock manager, as for :func:`locked`.
        timeout_seconds: Total seconds to wait for all locks.

    """
    # Before any wait for the lock: an error here must not keep other writers waiting.
    attach_unless_off(spark)
    targets = [_target(spark, table, partitions) for table, partitions in tables.items()]
    manager = manager or default_manager(spark)
    note = job_note(spark, manager)
    with tracing.span("locked", {"sluice.table": ", ".join(target.scope.table.uri for target in targets)}):
        with ExitStack() as stack:
            scopes = [target.scope for target in targets]
            progress = Progress(targets[0].scope.table.uri)
            with shown(progress, spark):
                hold = stack.enter_context(manager.acquire_all(scopes, timeout_seconds=timeout_seconds))
                progress.outcome = "the lock is held"
            for target in targets:
                stack.enter_context(target.guarded(spark, hold, note))
            try:
                yield hold
            except Exception as error:
                if is_conflict(error):
                    # Another writer has committed: one without the lock, or the next holder of a lock that is lost. In
                    # the second case check() raises LockLostError.
                    hold.check()
                raise
        write_due_checkpoints(spark, manager)


def _target(spark: SparkSession, table: str, partitions: Collection[Mapping[str, object]] | None) -> LockTarget:
    log = DeltaTableLog(spark, locate_table(spark, table, new=True))
    log.refuse_foreign_folder()
    return LockTarget.of(log, partitions)
