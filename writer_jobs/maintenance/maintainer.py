"""Looks after a table: does what its findings say, one partition at a time, and gives way to writers in between."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace

from lock_manager import Hold, ResourceError, SluiceError
from writer_jobs.commit.background_write import CANCEL_AGAIN_SECONDS
from writer_jobs.errors import MaintenanceError, StorageError
from writer_jobs.maintenance.executor import TRIES, Worker
from writer_jobs.maintenance.findings import find
from writer_jobs.maintenance.measure import Measured, measure, ordered_by
from writer_jobs.maintenance.plan import PARALLEL, PARTITIONS_PER_COMMIT, Unit, plan
from writer_jobs.maintenance.policy import Action, Policy
from writer_jobs.maintenance.result import CareReport, Done

log = logging.getLogger(__name__)


class Care:
    """Looks after one table.

    Args:
        worker: does what is to be done to it.
        deferred: context in which a write is not interrupted, given what cancels it; see
            :meth:`writer_jobs.job.stopping.StopSignals.deferred`.
        say: told of the report so far, whenever something was done: the last of :attr:`.CareReport.done`.
        parallel: how many partitions are worked on at the same time.
        partitions_per_commit: how many small partitions one commit rewrites at most; see :func:`.plan.plan`.

    """

    def __init__(
        self,
        worker: Worker,
        *,
        deferred: Callable[[Callable[[], None]], AbstractContextManager[None]] = lambda _: nullcontext(),
        say: Callable[[CareReport], None] = lambda _: None,
        parallel: int = PARALLEL,
        partitions_per_commit: int = PARTITIONS_PER_COMMIT,
    ) -> None:
        self._worker = worker
        #: What is known of the table, and was done to it, so far; None: it could not be looked at.
        self.report: CareReport | None = None
        self._deferred = deferred
        self._say = say
        self._parallel = parallel
        self._partitions_per_commit = partitions_per_commit
        self._ended = threading.Event()

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
        with self._worker.turn() as turn:
            if found is None or not self._is_of_now(found):
                found = self._measured()
            if zorder_by:
                found = ordered_by(found, zorder_by)
            report = self._reported(CareReport.found(found.health, found.policy))
            measured(report)
            planned = plan(found.health, found.policy, actions, partitions_per_commit=self._partitions_per_commit)
            report = self._work_off(self._lockable(planned), found.policy, deadline, turn, report)
        if not report.done:
            return report
        after = self._measured()
        findings_after = tuple(find(after.health, found.policy))
        return self._reported(replace(report, after=after.health, findings_after=findings_after))

    def _measured(self) -> Measured:
        try:
            return measure(self._worker.spark, self._worker.log.location)
        except StorageError as error:
            raise MaintenanceError(table=self._worker.table, reason=str(error)) from error

    def _is_of_now(self, found: Measured) -> bool:
        snapshot = self._worker.log.snapshot()
        return (found.health.table_id, found.health.version) == (snapshot.table_id, snapshot.version)

    def _reported(self, report: CareReport) -> CareReport:
        self.report = report
        return report

    def _work_off(
        self, waiting: list[Unit], policy: Policy, deadline: float | None, turn: Hold, report: CareReport
    ) -> CareReport:
        """Do what waits, in that order, partitions beside each other, and note it in the report."""
        running: dict[Future[Done], Unit] = {}
        ends_all: SluiceError | None = None
        self._ended.clear()

        def do(unit: Unit) -> Done:
            turn.check()
            return self._worker.do(unit, policy, deadline)

        # The pool is within: its end is waited for before a signal is raised.
        with self._deferred(self._stop), ExitStack() as stack:
            stack.callback(self._ended.set)
            pool = stack.enter_context(ThreadPoolExecutor(self._parallel, "sluice-maintenance"))
            while True:
                while ends_all is None and self._may_begin(waiting, running.values(), deadline):
                    unit = waiting.pop(0)
                    running[pool.submit(do, unit)] = unit
                report = self._reported(replace(report, left=len(waiting) + len(running)))
                if not running:
                    break
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    unit = running.pop(ended)
                    try:
                        made = ended.result()
                    except SluiceError as error:
                        # What the others commit meanwhile is noted before it is raised.
                        waiting.insert(0, unit)
                        ends_all = ends_all or error
                        continue
                    if made.problem is not None and made.failure is None and unit.tries + 1 < TRIES:
                        # Behind the others: whoever changes it now may be done by then.
                        waiting += unit.again(made.work_seconds)
                        continue
                    report = self._reported(replace(report, done=(*report.done, made)))
                    self._say(report)
            if ends_all is not None:
                raise ends_all
        return report

    def _may_begin(self, waiting: list[Unit], running: Collection[Unit], deadline: float | None) -> bool:
        if not waiting or self._worker.is_stopped or (deadline is not None and time.monotonic() >= deadline):
            return False
        if any(self._worker.holds(unit) for unit in (waiting[0], *running)):
            # Whoever waits for it waits for nothing else.
            return not running
        return len(running) < self._parallel and all(waiting[0].is_apart_from(other) for other in running)

    def _stop(self) -> None:
        """Begin no more, and end what is on its way; return when that has ended."""
        self._worker.stop()
        while not self._ended.wait(CANCEL_AGAIN_SECONDS):
            self._worker.stop()

    def _lockable(self, units: list[Unit]) -> list[Unit]:
        """Return what is to be done to the whole table instead, if its partitions cannot be locked one by one."""
        if not any(unit.partitions for unit in units):
            return units
        try:
            self._worker.log.snapshot().partition_schema()
        except ResourceError as error:
            log.info("%s is looked after as a whole: %s", self._worker.table, error)
            worth: dict[Action, float] = {}
            for unit in units:
                worth[unit.action] = worth.get(unit.action, 0.0) + unit.worth
            whole = (Unit(action=action, worth=each) for action, each in worth.items())
            return sorted(whole, key=lambda unit: -unit.worth)
        return units
