"""The executor of maintenance: it executes units of work on one table."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import Hold, LockCancelledError, LockManager, SluiceError
from lock_manager.coordinator import Inspector
from lock_manager.errors import EnsembleFormatError, EnsembleRefusedError, EnsembleUnavailableError
from lock_manager.table_records.commit_stamp import MAINTENANCE
from writer_jobs.commit.options import RewriteOptions
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.checkpoints import LAST_CHECKPOINT
from writer_jobs.delta.jvm_errors import JVM_ERRORS, SPARK_ERRORS, error_reason
from writer_jobs.delta.listings import list_log
from writer_jobs.delta.session import AUTO_COMPACT, session_with
from writer_jobs.errors import GuardMissingError, HeldTooLongError, TableError, WriteConflictError, WriteFailedError
from writer_jobs.maintenance.exclusive_run import belongs_to_this_process, exclusive_run, give_way
from writer_jobs.maintenance.health import FileTotals
from writer_jobs.maintenance.pins_and_streams import PinsAndStreams, log_retention_seconds
from writer_jobs.maintenance.plan import WorkUnit
from writer_jobs.maintenance.policy import Action, Policy
from writer_jobs.maintenance.result import UnitResult
from writer_jobs.maintenance.side_rows import SideTableRetention, refuse_unfinished_batches
from writer_jobs.maintenance.vacuum import vacuum
from writer_jobs.writer import LockedDeltaWriter

#: Largest number of tries for a partition that other writers change at the same time.
MAX_TRIES = 3
#: Longest time for the last try to hold the lock of its partition, in seconds.
HOLD_AT_MOST_SECONDS = 5.0
# The last try does not hold the lock from its beginning if the try before it took at least this many times the limit.
# The last try may be faster, because it runs alone.
_MAX_OVERRUN = 3
# Seconds to give way before each unit. The limit is needed because some writer may always be waiting.
_GIVE_WAY_SECONDS = 5.0
# Errors after which every other unit would fail, too.
_ENSEMBLE_ERRORS = (EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError)
_FATAL_ERRORS = (LockCancelledError, GuardMissingError, *_ENSEMBLE_ERRORS)


class UnitExecutor:
    """Executes units of work on one table; several threads may call :meth:`execute` at the same time.

    Args:
        table: Location or name in the catalog.
        lock_timeout_seconds: Seconds to wait for each lock; None: the manager's default.
        hold_at_most_seconds: Longest time for the last try on a partition to hold its lock, in seconds; 0: it holds
            the lock for its commit only. The same limit applies to a table whose writes hold the lock from their
            beginning.

    Raises:
        TableError, StorageError: There is no such table, or it cannot be read.

    """

    def __init__(
        self,
        spark: SparkSession,
        manager: LockManager,
        inspector: Inspector,
        table: str,
        *,
        lock_timeout_seconds: float | None = None,
        hold_at_most_seconds: float = HOLD_AT_MOST_SECONDS,
    ) -> None:
        self.spark = spark
        self._manager = manager
        self._inspector = inspector
        # With auto compaction each rewrite would hold the lock over all of its work, see docs/gate.md.
        self._writer = LockedDeltaWriter(session_with(spark, {AUTO_COMPACT: "false"}), manager, table)
        #: Canonical URI of the table, and its log.
        self.table, self.log = self._writer.table, self._writer.log
        self._timeout_seconds = lock_timeout_seconds
        self._hold_at_most_seconds = hold_at_most_seconds
        self._stopped = threading.Event()
        # Tag of this executor's Spark jobs, to cancel them.
        self._tag = f"sluice-maintenance-{uuid4()}"

    def exclusive_run(self) -> AbstractContextManager[Hold]:
        """Hold the maintenance lock of the table for a block; see :func:`.exclusive_run`."""
        return exclusive_run(self._manager, self.table, self._timeout_seconds)

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Start no more units and cancel the running ones. Call it again until they have ended."""
        self._stopped.set()
        # The JVM may be gone.
        with suppress(*JVM_ERRORS):
            self.spark.sparkContext.cancelJobsWithTag(self._tag)
        self._manager.cancel(self._checkpoint_lock)
        self._writer.cancel()

    def holds_lock(self, unit: WorkUnit) -> bool:
        """Return whether a unit holds its lock from the beginning: its last try does, if it is short enough."""
        return unit.tries == MAX_TRIES - 1 and unit.work_seconds < _MAX_OVERRUN * self._hold_at_most_seconds

    def execute(self, unit: WorkUnit, policy: Policy, deadline: float | None) -> UnitResult:
        """Execute a unit after giving way to waiting writers.

        An error that concerns this unit only is in the result (:attr:`.UnitResult.problem`).

        Args:
            deadline: Time after which the unit gives way no longer, by ``time.monotonic``; None: no deadline.

        Raises:
            SluiceError: Every other unit would fail, too.

        """
        start = time.monotonic()
        result = UnitResult(action=unit.action, partitions=unit.partitions)
        try:
            max_wait = _GIVE_WAY_SECONDS if deadline is None else min(_GIVE_WAY_SECONDS, max(0.0, deadline - start))
            gave_way = give_way(
                self._inspector, self.table, max_wait, stopped=self._stopped, is_ignored=belongs_to_this_process
            )
            result = replace(result, gave_way_seconds=gave_way)
            if self.is_stopped:
                return replace(result, problem="the job was stopped")
            self.spark.sparkContext.addJobTag(self._tag)
            result = self._execute(unit, policy, result)
        except (WriteConflictError, HeldTooLongError) as error:
            held_seconds = error.held_seconds if isinstance(error, HeldTooLongError) else 0.0
            result = replace(result, problem=str(error), waited_seconds=error.waited_seconds, held_seconds=held_seconds)
        except _FATAL_ERRORS:
            raise
        except SluiceError as error:
            result = replace(result, problem=str(error), failure=error)
        except (*SPARK_ERRORS, ValueError) as error:
            failure = WriteFailedError(table=self.table, reason=error_reason(error))
            result = replace(result, problem=str(failure), failure=failure)
        return replace(result, seconds=time.monotonic() - start)

    def _execute(self, unit: WorkUnit, policy: Policy, result: UnitResult) -> UnitResult:
        match unit.action:
            case Action.VACUUM:
                return self._vacuum(result)
            case Action.CHECKPOINT:
                return self._write_checkpoint(result)
            case Action.CLEAN_LOG:
                return self._clean_log(result)
            case Action.FORGET:
                return self._forget(unit, result)
            case _:
                return _with_commit(result, self._rewrite(unit, policy))

    def _rewrite(self, unit: WorkUnit, policy: Policy) -> CommitResult:
        columns = policy.zorder_by if unit.action is Action.ZORDER else ()
        note = {
            "action": unit.action.value,
            "columns": list(columns),
            "partitions": self._physical_values(unit.partitions),
        }
        is_purge = unit.action is Action.PURGE
        rewrite = self._writer.purge if is_purge else partial(self._writer.optimize, zorder_by=columns)
        options = self._rewrite_options(unit, note)
        options["lock"] = unit.partitions or "table"
        return rewrite(target_size=policy.target_file_size, **options)

    def _rewrite_options(self, unit: WorkUnit, note: Mapping[str, Any]) -> RewriteOptions:
        return RewriteOptions(
            again=False,
            lock_during="write" if self.holds_lock(unit) else "commit",
            # This limit also counts if a rule of the gate makes the write hold the lock from its beginning.
            held_at_most_seconds=self._hold_at_most_seconds,
            lock_timeout_seconds=self._timeout_seconds,
            metadata={MAINTENANCE: note},
        )

    def _physical_values(self, partitions: Collection[Mapping[str, str | None]]) -> list[dict[str, str | None]]:
        """Return the values of partitions by the physical names of their columns, which the log uses."""
        if not partitions:
            return []
        columns = self.log.snapshot().partition_schema().columns
        physical_names = {column.name: column.physical_name for column in columns}
        return [{physical_names[name]: value for name, value in values.items()} for values in partitions]

    def _vacuum(self, result: UnitResult) -> UnitResult:
        location, timeout_seconds = self.log.location, self._timeout_seconds
        vacuum_result = vacuum(self.spark, location, manager=self._manager, lock_timeout_seconds=timeout_seconds)
        return replace(
            result,
            removed=FileTotals(vacuum_result.files, vacuum_result.size),
            kept_for_pins=vacuum_result.kept_for_pins,
            kept_for_streams=vacuum_result.kept_for_streams,
        )

    def _forget(self, unit: WorkUnit, result: UnitResult) -> UnitResult:
        """Rewrite a side table without its expired rows."""
        snapshot = self.log.snapshot()
        # Not the plan's policy: a feed may have set a longer time since.
        policy = Policy.of(snapshot.properties, self.table)
        if snapshot.state is None or (retention := SideTableRetention.of(snapshot.state, policy)) is None:
            raise TableError(f"{self.table} is not a side table of a feed any more")
        location = self.log.location
        options = self._rewrite_options(unit, {"action": unit.action.value})
        options["before_write"] = lambda _: refuse_unfinished_batches(self.spark, location)
        commit = self._writer.rewrite(retention.drop_expired, **options)
        added = FileTotals(*(int(commit.metrics.get(name, 0)) for name in ("numFiles", "numOutputBytes")))
        return replace(_with_commit(result, commit), added=added)

    @property
    def _checkpoint_lock(self) -> str:
        """Name of the lock under which checkpoints are written and the log is cleaned up."""
        return f"{self.table}/{LAST_CHECKPOINT}"

    def _write_checkpoint(self, result: UnitResult) -> UnitResult:
        with self._manager.acquire(self._checkpoint_lock, timeout_seconds=self._timeout_seconds) as hold:
            version = self.log.make_newest_checkpoint()
        return replace(_with_hold(result, hold), version=version)

    def _clean_log(self, result: UnitResult) -> UnitResult:
        total_before = self._log_total()
        with self._manager.acquire(self._checkpoint_lock, timeout_seconds=self._timeout_seconds) as hold:
            # Read as late as possible, because a pin or the name of a stream may be new.
            snapshot = self.log.snapshot()
            streams = Policy.of(snapshot.properties, self.table).streams
            retention_seconds = log_retention_seconds(
                self.spark, snapshot, PinsAndStreams.of(self.spark, snapshot, streams)
            )
            if math.isinf(retention_seconds):
                raise TableError(
                    f"a stream of {self.table} has completed too few batches and may need any version of the log; "
                    "clean up the log after the stream's next batch"
                )
            self.log.clean_up(retention_seconds)
        total_after = self._log_total()
        # Writers add versions and checkpoints meanwhile, so a difference may be negative.
        removed = FileTotals(
            max(0, total_before.files - total_after.files), max(0, total_before.size - total_after.size)
        )
        return replace(_with_hold(result, hold), removed=removed)

    def _log_total(self) -> FileTotals:
        files = list_log(self.spark, self.log.location)
        number, size = files.agg(F.count("*"), F.coalesce(F.sum("length"), F.lit(0))).collect()[0]
        return FileTotals(number, size)


def _with_hold(result: UnitResult, hold: Hold) -> UnitResult:
    """Return a result with the times of a released hold."""
    held_seconds = (hold.released_at or time.time()) - hold.acquired_at
    return replace(result, waited_seconds=hold.waited_seconds, held_seconds=held_seconds)


def _with_commit(result: UnitResult, commit: CommitResult) -> UnitResult:
    """Return a result with the version, times and metrics of its commit."""
    metrics = commit.metrics

    def total(verb: str) -> FileTotals:
        return FileTotals(int(metrics.get(f"num{verb}Files", 0)), int(metrics.get(f"num{verb}Bytes", 0)))

    return replace(
        result,
        version=commit.version,
        waited_seconds=commit.waited_seconds,
        held_seconds=commit.held_seconds,
        removed=total("Removed"),
        added=total("Added"),
    )
