"""``LockedDeltaWriter``: writes to a Delta table under its lock, and finds the commit of each write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Unpack

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import expr

from lock_manager import LockManager, canonical_table_uri
from writer_jobs.commit.driver_guard import attach_unless_off
from writer_jobs.commit.execution import CANCEL_AGAIN_SECONDS, Execution, WriterContext
from writer_jobs.commit.lock_target import LockTarget, PartitionFinder, Partitions, partitions_of_rows
from writer_jobs.commit.locked_operation import LockedOperation
from writer_jobs.commit.merge import Assignments, LockedMerge, MergePlan
from writer_jobs.commit.operation import (
    OVERWRITE_SCHEMA,
    Operation,
    delta_table,
    has_option,
    transaction_settings,
    write_rows,
)
from writer_jobs.commit.options import RewriteOptions, WriteOptions, check_options
from writer_jobs.commit.result import CommitResult
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
from writer_jobs.lineage.plan_sources import catalog_symlink

_BATCH_SIZE_SETTING = "spark.databricks.delta.optimize.batchSize"
_MIN_FILE_SIZE_SETTING = "spark.databricks.delta.optimize.minFileSize"
_MAX_FILE_SIZE_SETTING = "spark.databricks.delta.optimize.maxFileSize"
_REPARTITION_SETTING = "spark.databricks.delta.merge.repartitionBeforeWrite.enabled"


class LockedDeltaWriter:
    """Writes to one Delta table, each time under the table's lock, or the lock on the partitions that it touches.

    ::

        with ZookeeperLockManager("zk1:2181,zk2:2181,zk3:2181") as manager:
            writer = LockedDeltaWriter(spark, manager, "s3a://lake/flights")
            result = writer.append(df, txn=("nightly-2026-11-21", 1))
            writer.delete("year < 2010", lock="partitions")
            writer.merge(news, "t.day = s.day AND t.id = s.id", alias="t").whenMatchedUpdateAll().execute()

    A write that returns is in the table: the commit guard allowed its commit while the lock stood. By default, appends
    and rewrites hold the lock for their commit alone (docs/gate.md), other operations over the whole write. If a writer
    without the lock is faster, the write is repeated, with at most three attempts under the lock.

    :class:`~writer_jobs.WriteOptions` documents the keyword arguments that all operations share, and :meth:`append` the
    errors. With ``lock="partitions"`` an operation reads its rows once more to find the partitions that it touches.
    Rows of the table itself are read again under the lock. The operation locks those partitions, and literal predicates
    confine it to them, so that Delta sees no conflict with writers of other partitions. Locks on partitions need the
    commit guard in ``required`` mode.

    Args:
        spark: A classic session with Delta; :func:`writer_jobs.build_session` builds one.
        manager: Lock manager; the writer does not close it.
        table: Location (URI or path; the first append creates the table if there is nothing), or name in the catalog,
            which is resolved once, when the writer is created.

    Raises:
        UnsupportedSessionError: The session is of Spark Connect.
        GuardMissingError: The session has no guarded log store; see :func:`attach`. A subclass of
            UnsupportedSessionError.
        TableError: The location has files but no Delta table, the name is not in the catalog, or a catalog decides the
            table's commits.
        StorageError: The location cannot be read.

    """

    def __init__(self, spark: SparkSession, manager: LockManager, table: str) -> None:
        self._spark = classic_session(spark)
        attach_unless_off(spark)
        self._manager = manager
        self.log = DeltaTableLog(spark, locate_table(spark, table))
        self.log.refuse_foreign_folder()
        # Raises an error if the log cannot be read.
        self.log.head()
        #: Canonical URI, under which the table is locked.
        self.table = canonical_table_uri(self.log.location)
        self._symlink = catalog_symlink(spark, table)
        self._cancelled = threading.Event()
        self._state_changed = threading.Condition()
        self._executions: list[Execution] = []
        self._side_writers: dict[str, LockedDeltaWriter] = {}

    @property
    def manager(self) -> LockManager:
        """The lock manager."""
        return self._manager

    @property
    def location(self) -> str:
        """Qualified URI of the table, as Spark reads and writes it."""
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
        """Append rows under the lock, and make sure that they are in the table.

        Args:
            df: The rows. A plan that reads the table itself runs under the lock too, so it sees the newest version;
                with a lock on partitions, the newest rows of these partitions only.
            partition_by: Partition columns of a new table. For an existing table, the table's own or none.
            options: Options of Delta's writer, such as ``mergeSchema``. The commit keeps the caller's ``userMetadata``
                under ``user``.
            txn: ``(txnAppId, txnVersion)``. If the version is not above the last one of that application, nothing is
                written, and the result is ``already_committed``. Delta drops transactions older than
                ``delta.setTransactionRetentionDuration``, if it is set; a later repetition is written again.
            write_options: See :class:`~writer_jobs.WriteOptions`. ``lock_during`` is ``"commit"`` by default.

        Raises:
            LockTimeoutError, LockCancelledError, EnsembleUnavailableError, ClosedError: The lock was not acquired;
                nothing was written.
            LockLostError: The lock was lost before the write or during it. The write's Spark jobs were cancelled, and
                nothing was written.
            LockNotHeldError: The write touched partitions that are not locked; nothing was written.
            UnguardedError: ``lock`` requests partitions, and the commit guard is not in ``required`` mode.
            UnprovenCommitError: The write was committed, but the lock could not be confirmed afterwards. A subclass of
                LockLostError.
            WriteFailedError: Nothing was written; SchemaMismatchError if the rows do not fit the table.
            CommitUnknownError: It is not known whether the write was committed. A subclass of WriteFailedError.
            TableError: The table's log is damaged, or a catalog decides its commits; nothing was written.
            StorageError: The table's log cannot be read; nothing was written.
            ResourceError: ``lock`` has a partition column or a value that the table cannot have.
            ValueError: ``options`` has an option that must be passed as an argument, or an argument is not valid.
            TypeError: A keyword argument does not exist.

        An interrupt (Ctrl-C) cancels the Spark jobs and is raised after the write has ended in the JVM: the lock is
        never released while the write may still commit. If the commit was faster, the exception has a note.

        """

        def operation(_: LockTarget, state: TableState | None) -> Operation:
            rows = self._storable(df, state, partition_by)
            return write_rows(self._spark, rows, mode="append", partition_by=partition_by, options=options, txn=txn)

        return self._run(
            "append",
            operation,
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
        """Replace all rows of the table, the rows that match a predicate, or the partitions of the new rows.

        Args:
            df: The new rows.
            replace_where: SQL predicate of the rows to replace. All rows of ``df`` must match it, too.
            dynamic: Whether to replace the partitions of the new rows.
            partition_by: Partition columns of a new table.
            options: Options of Delta's writer, such as ``overwriteSchema``, which needs the lock on the table.
            txn: See :meth:`append`.
            write_options: See :class:`~writer_jobs.WriteOptions`. Overwriting the whole table needs ``lock="table"``.

        Raises:
            ValueError: Both ``replace_where`` and ``dynamic`` are given; or neither is given, and ``lock`` is not
                ``"table"``.
            SluiceError: See :meth:`append`.

        """
        if replace_where is not None and dynamic:
            raise ValueError("replace_where and dynamic exclude each other: leave one out")
        if replace_where is None and not dynamic and write_options.get("lock", "table") != "table":
            raise ValueError("overwriting the whole table needs lock='table': set it, or pass replace_where or dynamic")

        # With overwriteSchema, the table gets the partition columns and types of the write.
        overwrites_schema = has_option(options, OVERWRITE_SCHEMA)

        def operation(target: LockTarget, state: TableState | None) -> Operation:
            if replace_where is not None:
                refuse_predicate_of_nulls(self._spark, self.table, replace_where, state)
            return write_rows(
                self._spark,
                self._storable(df, None if overwrites_schema else state, partition_by),
                mode="overwrite",
                partition_by=partition_by,
                options=options,
                txn=txn,
                replace_where=replace_where and _and(target.predicate(), replace_where),
                dynamic=dynamic,
            )

        def find_partitions(state: TableState) -> Partitions | None:
            partitions = partitions_of_rows(df, state)
            if partitions is None or replace_where is None:
                return partitions
            replaced_partitions = self._partitions_of(replace_where, state)
            return None if replaced_partitions is None else [*partitions, *replaced_partitions]

        return self._run(
            "overwrite",
            operation,
            find_partitions,
            check_options("overwrite", write_options, lock_during="write"),
            reads_table=replace_where is not None,
        )

    def delete(self, condition: str | None = None, **write_options: Unpack[WriteOptions]) -> CommitResult:
        """Delete the rows that match a condition.

        Args:
            condition: SQL condition; all rows by default.
            write_options: See :class:`~writer_jobs.WriteOptions`. With a lock on partitions, rows of other partitions
                stay.

        Raises:
            GuardMissingError: The commit guard is not in ``required`` mode.
            SluiceError: See :meth:`append`.

        """

        def operation(where: str | None) -> Operation:
            return Operation(lambda location, _: delta_table(self._spark, location).delete(where), reads=(where,))

        options = check_options("delete", write_options, lock_during="write")
        return self._run_where("delete", condition, operation, options)

    def update(
        self, assignments: Assignments, condition: str | None = None, **write_options: Unpack[WriteOptions]
    ) -> CommitResult:
        """Change the rows that match a condition.

        Args:
            assignments: New values by column, as SQL or columns. If a row moves to a partition that is not locked, the
                write is refused: changing a partition column needs the lock on the table, or on both partitions.
            condition, write_options: See :meth:`delete`.

        Raises:
            GuardMissingError, SluiceError: See :meth:`delete`.

        """
        values = {name: expr(value) if isinstance(value, str) else value for name, value in assignments.items()}

        def operation(where: str | None) -> Operation:
            return Operation(
                lambda location, _: delta_table(self._spark, location).update(where, dict(values)),
                reads=(*values.values(), where),
            )

        options = check_options("update", write_options, lock_during="write")
        return self._run_where("update", condition, operation, options)

    def merge(self, source: DataFrame, condition: str | Column, *, alias: str = "target") -> LockedMerge:
        """Return a builder like Delta's own. Its ``execute`` merges a source into the table under the lock.

        ::

            (
                writer.merge(news.alias("s"), "t.day = s.day AND t.id = s.id", alias="t")
                .whenMatchedUpdateAll()
                .whenNotMatchedInsertAll()
                .execute(lock="partitions")
            )

        With ``lock="partitions"`` the condition must confine the merge to partitions, by equalities of the table's
        first partition columns with expressions on the source (``t.day = s.day``). The source is read once more for
        their values, and again under the lock if there is a clause ``whenNotMatchedBySource``; every read must return
        the same rows. With a list of partitions, rows of other partitions are neither matched nor changed, and the
        merge is refused if it would add rows there.

        Args:
            source: The rows to merge.
            condition: SQL condition or column on a row of the source and a row of the table.
            alias: Alias of the table in the condition and the clauses.

        """
        return LockedMerge(MergePlan(source, condition, alias), self._merge)

    def _merge(self, plan: MergePlan, txn: tuple[str, int] | None, options: RewriteOptions) -> CommitResult:
        def operation(target: LockTarget, state: TableState | None) -> Operation:
            self._refuse_clock_changes(state)
            plan.refuse_padded_partitions(target, state)
            settings = {**plan.settings, **(transaction_settings(*txn) if txn is not None else {})}
            if state is not None and any("." in name for name in state.partition_columns):
                # Delta repartitions by the names without quotes (MergeIntoCommandBase.writeFiles, v4.4.0).
                settings[_REPARTITION_SETTING] = "false"
            session = session_with(self._spark, settings) if settings else self._spark
            return Operation(lambda location, _: plan.run(session, location, target), txn=txn, reads=plan.reads)

        return self._run(
            "merge",
            operation,
            lambda state: plan.partitions(self._spark, self.location, state),
            options,
            reads_table=plan.changes_unmatched_rows,
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
            zorder_by: Columns to order the rows by, in Z-order.
            target_size: Size of a compacted file in bytes; files smaller than half of it are compacted. By default both
                sizes are those of Delta's settings, 1 GiB.
            rewrite_options: See :class:`~writer_jobs.RewriteOptions`. With a lock on partitions, files of other
                partitions stay unchanged. ``lock_during`` is ``"commit"`` by default.

        Raises:
            GuardMissingError: The commit guard is not in ``required`` mode.
            WriteConflictError: Another writer was faster, and ``again`` is false; nothing is changed.
            HeldTooLongError: The rewrite took more than ``held_at_most_seconds``; nothing is changed.
            ValueError: ``spark.databricks.delta.optimize.batchSize`` is set; Delta would make several commits.
            SluiceError: See :meth:`append`.

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
        return self._rewrite("optimize", optimize, where, options)

    def purge(
        self, where: str | None = None, *, target_size: int | None = None, **rewrite_options: Unpack[RewriteOptions]
    ) -> CommitResult:
        """Remove deleted rows and dropped columns from data files, by rewriting the files that have any.

        Args:
            where: SQL predicate on partition columns; the whole table by default.
            target_size: Largest size of a new file in bytes. By default the size of Delta's settings, 1 GiB.
            rewrite_options: See :meth:`optimize`.

        Raises:
            GuardMissingError, WriteConflictError, HeldTooLongError, ValueError, SluiceError: See :meth:`optimize`.

        """
        session = self._optimizing_session(target_size)

        def purge(location: str, predicate: str | None) -> None:
            clause = "" if predicate is None else f" WHERE {predicate}"
            session.sql(f"REORG TABLE delta.{quoted(location)}{clause} APPLY (PURGE)")

        options = check_options("purge", rewrite_options, lock_during="commit", allowed=RewriteOptions)
        return self._rewrite("purge", purge, where, options)

    def rewrite(
        self, keep: Callable[[DataFrame], DataFrame], **rewrite_options: Unpack[RewriteOptions]
    ) -> CommitResult:
        """Rewrite the table without rows that no reader needs.

        The commit does not count as a change of data (Delta's ``dataChange``). So rows that other writers append
        meanwhile are no conflict, and stay. If a writer removes one of the files meanwhile, that is a conflict.

        Args:
            keep: Function that gets all rows and returns those to keep, with the same columns. It may be called again.
            rewrite_options: See :meth:`optimize`. ``lock`` must be ``"table"``.

        Raises:
            ValueError: ``lock`` is not ``"table"``.
            GuardMissingError, WriteConflictError, HeldTooLongError, SluiceError: See :meth:`optimize`.

        """
        if rewrite_options.get("lock", "table") != "table":
            raise ValueError("rewrite reads and replaces all rows of the table: use lock='table'")

        def rewrite(location: str, _: str | None) -> None:
            # The read and the write are in one transaction, so Delta reads the version that the write replaces.
            rows = keep(self._spark.read.format("delta").load(location))
            options = {"dataChange": "false", "partitionOverwriteMode": "static"}
            rows.write.format("delta").mode("overwrite").options(**options).save(location)

        options = check_options("rewrite", rewrite_options, lock_during="commit", allowed=RewriteOptions)
        return self._rewrite("rewrite", rewrite, None, options)

    def _optimizing_session(self, target_size: int | None) -> SparkSession:
        if self._spark.conf.get(_BATCH_SIZE_SETTING, None) is not None:
            raise ValueError(f"with {_BATCH_SIZE_SETTING} one OPTIMIZE makes several commits: unset it")
        if target_size is None:
            return self._spark
        return session_with(
            self._spark, {_MIN_FILE_SIZE_SETTING: str(target_size // 2), _MAX_FILE_SIZE_SETTING: str(target_size)}
        )

    def _rewrite(
        self, name: str, rewrite: Callable[[str, str | None], None], where: str | None, options: RewriteOptions
    ) -> CommitResult:
        """Put rows into other files; ``rewrite`` gets the location and an SQL predicate on partition columns."""

        def operation(predicate: str | None) -> Operation:
            return Operation(lambda location, _: rewrite(location, predicate), keeps_rows=True)

        return self._run_where(name, where, operation, options)

    def _run_where(
        self, name: str, condition: str | None, operation_on: Callable[[str | None], Operation], options: RewriteOptions
    ) -> CommitResult:
        """Run an operation on the rows of the lock target that match a condition.

        ``operation_on`` returns the operation for the predicate of these rows.
        """

        def operation(target: LockTarget, state: TableState | None) -> Operation:
            self._refuse_clock_changes(state)
            return operation_on(_and(target.predicate(), condition))

        return self._run(
            name, operation, lambda state: self._partitions_of(condition, state), options, reads_table=True
        )

    def side_writer(self, suffix: str) -> LockedDeltaWriter:
        """Return the writer of the side table whose location is this table's location with a suffix.

        :meth:`give_up` and :meth:`cancel` of this writer also apply to the side table's writes.

        Args:
            suffix: Suffix of the side table's location.

        Raises:
            TableError, StorageError: See :class:`LockedDeltaWriter`.

        """
        with self._state_changed:
            if (writer := self._side_writers.get(suffix)) is not None:
                return writer
        writer = LockedDeltaWriter(self._spark, self._manager, self.location.rstrip("/") + suffix)
        with self._state_changed:
            writer = self._side_writers.setdefault(suffix, writer)
        if self._cancelled.is_set():
            writer.cancel()
        return writer

    def give_up(self) -> None:
        """Make writes that wait for the lock raise LockCancelledError; writes that hold the lock go on."""
        self._manager.cancel(self.table)
        for writer in self._all_side_writers():
            writer.give_up()

    def cancel(self) -> None:
        """Refuse further writes, end the writes of other threads, and return when they have ended.

        A write that waits for the lock raises LockCancelledError, as does any other request for this table's lock
        through the same manager. A write that holds the lock raises WriteFailedError, unless its commit was faster. Do
        not call this in a signal handler, but in a thread that the handler starts: the interrupted thread may hold a
        mutex that this method needs.
        """
        self._cancelled.set()
        for writer in self._all_side_writers():
            writer.cancel()
        while True:
            self._manager.cancel(self.table)
            with self._state_changed:
                for execution in self._executions:
                    execution.cancel_jobs()
                if self._state_changed.wait_for(lambda: not self._executions, CANCEL_AGAIN_SECONDS):
                    return

    def _all_side_writers(self) -> list[LockedDeltaWriter]:
        with self._state_changed:
            return list(self._side_writers.values())

    @contextmanager
    def _cancellable(self, execution: Execution) -> Iterator[None]:
        """Let :meth:`cancel` cancel a write. After the write, without its lock, write the checkpoints that are due."""
        with self._state_changed:
            self._executions.append(execution)
        try:
            yield
        finally:
            with self._state_changed:
                self._executions.remove(execution)
                self._state_changed.notify_all()
        try:
            write_due_checkpoints(self._spark, self._manager)
        except BaseException as interrupt:
            interrupt.add_note(
                f"the write to {self.table} has ended: look for {execution.write_id} in `sluice log --json`"
            )
            raise

    def _run(
        self,
        name: str,
        operation_for: Callable[[LockTarget, TableState | None], Operation],
        find_partitions: PartitionFinder,
        options: RewriteOptions,
        *,
        reads_table: bool = False,
    ) -> CommitResult:
        # Created for each write: the soak replaces the writer's log.
        context = WriterContext(
            spark=self._spark,
            manager=self._manager,
            log=self.log,
            table=self.table,
            is_cancelled=self._cancelled.is_set,
            cancellable=self._cancellable,
            symlink=self._symlink,
        )
        return LockedOperation(context, name, operation_for, find_partitions, options, reads_table).run()

    def _storable(self, df: DataFrame, state: TableState | None, partition_by: Sequence[str]) -> DataFrame:
        """Return the rows with a check: the write fails if Delta would store another partition value than a row has."""
        partitions = partition_types(state, partition_by, df.schema)
        # The rows may lack partition columns that Delta generates.
        table_partitions = {} if state is None else state.partition_types
        refuse_clock_changes(df.sparkSession, self.table, {**table_partitions, **partitions})
        return with_storable_values(df, partitions)

    def _refuse_clock_changes(self, state: TableState | None) -> None:
        """Raise SchemaMismatchError if clock changes could alter a partition value of rows that are copied."""
        if state is not None:
            refuse_clock_changes(self._spark, self.table, state.partition_types)

    def _partitions_of(self, condition: str | None, state: TableState) -> Partitions | None:
        rows = self._spark.read.format("delta").load(self.location)
        return partitions_of_rows(rows if condition is None else rows.where(condition), state)


def _and(predicate: str | None, condition: str | None) -> str | None:
    """Join an SQL predicate and a user's condition with AND; either may be None."""
    # The user's condition may end with a comment.
    return f"{predicate} AND ({condition}\n)" if predicate and condition else predicate or condition
