"""Looks after a table: does what its findings say, one partition at a time, and gives way to writers in between."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lock_manager import Hold, LockCancelledError, LockManager, ResourceError, SluiceError
from lock_manager.commit_stamp import MAINTENANCE
from lock_manager.coordinator import Inspector
from lock_manager.errors import EnsembleFormatError, EnsembleRefusedError, EnsembleUnavailableError
from writer_jobs.commit.background_write import CANCEL_AGAIN_SECONDS
from writer_jobs.commit.driver_guard import AUTO_COMPACT
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.commit.lock_target import Lock
from writer_jobs.delta.checkpoints import LAST_CHECKPOINT
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.listings import listed_log
from writer_jobs.delta.session import session_with
from writer_jobs.errors import (
    GuardMissingError,
    HeldTooLongError,
    MaintenanceError,
    StorageError,
    TableError,
    WriteConflictError,
    WriteFailedError,
)
from writer_jobs.maintenance.findings import find
from writer_jobs.maintenance.folder import Keepers, log_retention_seconds
from writer_jobs.maintenance.health import FileTotals
from writer_jobs.maintenance.measure import Measured, measure, ordered_by
from writer_jobs.maintenance.plan import PARALLEL, PARTITIONS_PER_COMMIT, Unit, plan
from writer_jobs.maintenance.policy import Action, Policy
from writer_jobs.maintenance.result import CareReport, Done
from writer_jobs.maintenance.turn import give_way, is_of_this_process, turn_of
from writer_jobs.maintenance.vacuum import vacuum
from writer_jobs.writer import LockedDeltaWriter

log = logging.getLogger(__name__)

#: How often a partition is tried that other writers change at the same time.
TRIES = 3
#: In its last try a partition is rewritten with its lock held, but not for longer, in seconds.
HOLD_AT_MOST_SECONDS = 5.0
# Unless the try before says that this cannot do: it worked for so many times as long. It ran beside others.
_HOPELESS = 3
# Between two units of work others may go first so long: somebody may always wait.
_WAY_SECONDS = 5.0
# Whatever is tried next would fail as well.
_ENDS_IT = (LockCancelledError, EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError, GuardMissingError)


class Care:
    """Looks after one table.

    Args:
        spark: a session with the guarded log store.
        manager: gives the locks.
        inspector: looks at who waits for them.
        table: location or name in the catalog.
        lock_timeout_seconds: to wait for each lock; None: the manager's.
        deferred: context in which a write is not interrupted, given what cancels it; see
            :meth:`writer_jobs.job.stopping.StopSignals.deferred`.
        say: told of everything that is done.
        parallel: how many partitions are worked on at the same time.
        partitions_per_commit: how many small partitions one commit rewrites at most; see :func:`.plan.plan`.
        hold_at_most_seconds: a partition that has lost each of its races is rewritten with its lock held, for so long
            at most; 0: never.

    Raises:
        TableError, StorageError: no such table, or it cannot be read.

    """

    def __init__(
        self,
        spark: SparkSession,
        manager: LockManager,
        inspector: Inspector,
        table: str,
        *,
        lock_timeout_seconds: float | None = None,
        deferred: Callable[[Callable[[], None]], AbstractContextManager[None]] = lambda _: nullcontext(),
        say: Callable[[Done], None] = lambda _: None,
        parallel: int = PARALLEL,
        partitions_per_commit: int = PARTITIONS_PER_COMMIT,
        hold_at_most_seconds: float = HOLD_AT_MOST_SECONDS,
    ) -> None:
        self._spark = spark
        self._manager = manager
        self._inspector = inspector
        # With it each rewrite would hold the lock over all of its work, see docs/gate.md.
        apart = session_with(spark, {AUTO_COMPACT: "false"})
        self._writer = LockedDeltaWriter(apart, manager, table)
        #: What is known of the table, and was done to it, so far; None: it could not be looked at.
        self.report: CareReport | None = None
        self._timeout = lock_timeout_seconds
        self._deferred = deferred
        self._say = say
        self._parallel = parallel
        self._partitions_per_commit = partitions_per_commit
        self._hold_at_most = hold_at_most_seconds
        self._stopped, self._ended = threading.Event(), threading.Event()
        # Of its Spark jobs: when it is to stop, they end.
        self._tag = f"sluice-maintenance-{uuid4()}"

    def run(
        self,
        actions: Collection[Action] | None = None,
        *,
        budget_seconds: float | None = None,
        zorder_by: tuple[str, ...] = (),
        measured: Callable[[CareReport], None] = lambda _: None,
        found: Measured | None = None,
    ) -> CareReport:
        """Do it, and measure before and after.

        Killed at any point it leaves a correct table: each unit of work is one commit, or removes what nobody needs.
        What fails is noted (:attr:`.Done.problem`), and the rest is done.

        Args:
            actions: what to do, wherever it changes anything; empty: nothing but measure; None: what the findings say.
            budget_seconds: no more is begun when they are over; what runs is brought to its end.
            zorder_by: columns, instead of those of the table's policy.
            measured: told of the table as it was found, before anything is done.
            found: the table as it was measured before. It is measured again if its version is another one by now.

        Raises:
            LockTimeoutError: another maintainer is at it.
            MaintenanceError: the store failed.
            SluiceError: the table cannot be measured, or no lock at all be had; commits are not guarded; or the turn
                was lost to another maintainer.

        """
        deadline = None if budget_seconds is None else time.monotonic() + budget_seconds
        if actions is not None and not actions:
            found = found or self._measured()
            report = self._reported(CareReport.found(found.health, found.policy))
            measured(report)
            return report
        with turn_of(self._manager, self._writer.table, self._timeout) as turn:
            if found is None or not self._is_of_now(found):
                found = self._measured()
            if zorder_by:
                found = ordered_by(found, zorder_by)
            report = self._reported(CareReport.found(found.health, found.policy))
            measured(report)
            planned = plan(found.health, found.policy, actions, partitions_per_commit=self._partitions_per_commit)
            report = self._work_off(self._lockable(planned), found, deadline, turn, report)
        if not report.done:
            return report
        after = self._measured()
        findings_after = tuple(find(after.health, found.policy))
        return self._reported(replace(report, after=after.health, findings_after=findings_after))

    def _measured(self) -> Measured:
        try:
            return measure(self._spark, self._writer.location)
        except StorageError as error:
            raise MaintenanceError(table=self._writer.table, reason=str(error)) from error

    def _is_of_now(self, found: Measured) -> bool:
        snapshot = self._writer.log.snapshot()
        return (found.health.table_id, found.health.version) == (snapshot.table_id, snapshot.version)

    def _reported(self, report: CareReport) -> CareReport:
        self.report = report
        return report

    def _work_off(
        self, waiting: list[Unit], found: Measured, deadline: float | None, turn: Hold, report: CareReport
    ) -> CareReport:
        """Do what waits, in that order, partitions beside each other, and note it in the report."""
        running: dict[Future[Done], Unit] = {}
        ends_it: BaseException | None = None
        self._ended.clear()
        # The pool is within: its end is waited for before a signal is raised.
        with self._deferred(self._stop), ExitStack() as stack:
            stack.callback(self._ended.set)
            pool = stack.enter_context(ThreadPoolExecutor(self._parallel, "sluice-maintenance"))
            while True:
                while ends_it is None and self._may_begin(waiting, running.values(), deadline):
                    try:
                        turn.check()
                    except SluiceError as error:
                        ends_it = error
                        break
                    unit = waiting.pop(0)
                    running[pool.submit(self._do, unit, found, deadline)] = unit
                report = self._reported(replace(report, left=len(waiting) + len(running)))
                if not running:
                    if ends_it is not None:
                        raise ends_it
                    return report
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    unit = running.pop(ended)
                    try:
                        made = ended.result()
                    except SluiceError as error:
                        # What the others commit meanwhile is noted before it is raised.
                        waiting.insert(0, unit)
                        ends_it = ends_it or error
                        continue
                    if made.problem is not None and made.failure is None and unit.tries + 1 < TRIES:
                        # Behind the others: whoever changes it now may be done by then.
                        waiting += unit.again(made.work_seconds)
                        continue
                    report = self._reported(replace(report, done=(*report.done, made)))
                    self._say(made)

    def _may_begin(self, waiting: list[Unit], running: Collection[Unit], deadline: float | None) -> bool:
        if not waiting or self._stopped.is_set() or (deadline is not None and time.monotonic() >= deadline):
            return False
        if any(self._holds(unit) for unit in (waiting[0], *running)):
            # Whoever waits for it waits for nothing else.
            return not running
        return len(running) < self._parallel and all(waiting[0].is_apart_from(other) for other in running)

    def _holds(self, unit: Unit) -> bool:
        """Tell whether it is done with the lock held from the beginning: it has lost each race, and is short."""
        return unit.tries == TRIES - 1 and unit.work_seconds < _HOPELESS * self._hold_at_most

    def _stop(self) -> None:
        """Begin no more, and end what is on its way; return when that has ended."""
        self._stopped.set()
        while not self._ended.wait(CANCEL_AGAIN_SECONDS):
            # The JVM may be what is gone.
            with suppress(*JVM_ERRORS):
                self._spark.sparkContext.cancelJobsWithTag(self._tag)
            self._manager.cancel(self._checkpoint_lock)
            self._writer.cancel()

    @property
    def _checkpoint_lock(self) -> str:
        return f"{self._writer.table}/{LAST_CHECKPOINT}"

    def _lockable(self, units: list[Unit]) -> list[Unit]:
        """Return what is to be done to the whole table instead, if its partitions cannot be locked one by one."""
        if not any(unit.partitions for unit in units):
            return units
        try:
            self._writer.log.snapshot().partition_schema()
        except ResourceError as error:
            log.info("%s is looked after as a whole: %s", self._writer.table, error)
            worth: dict[Action, float] = {}
            for unit in units:
                worth[unit.action] = worth.get(unit.action, 0.0) + unit.worth
            whole = (Unit(action=action, worth=each) for action, each in worth.items())
            return sorted(whole, key=lambda unit: -unit.worth)
        return units

    def _do(self, unit: Unit, found: Measured, deadline: float | None) -> Done:
        begun = time.monotonic()
        made = Done(action=unit.action, partitions=unit.partitions)
        try:
            left = _WAY_SECONDS if deadline is None else min(_WAY_SECONDS, max(0.0, deadline - begun))
            waited = give_way(
                self._inspector, self._writer.table, left, stopped=self._stopped, is_own=is_of_this_process
            )
            made = replace(made, gave_way_seconds=waited)
            if self._stopped.is_set():
                return replace(made, problem="the job was stopped")
            self._spark.sparkContext.addJobTag(self._tag)
            made = self._done(unit, found, made)
        except WriteConflictError as error:
            made = replace(made, problem=str(error), waited_seconds=error.waited_seconds)
        except HeldTooLongError as error:
            made = replace(
                made, problem=str(error), waited_seconds=error.waited_seconds, held_seconds=error.held_seconds
            )
        except _ENDS_IT:
            raise
        except SluiceError as error:
            made = replace(made, problem=str(error), failure=error)
        except (*JVM_ERRORS, PySparkException, ValueError) as error:
            failure = WriteFailedError(table=self._writer.table, reason=one_sentence(error))
            made = replace(made, problem=str(failure), failure=failure)
        return replace(made, seconds=time.monotonic() - begun)

    def _done(self, unit: Unit, found: Measured, made: Done) -> Done:
        match unit.action:
            case Action.VACUUM:
                return self._vacuumed(made)
            case Action.CHECKPOINT:
                return self._checkpointed(made)
            case Action.CLEAN_LOG:
                return self._cleaned(made)
            case _:
                return _of_commit(made, self._rewritten(unit, found.policy))

    def _rewritten(self, unit: Unit, policy: Policy) -> CommitResult:
        held = self._holds(unit)
        columns = policy.zorder_by if unit.action is Action.ZORDER else ()
        note = {
            "action": unit.action.value,
            "columns": list(columns),
            "partitions": self._physical(unit.partitions),
        }
        lock: Lock = unit.partitions or "table"
        purges = unit.action is Action.PURGE
        rewrite = self._writer.purge if purges else partial(self._writer.optimize, zorder_by=columns)
        return rewrite(
            target_size=policy.target_file_size,
            again=False,
            lock=lock,
            hold="write" if held else "commit",
            held_at_most_seconds=self._hold_at_most if held else None,
            lock_timeout_seconds=self._timeout,
            metadata={MAINTENANCE: note},
        )

    def _physical(self, partitions: Collection[Mapping[str, str | None]]) -> list[dict[str, str | None]]:
        """Return the values of partitions under the names that files have them by."""
        if not partitions:
            return []
        names = {each.name: each.physical_name for each in self._writer.log.snapshot().partition_schema().columns}
        return [{names[name]: value for name, value in values.items()} for values in partitions]

    def _vacuumed(self, made: Done) -> Done:
        removed = vacuum(self._spark, self._writer.location, manager=self._manager, lock_timeout_seconds=self._timeout)
        return replace(
            made,
            removed=FileTotals(removed.files, removed.size),
            kept_for_pins=removed.kept_for_pins,
            kept_for_streams=removed.kept_for_streams,
        )

    def _checkpointed(self, made: Done) -> Done:
        with self._manager.acquire(self._checkpoint_lock, timeout_seconds=self._timeout) as hold:
            version = self._writer.log.make_newest_checkpoint()
        return replace(made, version=version, held_seconds=(hold.released_at or time.time()) - hold.acquired_at)

    def _cleaned(self, made: Done) -> Done:
        before = self._log_total()
        with self._manager.acquire(self._checkpoint_lock, timeout_seconds=self._timeout):
            # As late as can be: of a pin, or a stream's name, that came meanwhile.
            snapshot = self._writer.log.snapshot()
            streams = Policy.of(snapshot.properties, self._writer.table).streams
            keepers = Keepers.of(self._spark, snapshot, streams)
            retention = log_retention_seconds(self._spark, snapshot, keepers)
            if math.isinf(retention):
                raise TableError(f"a stream of {self._writer.table} has read too little, and may need any version")
            self._writer.log.clean_up(retention)
        after = self._log_total()
        # Others write versions and checkpoints meanwhile.
        gone = FileTotals(max(0, before.files - after.files), max(0, before.size - after.size))
        return replace(made, removed=gone)

    def _log_total(self) -> FileTotals:
        rows = listed_log(self._spark, self._writer.location).select("length").collect()
        return FileTotals(len(rows), sum(row[0] for row in rows))


def _of_commit(made: Done, result: CommitResult) -> Done:
    metrics = result.metrics

    def total(verb: str) -> FileTotals:
        return FileTotals(int(metrics.get(f"num{verb}Files", 0)), int(metrics.get(f"num{verb}Bytes", 0)))

    return replace(
        made,
        version=result.version,
        waited_seconds=result.waited_seconds,
        held_seconds=result.held_seconds,
        removed=total("Removed"),
        added=total("Added"),
    )
