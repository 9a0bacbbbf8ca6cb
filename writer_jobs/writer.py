"""``LockedDeltaWriter``: writes to a Delta table under its lock, and returns what became of each write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Unpack

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import expr

from lock_manager import LockManager, canonical_table_uri
from writer_jobs.commit.background_write import CANCEL_AGAIN_SECONDS, BackgroundWrite
from writer_jobs.commit.driver_guard import attach_unless_off
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.commit.lock_target import Finder, LockTarget, Partitions, partitions_of_rows
from writer_jobs.commit.locked_operation import LockedOperation, WriterParts
from writer_jobs.commit.merge import Assignments, LockedMerge, MergePlan
from writer_jobs.commit.operation import (
    OVERWRITE_SCHEMA,
    Work,
    delta_table,
    has_option,
    transaction_settings,
    write_rows,
)
from writer_jobs.commit.options import RewriteOptions, WriteOptions, check_options
from writer_jobs.delta.checkpoints import write_due_checkpoints
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.partition_values import (
    partition_types,
    refuse_clock_changes,
    refuse_predicate_of_nulls,
    with_storable_values,
)
from writer_jobs.delta.session import classic_session, session_with
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import DeltaTableLog

_BATCHES = "spark.databricks.delta.optimize.batchSize"
_SMALL = "spark.databricks.delta.optimize.minFileSize"
_TARGET = "spark.databricks.delta.optimize.maxFileSize"
_REPARTITION = "spark.databricks.delta.merge.repartitionBeforeWrite.enabled"


class LockedDeltaWriter:
    """Writes to one Delta table, each time under the table's lock, or the lock on the partitions that it touches.

    ::

        with ZookeeperLockManager("zk1:2181,zk2:2181,zk3:2181") as manager:
            writer = LockedDeltaWriter(spark, manager, "s3a://lake/flights")
            result = writer.append(df, txn=("nightly-2026-11-21", 1))
            writer.delete("year < 2010", lock="partitions")
            writer.merge(news, "t.day = s.day AND t.id = s.id", alias="t").whenMatchedUpdateAll().execute()

    A write that returns is in the table: the commit guard let it pass while the lock stood. Appends and compactions
    hold the lock for their commit alone (docs/gate.md), other operations over the whole write. A writer that does not
    ask for the lock may be faster; then the write is done again, up to three times.

    :meth:`append` describes the arguments and errors that all operations share. With ``lock="partitions"`` an operation
    reads its rows once more to find out which partitions it touches; rows of the table itself it reads again under the
    lock. It locks those partitions, and literal predicates confine it to them, so that Delta sees no conflict with
    writers of other partitions. Locks on partitions need the commit guard in ``required`` mode.

    Args:
        spark: a classic session with Delta; :func:`writer_jobs.build_session` makes one.
        manager: gives the lock; it is not closed here.
        table: location (URI or path; created by the first append if there is nothing) or name in the catalog, which is
            resolved now and never again.

    Raises:
        UnsupportedSessionError: a Spark Connect session.
        GuardMissingError: an UnsupportedSessionError: a session without the guarded log store; see :func:`attach`.
        TableError: no Delta table, or none whose commits a lock could order.
        StorageError: the location cannot be read.

    """

    def __init__(self, spark: SparkSession, manager: LockManager, table: str) -> None:
        self._spark = classic_session(spark)
        attach_unless_off(spark)
        self._manager = manager
        self.log = DeltaTableLog(spark, locate_table(spark, table))
        self.log.refuse_foreign_folder()
        self.log.head()
        #: Canonical URI, under which the table is locked.
        self.table = canonical_table_uri(self.log.location)
        self._cancelled = threading.Event()
        self._changed = threading.Condition()
        self._writes: list[BackgroundWrite] = []
        self._beside: dict[str, LockedDeltaWriter] = {}

    @property
    def manager(self) -> LockManager:
        """Who gives the lock."""
        return self._manager

    @property
    def location(self) -> str:
        """Qualified URI with which Spark reads and writes the table."""
        return self.log.location

    def append(
        self,
        df: DataFrame,
        *,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        txn: tuple[str, int] | None = None,
        **write_options: Unpack[WriteOptions],
    ) -> CommitResult:
        """Append the rows under the lock, and make sure that they are in the table.

        Args:
            df: the rows. A plan that reads the table itself is read under the lock too, so it sees the newest version;
                with a lock on partitions, of those only.
            partition_by: partition columns of a new table; for an existing one, its own or none.
            options: of Delta's writer, such as ``mergeSchema``. The caller's ``userMetadata`` is kept, under ``user``.
            txn: ``(txnAppId, txnVersion)``: a write whose version is not above the last one of that application is
                not done again, and reported as ``already_committed``.
            write_options: See :class:`~writer_jobs.WriteOptions`. ``lock_during`` is ``"commit"`` by default.

        Raises:
            LockTimeoutError, LockCancelledError, EnsembleUnavailableError, ClosedError: no lock, nothing written.
            LockLostError: lost before the write, or during it, which ends its Spark jobs; nothing written.
            LockNotHeldError: the write left the partitions that are locked; nothing written.
            UnguardedError: partitions, in a session whose commits are not guarded.
            UnprovenCommitError: a LockLostError: committed, but the lock could not be confirmed afterwards.
            WriteFailedError: nothing written; SchemaMismatchError where the rows did not fit the table.
            CommitUnknownError: a WriteFailedError: it could not be found out whether it was committed.
            TableError: the table's log is damaged, or not what decides its commits; nothing written.
            StorageError: the table's log cannot be read; nothing written.
            ResourceError: ``lock`` names no partition of the table.
            ValueError: ``options`` has what is an argument of its own.

        An interrupt (Ctrl-C) cancels the Spark jobs and is raised after the write has ended in the JVM: the lock is
        never given back while it may still commit. If it was faster, a note on the exception says so.

        """

        def work(_: LockTarget, state: TableState | None) -> Work:
            rows = self._storable(df, state, partition_by)
            return write_rows(self._spark, rows, mode="append", partition_by=partition_by, options=options, txn=txn)

        return self._run(
            work,
            lambda state: partitions_of_rows(df, state),
            check_options("append", write_options, lock_during="commit"),
        )

    def overwrite(
        self,
        df: DataFrame,
        *,
        replace_where: str | None = None,
        dynamic: bool = False,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        txn: tuple[str, int] | None = None,
        **write_options: Unpack[WriteOptions],
    ) -> CommitResult:
        """Put the rows in the place of all others, of those that a predicate names, or of those of their partitions.

        Args:
            df: the rows.
            replace_where: SQL predicate: rows that it matches are replaced, and ``df`` may have no others.
            dynamic: the partitions that the rows are in are replaced.
            partition_by: partition columns of a new table.
            options: of Delta's writer, such as ``overwriteSchema``, which needs the lock on the table.
            txn: as for :meth:`append`.
            write_options: See :class:`~writer_jobs.WriteOptions`. The whole table is overwritten with ``lock="table"``
                only.

        Raises:
            ValueError: both ``replace_where`` and ``dynamic``, or neither and another lock than the table's.
            SluiceError: see :meth:`append`.

        """
        if replace_where is not None and dynamic:
            raise ValueError("replace_where and dynamic: one says already what is replaced")
        if replace_where is None and not dynamic and write_options.get("lock", "table") != "table":
            raise ValueError("all of the table is overwritten with lock='table' only")

        # Such a table gets the partition columns and types of the write.
        is_laid_out_anew = has_option(options, OVERWRITE_SCHEMA)

        def work(part: LockTarget, state: TableState | None) -> Work:
            if replace_where is not None:
                refuse_predicate_of_nulls(self._spark, self.table, replace_where, state)
            return write_rows(
                self._spark,
                self._storable(df, None if is_laid_out_anew else state, partition_by),
                mode="overwrite",
                partition_by=partition_by,
                options=options,
                txn=txn,
                replace_where=replace_where and _both(part.predicate(), replace_where),
                dynamic=dynamic,
            )

        def find(state: TableState) -> Partitions | None:
            written = partitions_of_rows(df, state)
            if written is None or replace_where is None:
                return written
            return [*written, *(self._partitions_of(replace_where, state) or ())]

        return self._run(
            work,
            find,
            check_options("overwrite", write_options, lock_during="write"),
            of_table=replace_where is not None,
        )

    def delete(
        self,
        condition: str | None = None,
        **write_options: Unpack[WriteOptions],
    ) -> CommitResult:
        """Delete the rows that a condition matches.

        Args:
            condition: SQL; all rows by default.
            write_options: See :class:`~writer_jobs.WriteOptions`. With a lock on partitions, rows of other partitions
                stay.

        Raises:
            GuardMissingError: the commits of this session are not guarded.
            SluiceError: see :meth:`append`.

        """

        def work(part: LockTarget, state: TableState | None) -> Work:
            self._refuse_clock_changes(state)
            where = _both(part.predicate(), condition)
            reads = (where,) if where else ()
            return Work(lambda location, _: delta_table(self._spark, location).delete(where), reads=reads)

        return self._run(
            work,
            lambda state: self._partitions_of(condition, state),
            check_options("delete", write_options, lock_during="write"),
            of_table=True,
        )

    def update(
        self,
        assignments: Assignments,
        condition: str | None = None,
        **write_options: Unpack[WriteOptions],
    ) -> CommitResult:
        """Change the rows that a condition matches.

        Args:
            assignments: new values by column, as SQL or columns. Rows that come into a partition that is not locked
                have the write refused: changing a partition column needs the lock on the table, or on both partitions.
            condition: SQL; all rows by default.
            write_options: See :class:`~writer_jobs.WriteOptions`. With a lock on partitions, rows of other partitions
                stay.

        Raises:
            GuardMissingError: the commits of this session are not guarded.
            SluiceError: see :meth:`append`.

        """
        values = {name: expr(value) if isinstance(value, str) else value for name, value in assignments.items()}

        def work(part: LockTarget, state: TableState | None) -> Work:
            self._refuse_clock_changes(state)
            where = _both(part.predicate(), condition)
            return Work(
                lambda location, _: delta_table(self._spark, location).update(where, dict(values)),
                reads=(*values.values(), *((where,) if where else ())),
            )

        return self._run(
            work,
            lambda state: self._partitions_of(condition, state),
            check_options("update", write_options, lock_during="write"),
            of_table=True,
        )

    def merge(self, source: DataFrame, condition: str | Column, *, alias: str = "target") -> LockedMerge:
        """Merge a source into the table: a builder in Delta's own style, whose ``execute`` takes the lock.

        ::

            (
                writer.merge(news.alias("s"), "t.day = s.day AND t.id = s.id", alias="t")
                .whenMatchedUpdateAll()
                .whenNotMatchedInsertAll()
                .execute(lock="partitions")
            )

        With ``lock="partitions"`` the condition has to say which partitions the source can match, by equalities of the
        table's first partition columns with something of the source (``t.day = s.day``); the source is read one more
        time for their values, and has to be the same each time. With a list of partitions, rows of others are neither
        matched nor changed.

        Args:
            source: the rows to merge.
            condition: SQL or a column: which row of the source matches which row of the table.
            alias: of the table in the condition and the clauses.

        """
        return LockedMerge(MergePlan(source, condition, alias), self._merge)

    def _merge(
        self,
        plan: MergePlan,
        txn: tuple[str, int] | None,
        options: RewriteOptions,
    ) -> CommitResult:
        if options.get("lock", "table") != "table":
            plan.refuse_clauses_on_all_rows()

        def work(part: LockTarget, state: TableState | None) -> Work:
            self._refuse_clock_changes(state)
            settings = {**plan.settings, **(transaction_settings(*txn) if txn is not None else {})}
            if state is not None and any("." in name for name in state.partition_columns):
                # To repartition, Delta uses the names without quotes (MergeIntoCommandBase.writeFiles, v4.4.0).
                settings[_REPARTITION] = "false"
            session = session_with(self._spark, settings) if settings else self._spark
            return Work(
                lambda location, _: plan.run(session, location, part.predicate(plan.alias)), txn=txn, reads=plan.reads
            )

        return self._run(
            work,
            lambda state: plan.partitions(self._spark, self.location, state),
            options,
        )

    def optimize(
        self,
        where: str | None = None,
        *,
        zorder_by: Sequence[str] = (),
        target_size: int | None = None,
        **rewrite_options: Unpack[RewriteOptions],
    ) -> CommitResult:
        """Compact small files.

        Args:
            where: SQL predicate on partition columns; the whole table by default.
            zorder_by: columns to order the rows by, in Z-order.
            target_size: bytes that a file is to have: those below half of it are put together. By default as Delta's
                settings have it, 1 GiB.
            rewrite_options: See :class:`~writer_jobs.RewriteOptions`. With a lock on partitions, files of other
                partitions stay. ``lock_during`` is ``"commit"`` by default.

        Raises:
            GuardMissingError: the commits of this session are not guarded.
            WriteConflictError: another writer was faster, and ``again`` is false; nothing is changed.
            HeldTooLongError: it was not done in ``held_at_most_seconds``; nothing is changed.
            ValueError: the session has Delta commit in several steps (``spark.databricks.delta.optimize.batchSize``).
            SluiceError: see :meth:`append`.

        """
        session = self._optimizing_session(target_size)

        def optimize(location: str, predicate: str | None) -> None:
            builder = delta_table(session, location).optimize()
            builder = builder if predicate is None else builder.where(predicate)
            if zorder_by:
                builder.executeZOrderBy(*zorder_by)
            else:
                builder.executeCompaction()

        options = check_options("optimize", rewrite_options, lock_during="commit", allowed=RewriteOptions)
        return self._rewrite(optimize, where, options)

    def purge(
        self,
        where: str | None = None,
        *,
        target_size: int | None = None,
        **rewrite_options: Unpack[RewriteOptions],
    ) -> CommitResult:
        """Rewrite the files that have deleted rows, or dropped columns, without them.

        Args:
            where: SQL predicate on partition columns; the whole table by default.
            target_size: bytes that a file is to have at most. By default as Delta's settings have it, 1 GiB.
            rewrite_options: As for :meth:`optimize`.

        Raises:
            GuardMissingError, WriteConflictError, HeldTooLongError, ValueError, SluiceError: see :meth:`optimize`.

        """
        session = self._optimizing_session(target_size)

        def purge(location: str, predicate: str | None) -> None:
            chosen = "" if predicate is None else f" WHERE {predicate}"
            session.sql(f"REORG TABLE delta.{quoted(location)}{chosen} APPLY (PURGE)")

        options = check_options("purge", rewrite_options, lock_during="commit", allowed=RewriteOptions)
        return self._rewrite(purge, where, options)

    def rewrite(
        self,
        keep: Callable[[DataFrame], DataFrame],
        **rewrite_options: Unpack[RewriteOptions],
    ) -> CommitResult:
        """Rewrite all rows without those that no reader needs.

        The commit does not count as a change of data (Delta's ``dataChange``). So rows that others append meanwhile are
        no conflict, and stay. A writer that has removed one of the files meanwhile is one.

        Args:
            keep: Returns the rows to keep, given all rows, with the same columns. May be called again.
            rewrite_options: As for :meth:`optimize`, but the whole table is rewritten with ``lock="table"`` only.

        Raises:
            ValueError: ``lock`` is not ``"table"``.
            GuardMissingError, WriteConflictError, HeldTooLongError, SluiceError: see :meth:`optimize`.

        """
        if rewrite_options.get("lock", "table") != "table":
            raise ValueError("all rows of the table are rewritten with lock='table' only")

        def rewrite(location: str, _: str | None) -> None:
            # Delta reads the version that the write is based on: both are in one transaction.
            rows = keep(self._spark.read.format("delta").load(location))
            options = {"dataChange": "false", "partitionOverwriteMode": "static"}
            rows.write.format("delta").mode("overwrite").options(**options).save(location)

        options = check_options("rewrite", rewrite_options, lock_during="commit", allowed=RewriteOptions)
        return self._rewrite(rewrite, None, options)

    def _optimizing_session(self, target_size: int | None) -> SparkSession:
        if self._spark.conf.get(_BATCHES, None) is not None:
            raise ValueError(f"with {_BATCHES} one OPTIMIZE makes several commits: unset it")
        if target_size is None:
            return self._spark
        return session_with(self._spark, {_SMALL: str(target_size // 2), _TARGET: str(target_size)})

    def _rewrite(
        self, rewrite: Callable[[str, str | None], None], where: str | None, options: RewriteOptions
    ) -> CommitResult:
        """Put the same rows into other files.

        Args:
            rewrite: does it, given the table's location and a predicate on partition columns.
            where: of the caller.
            options: likewise.

        """

        def work(part: LockTarget, state: TableState | None) -> Work:
            self._refuse_clock_changes(state)
            return Work(lambda location, _: rewrite(location, _both(part.predicate(), where)), keeps_rows=True)

        return self._run(work, lambda state: self._partitions_of(where, state), options, of_table=True)

    def beside(self, suffix: str) -> LockedDeltaWriter:
        """Return the writer of a table beside this one; :meth:`give_up` and :meth:`cancel` are of its writes, too.

        Args:
            suffix: of its location.

        Raises:
            TableError, StorageError: as for this one.

        """
        with self._changed:
            if (known := self._beside.get(suffix)) is not None:
                return known
        made = LockedDeltaWriter(self._spark, self._manager, self.location.rstrip("/") + suffix)
        with self._changed:
            made = self._beside.setdefault(suffix, made)
        if self._cancelled.is_set():
            made.cancel()
        return made

    def give_up(self) -> None:
        """Have what waits for the lock raise LockCancelledError; what has it goes on."""
        self._manager.cancel(self.table)
        for other in self._others():
            other.give_up()

    def cancel(self) -> None:
        """Write no more, and end what is being written in other threads; return when that has ended.

        One that waits raises LockCancelledError (as does whatever else waits for this table through the same manager),
        one that writes WriteFailedError, unless its commit was faster. Not to be called in a signal handler, but in a
        thread that the handler starts: the interrupted thread may hold what is needed here.
        """
        self._cancelled.set()
        for other in self._others():
            other.cancel()
        while True:
            self._manager.cancel(self.table)
            with self._changed:
                for write in self._writes:
                    write.cancel_jobs()
                if not self._changed.wait_for(lambda: not self._writes, CANCEL_AGAIN_SECONDS):
                    continue
            return

    def _others(self) -> list[LockedDeltaWriter]:
        with self._changed:
            return list(self._beside.values())

    @contextmanager
    def _running(self, write: BackgroundWrite) -> Iterator[None]:
        """Have :meth:`cancel` know of a write; behind it, without its lock, write the checkpoint that it made due."""
        with self._changed:
            self._writes.append(write)
        try:
            yield
        finally:
            with self._changed:
                self._writes.remove(write)
                self._changed.notify_all()
        try:
            write_due_checkpoints(self._spark, self._manager)
        except BaseException as interrupt:
            interrupt.add_note(f"the write to {self.table} is done: look for {write.write_id}")
            raise

    def _run(
        self,
        work_on: Callable[[LockTarget, TableState | None], Work],
        find: Finder,
        options: RewriteOptions,
        *,
        of_table: bool = False,
    ) -> CommitResult:
        # A test may have put another log in the place of the writer's own.
        parts = WriterParts(
            spark=self._spark,
            manager=self._manager,
            log=self.log,
            table=self.table,
            is_cancelled=self._cancelled.is_set,
            running=self._running,
        )
        return LockedOperation(parts, work_on, find, options, of_table).run()

    def _storable(self, df: DataFrame, state: TableState | None, partition_by: Sequence[str]) -> DataFrame:
        """Return rows whose partition values Delta stores as they are; others fail the write."""
        partitions = partition_types(state, partition_by, df.schema)
        # Delta generates the columns that the rows lack.
        stored = {} if state is None else state.partition_types
        refuse_clock_changes(df.sparkSession, self.table, {**stored, **partitions})
        return with_storable_values(df, partitions)

    def _refuse_clock_changes(self, state: TableState | None) -> None:
        """Make sure that rows of the table can be copied into other files."""
        if state is not None:
            refuse_clock_changes(self._spark, self.table, state.partition_types)

    def _partitions_of(self, condition: str | None, state: TableState) -> Partitions | None:
        rows = self._spark.read.format("delta").load(self.location)
        return partitions_of_rows(rows if condition is None else rows.where(condition), state)


def _both(one: str | None, other: str | None) -> str | None:
    """Join two SQL predicates, of which any may be missing."""
    # The second one is a user's, and may end with a comment.
    return f"{one} AND ({other}\n)" if one and other else one or other
