"""The maintainer of a table: it repairs findings in units of work, and gives way to writers before each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace

from lock_manager import Hold, ResourceError, SluiceError, tracing
from writer_jobs.commit.execution import CANCEL_AGAIN_SECONDS
from writer_jobs.errors import MaintenanceError, StorageError
from writer_jobs.maintenance.executor import MAX_TRIES, UnitExecutor
from writer_jobs.maintenance.findings import find
from writer_jobs.maintenance.measure import Measurement, measure, with_zorder
from writer_jobs.maintenance.plan import PARALLEL, PARTITIONS_PER_COMMIT, WorkUnit, plan
from writer_jobs.maintenance.policy import Action, Policy
from writer_jobs.maintenance.result import MaintenanceReport, UnitResult

log = logging.getLogger(__name__)


class TableMaintainer:
    """Maintains one table.

    Args:
        executor: Executor of the table's units of work.
        deferred: Returns a context in which signals do not interrupt a write; its argument cancels the work. See
            :meth:`writer_jobs.job.stop_signals.StopSignals.deferred`.
        on_result: Called after each unit with the report so far; the unit's result is the last of
            :attr:`.MaintenanceReport.done`.
        parallel: Largest number of units that run at the same time.
        partitions_per_commit: Largest number of partitions that one commit rewrites; see :func:`.plan`.

    """

    def __init__(
        self,
        executor: UnitExecutor,
        *,
        deferred: Callable[[Callable[[], None]], AbstractContextManager[None]] = lambda _: nullcontext(),
        on_result: Callable[[MaintenanceReport], None] = lambda _: None,
        parallel: int = PARALLEL,
        partitions_per_commit: int = PARTITIONS_PER_COMMIT,
    ) -> None:
        self._executor = executor
        #: Report on the table so far; None: the table is not measured yet.
        self.report: MaintenanceReport | None = None
        self._deferred = deferred
        self._on_result = on_result
        self._parallel = parallel
        self._partitions_per_commit = partitions_per_commit
        self._ended = threading.Event()

    def run(
        self,
        actions: Collection[Action] | None = None,
        *,
        budget_seconds: float | None = None,
        zorder_by: tuple[str, ...] = (),
        on_measured: Callable[[MaintenanceReport], None] = lambda _: None,
        measurement: Measurement | None = None,
    ) -> MaintenanceReport:
        """Measure the table, execute the planned units, and measure the table again.

        The table is correct if the process is killed at any point: each unit makes one commit, or deletes files that
        nothing needs. If a unit fails, its error is in its result (:attr:`.UnitResult.problem`) and the other units are
        executed.

        Args:
            actions: Actions to execute wherever they change anything; empty: only measure; None: those that the
                findings name and the policy allows.
            budget_seconds: Seconds after which no unit starts; running units end normally. None: no limit.
            zorder_by: Columns of the Z-order in place of the policy's columns.
            on_measured: Called with the report before the first unit.
            measurement: Earlier measurement of the table. Unless ``actions`` is empty, the table is measured again if
                it has another version now.

        Raises:
            LockTimeoutError: Another maintainer works on the table.
            MaintenanceError: The store failed.
            SluiceError: The table cannot be measured, no lock can be acquired, commits are not guarded, or the
                maintenance lock was lost to another maintainer.

        """
        deadline = None if budget_seconds is None else time.monotonic() + budget_seconds
        if actions is not None and not actions:
            measurement = measurement or self._measure()
            report = self._set_report(MaintenanceReport.of(measurement.health, measurement.policy))
            on_measured(report)
            return report
        with self._executor.exclusive_run() as run_hold:
            if measurement is None or not self._is_current(measurement):
                measurement = self._measure()
            if zorder_by:
                measurement = with_zorder(measurement, zorder_by)
            health, policy = measurement.health, measurement.policy
            report = self._set_report(MaintenanceReport.of(health, policy))
            on_measured(report)
            units = plan(health, policy, actions, partitions_per_commit=self._partitions_per_commit)
            report = self._execute(self._lockable(units), policy, deadline, run_hold, report)
        if not report.done:
            return report
        after = self._measure()
        findings_after = tuple(find(after.health, after.policy))
        return self._set_report(replace(report, after=after.health, findings_after=findings_after))

    def _measure(self) -> Measurement:
        try:
            return measure(self._executor.spark, self._executor.log.location)
        except StorageError as error:
            raise MaintenanceError(table=self._executor.table, reason=str(error)) from error

    def _is_current(self, measurement: Measurement) -> bool:
        snapshot = self._executor.log.snapshot()
        return (measurement.health.table_id, measurement.health.version) == (snapshot.table_id, snapshot.version)

    def _set_report(self, report: MaintenanceReport) -> MaintenanceReport:
        self.report = report
        return report

    def _execute(
        self,
        waiting_units: list[WorkUnit],
        policy: Policy,
        deadline: float | None,
        run_hold: Hold,
        report: MaintenanceReport,
    ) -> MaintenanceReport:
        """Execute units in their order, in parallel where possible, and return the report with their results."""
        running_units: dict[Future[UnitResult], WorkUnit] = {}
        fatal_error: SluiceError | None = None
        self._ended.clear()

        parent = tracing.current()

        def execute(unit: WorkUnit) -> UnitResult:
            run_hold.check()
            with parent.current():
                return self._executor.execute(unit, policy, deadline)

        # The pool is inside the deferred block: a signal is raised only after the pool's threads have ended.
        with self._deferred(self._stop), ExitStack() as stack:
            stack.callback(self._ended.set)
            pool = stack.enter_context(ThreadPoolExecutor(self._parallel, "sluice-maintenance"))
            while True:
                while fatal_error is None and self._may_start(waiting_units, running_units.values(), deadline):
                    unit = waiting_units.pop(0)
                    running_units[pool.submit(execute, unit)] = unit
                report = self._set_report(replace(report, left=len(waiting_units) + len(running_units)))
                if not running_units:
                    break
                for future in wait(running_units, return_when=FIRST_COMPLETED).done:
                    unit = running_units.pop(future)
                    try:
                        result = future.result()
                    except SluiceError as error:
                        # The running units may still commit. Their results are added before the error is raised.
                        waiting_units.insert(0, unit)
                        fatal_error = fatal_error or error
                        continue
                    if result.problem is not None and result.failure is None and unit.tries + 1 < MAX_TRIES:
                        # Last in the queue: the writer that won the race may have ended by then.
                        waiting_units += unit.retries(result.work_seconds)
                        continue
                    report = self._set_report(replace(report, done=(*report.done, result)))
                    self._on_result(report)
            if fatal_error is not None:
                raise fatal_error
        return report

    def _may_start(
        self, waiting_units: list[WorkUnit], running_units: Collection[WorkUnit], deadline: float | None
    ) -> bool:
        """Return whether the first waiting unit may start now."""
        if not waiting_units or self._executor.is_stopped or (deadline is not None and time.monotonic() >= deadline):
            return False
        if any(self._executor.holds_lock(unit) for unit in (waiting_units[0], *running_units)):
            # A unit that holds its lock from the beginning runs alone, so that writers wait for one unit only.
            return not running_units
        return len(running_units) < self._parallel and all(
            waiting_units[0].is_disjoint_from(unit) for unit in running_units
        )

    def _stop(self) -> None:
        """Stop the executor and return when the running units have ended."""
        self._executor.stop()
        while not self._ended.wait(CANCEL_AGAIN_SECONDS):
            self._executor.stop()

    def _lockable(self, units: list[WorkUnit]) -> list[WorkUnit]:
        """Return the units, or one unit per action on the table if its partitions cannot be locked separately."""
        if not any(unit.partitions for unit in units):
            return units
        try:
            self._executor.log.snapshot().partition_schema()
        except ResourceError as error:
            log.info("the partitions of %s are not locked separately: %s", self._executor.table, error)
            worth: dict[Action, float] = {}
            for unit in units:
                worth[unit.action] = worth.get(unit.action, 0.0) + unit.worth
            table_units = (WorkUnit(action=action, worth=action_worth) for action, action_worth in worth.items())
            return sorted(table_units, key=lambda unit: -unit.worth)
        return units
