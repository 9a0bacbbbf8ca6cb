"""``locked`` and ``locked_all``: a lock around any block of code that uses Spark."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from pyspark.sql import SparkSession

from lock_manager import (
    Hold,
    LockManager,
    LockSettings,
    ZookeeperLockManager,
)
from writer_jobs.commit.driver_guard import attach_unless_off
from writer_jobs.commit.lock_target import LockTarget, job_note
from writer_jobs.delta.checkpoints import write_due_checkpoints
from writer_jobs.delta.jvm_errors import is_conflict
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.table_log import DeltaTableLog

_ZOOKEEPER_SETTING = "spark.sluice.zookeeper"

_making = threading.Lock()
_managers: dict[LockSettings, LockManager] = {}


@contextmanager
def locked(
    spark: SparkSession,
    table: str,
    *,
    partitions: Collection[Mapping[str, object]] | None = None,
    manager: LockManager | None = None,
    timeout_seconds: float | None = None,
) -> Iterator[Hold]:
    """Lock a table for whatever the block does with Spark: SQL, MERGE, OPTIMIZE, ``saveAsTable``, in this thread.

    ::

        with locked(spark, "s3a://lake/flights"):
            spark.sql("DELETE FROM delta.`s3a://lake/flights` WHERE year < 2010")

    A commit passes only while the lock stands. If it does not, or nobody confirms it, the statement raises
    LockLostError or LockNotHeldError, and that commit is not made; a statement that makes several may have made others.

    Inside the block this thread gets the same hold again, by ``locked`` or from a :class:`LockedDeltaWriter`, whichever
    manager of the same ensemble they have.

    DROP makes version names free again, so that a late commit to the dropped table may land in the next one at its
    place: rather replace the table, or see docs/operate.md ("DROP and CREATE at one place").

    Args:
        spark: a session with the guarded log store, see :func:`attach`.
        table: location or name in the catalog; resolved once, before the lock is asked for. Need not exist yet.
        partitions: values of its first partition columns by name, such as ``[{"year": 2013, "month": 1}]``: only these
            are locked, and a commit that touches anything else is refused. The table must exist then.
        manager: gives the lock. By default one for this process, from ``spark.sluice.zookeeper`` or
            ``SLUICE_ZK_HOSTS`` and so on.
        timeout_seconds: total, 0 means: only if it is free now. By default the manager's.

    Raises:
        GuardMissingError, UnsupportedSessionError: see :func:`attach`.
        TableError: no Delta table, or none whose commits a lock could order.
        ResourceError: no such partition column, or a value that does not fit it.
        SettingsError: no ensemble was named.
        LockTimeoutError and so on: see :meth:`ZookeeperLockManager.acquire`.
        AdoptionMismatchError: the table is adopted by another ensemble, or under another name; the block was
            not entered.
        LockLostError: at the end of the block: it had been lost, so that not all of the block's reads are covered.

    """
    wanted = {table: partitions}
    with locked_all(spark, wanted, manager=manager, timeout_seconds=timeout_seconds) as hold:
        yield hold


@contextmanager
def locked_all(
    spark: SparkSession,
    tables: Mapping[str, Collection[Mapping[str, object]] | None],
    *,
    manager: LockManager | None = None,
    timeout_seconds: float | None = None,
) -> Iterator[Hold]:
    """Lock several tables, or partitions of them, at once; as :func:`locked`, all or nothing and without a deadlock.

    Args:
        spark: a session with the guarded log store.
        tables: location or name in the catalog, and partitions of it or None.
        manager: gives the lock, as for :func:`locked`.
        timeout_seconds: total over all of them.

    """
    # Before anybody waits for the lock, or behind it.
    attach_unless_off(spark)
    parts = [_part(spark, table, partitions) for table, partitions in tables.items()]
    giver = manager or _default_manager(spark)
    about = job_note(spark, giver)
    with ExitStack() as stack:
        hold = stack.enter_context(giver.acquire_all([part.scope for part in parts], timeout_seconds=timeout_seconds))
        for part in parts:
            stack.enter_context(part.guarded(spark, hold, about))
        try:
            yield hold
        except Exception as error:
            if is_conflict(error):
                # Somebody else committed: a writer that does not ask for the lock, or the next holder of one that is
                # lost. Raises if it is the latter.
                hold.check()
            raise
    write_due_checkpoints(spark, giver)


def _part(spark: SparkSession, table: str, partitions: Collection[Mapping[str, object]] | None) -> LockTarget:
    log = DeltaTableLog(spark, locate_table(spark, table, new=True))
    log.refuse_foreign_folder()
    return LockTarget.of(log, partitions)


def _default_manager(spark: SparkSession) -> LockManager:
    context = spark.sparkContext
    hosts = context.getConf().get(_ZOOKEEPER_SETTING)
    overrides = {"zk_hosts": hosts} if hosts else {}
    hint = f"start the session with --conf {_ZOOKEEPER_SETTING}=host:port,… or pass manager"
    settings = LockSettings.from_env(hosts_hint=hint, **overrides, app_id=context.applicationId)
    with _making:
        if settings not in _managers:
            _managers[settings] = ZookeeperLockManager(settings)
        return _managers[settings]
