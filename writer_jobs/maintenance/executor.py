"""Does one unit of work on a table, under a lock of its own."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lock_manager import Hold, LockCancelledError, LockManager, SluiceError
from lock_manager.coordinator import Inspector
from lock_manager.errors import EnsembleFormatError, EnsembleRefusedError, EnsembleUnavailableError
from lock_manager.table_records.commit_stamp import MAINTENANCE
from writer_jobs.commit.driver_guard import AUTO_COMPACT
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.commit.lock_target import Lock
from writer_jobs.delta.checkpoints import LAST_CHECKPOINT
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.listings import listed_log
from writer_jobs.delta.session import session_with
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import GuardMissingError, HeldTooLongError, TableError, WriteConflictError, WriteFailedError
from writer_jobs.maintenance.exclusive_run import give_way, is_of_this_process, turn_of
from writer_jobs.maintenance.file_states import Keepers, log_retention_seconds
from writer_jobs.maintenance.health import FileTotals
from writer_jobs.maintenance.plan import Unit
from writer_jobs.maintenance.policy import Action, Policy
from writer_jobs.maintenance.result import Done
from writer_jobs.maintenance.side_rows import SideRows, refuse_unfinished_batches
from writer_jobs.maintenance.vacuum import vacuum
from writer_jobs.writer import LockedDeltaWriter

#: How often a partition is tried that other writers change at the same time.
TRIES = 3
#: In its last try a partition is rewritten with its lock held, but not for longer, in seconds.
HOLD_AT_MOST_SECONDS = 5.0
# Unless the try before says that this cannot do: it worked for so many times as long. It ran beside others.
_HOPELESS = 3
# Between two units of work others may go first so long: somebody may always wait.
_WAY_SECONDS = 5.0
# Whatever is tried next would fail as well.
_ENDS_ALL = (
    LockCancelledError,
    EnsembleUnavailableError,
    EnsembleRefusedError,
    EnsembleFormatError,
    GuardMissingError,
)


class Worker:
    """Does units of work on one table; several at the same time, each in a thread of its own.

    Args:
        spark: a session with the guarded log store.
        manager: gives the locks.
        inspector: looks at who waits for them.
        table: location or name in the catalog.
        lock_timeout_seconds: to wait for each lock; None: the manager's.
        hold_at_most_seconds: a partition that has lost each of its races is rewritten with its lock held, for so long
            at most; 0: never. The same limit applies to a table whose writes hold the lock from their beginning.

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
        hold_at_most_seconds: float = HOLD_AT_MOST_SECONDS,
    ) -> None:
        #: The session.
        self.spark = spark
        self._manager = manager
        self._inspector = inspector
        # With it each rewrite would hold the lock over all of its work, see docs/gate.md.
        apart = session_with(spark, {AUTO_COMPACT: "false"})
        self._writer = LockedDeltaWriter(apart, manager, table)
        self._timeout = lock_timeout_seconds
        self._hold_at_most = hold_at_most_seconds
        self._stopped = threading.Event()
        # Of its Spark jobs: when it is to stop, they end.
        self._tag = f"sluice-maintenance-{uuid4()}"

    @property
    def table(self) -> str:
        """Canonical URI of the table."""
        return self._writer.table

    @property
    def log(self) -> DeltaTableLog:
        """The table's log."""
        return self._writer.log

    def turn(self) -> AbstractContextManager[Hold]:
        """Be the only one who looks after the table, for a block; see :func:`.turn.turn_of`."""
        return turn_of(self._manager, self.table, self._timeout)

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Do no more, and end what is on its way; call it again until that has ended."""
        self._stopped.set()
        # The JVM may be what is gone.
        with suppress(*JVM_ERRORS):
            self.spark.sparkContext.cancelJobsWithTag(self._tag)
        self._manager.cancel(self._checkpoint_lock)
        self._writer.cancel()

    def holds(self, unit: Unit) -> bool:
        """Tell whether it is done with the lock held from the beginning: it has lost each race, and is short."""
        return unit.tries == TRIES - 1 and unit.work_seconds < _HOPELESS * self._hold_at_most

    def do(self, unit: Unit, policy: Policy, deadline: float | None) -> Done:
        """Do it, when nobody waits for the table any more, or that has taken long enough.

        Killed at any point it leaves a correct table: a unit of work is one commit, or removes what nobody needs.
        What fails, and does not end all work, is in the result (:attr:`.Done.problem`).

        Args:
            unit: what to do.
            policy: of the table.
            deadline: until then others may go first, by the clock of ``time.monotonic``.

        Raises:
            SluiceError: whatever is tried next would fail as well.

        """
        begun = time.monotonic()
        made = Done(action=unit.action, partitions=unit.partitions)
        try:
            left = _WAY_SECONDS if deadline is None else min(_WAY_SECONDS, max(0.0, deadline - begun))
            waited = give_way(self._inspector, self.table, left, stopped=self._stopped, is_own=is_of_this_process)
            made = replace(made, gave_way_seconds=waited)
            if self.is_stopped:
                return replace(made, problem="the job was stopped")
            self.spark.sparkContext.addJobTag(self._tag)
            made = self._done(unit, policy, made)
        except WriteConflictError as error:
            made = replace(made, problem=str(error), waited_seconds=error.waited_seconds)
        except HeldTooLongError as error:
            made = replace(
                made, problem=str(error), waited_seconds=error.waited_seconds, held_seconds=error.held_seconds
            )
        except _ENDS_ALL:
            raise
        except SluiceError as error:
            made = replace(made, problem=str(error), failure=error)
        except (*JVM_ERRORS, PySparkException, ValueError) as error:
            failure = WriteFailedError(table=self.table, reason=one_sentence(error))
            made = replace(made, problem=str(failure), failure=failure)
        return replace(made, seconds=time.monotonic() - begun)

    def _done(self, unit: Unit, policy: Policy, made: Done) -> Done:
        match unit.action:
            case Action.VACUUM:
                return self._vacuumed(made)
            case Action.CHECKPOINT:
                return self._checkpointed(made)
            case Action.CLEAN_LOG:
                return self._cleaned(made)
            case Action.FORGET:
                return self._forgotten(unit, made)
            case _:
                return _of_commit(made, self._rewritten(unit, policy))

    def _rewritten(self, unit: Unit, policy: Policy) -> CommitResult:
        held = self.holds(unit)
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
            # Also where a rule of the gate has the lock held from the beginning.
            held_at_most_seconds=self._hold_at_most,
            lock_timeout_seconds=self._timeout,
            metadata={MAINTENANCE: note},
        )

    def _physical(self, partitions: Collection[Mapping[str, str | None]]) -> list[dict[str, str | None]]:
        """Return the values of partitions under the names that files have them by."""
        if not partitions:
            return []
        names = {each.name: each.physical_name for each in self.log.snapshot().partition_schema().columns}
        return [{names[name]: value for name, value in values.items()} for values in partitions]

    def _vacuumed(self, made: Done) -> Done:
        removed = vacuum(self.spark, self.log.location, manager=self._manager, lock_timeout_seconds=self._timeout)
        return replace(
            made,
            removed=FileTotals(removed.files, removed.size),
            kept_for_pins=removed.kept_for_pins,
            kept_for_streams=removed.kept_for_streams,
        )

    def _forgotten(self, unit: Unit, made: Done) -> Done:
        snapshot = self.log.snapshot()
        # Not the policy of the plan: a feed may have set a longer time since.
        policy = Policy.of(snapshot.properties, self.table)
        if snapshot.state is None or (side := SideRows.of(snapshot.state, policy)) is None:
            raise TableError(f"{self.table} is no side table of a feed any more")
        location = self.log.location
        result = self._writer.rewrite(
            side.kept,
            again=False,
            hold="write" if self.holds(unit) else "commit",
            held_at_most_seconds=self._hold_at_most,
            lock_timeout_seconds=self._timeout,
            metadata={MAINTENANCE: {"action": unit.action.value}},
            before_write=lambda _: refuse_unfinished_batches(self.spark, location),
        )
        added = FileTotals(*(int(result.metrics.get(name, 0)) for name in ("numFiles", "numOutputBytes")))
        return replace(_of_commit(made, result), added=added)

    @property
    def _checkpoint_lock(self) -> str:
        return f"{self.table}/{LAST_CHECKPOINT}"

    def _checkpointed(self, made: Done) -> Done:
        with self._manager.acquire(self._checkpoint_lock, timeout_seconds=self._timeout) as hold:
            version = self.log.make_newest_checkpoint()
        return replace(made, version=version, held_seconds=_held_seconds(hold))

    def _cleaned(self, made: Done) -> Done:
        before = self._log_total()
        with self._manager.acquire(self._checkpoint_lock, timeout_seconds=self._timeout) as hold:
            # As late as can be: of a pin, or a stream's name, that came meanwhile.
            snapshot = self.log.snapshot()
            streams = Policy.of(snapshot.properties, self.table).streams
            keepers = Keepers.of(self.spark, snapshot, streams)
            retention = log_retention_seconds(self.spark, snapshot, keepers)
            if math.isinf(retention):
                raise TableError(f"a stream of {self.table} has read too little, and may need any version")
            self.log.clean_up(retention)
        after = self._log_total()
        # Others write versions and checkpoints meanwhile.
        gone = FileTotals(max(0, before.files - after.files), max(0, before.size - after.size))
        return replace(made, removed=gone, held_seconds=_held_seconds(hold))

    def _log_total(self) -> FileTotals:
        rows = listed_log(self.spark, self.log.location).select("length").collect()
        return FileTotals(len(rows), sum(row[0] for row in rows))


def _held_seconds(hold: Hold) -> float:
    return (hold.released_at or time.time()) - hold.acquired_at


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
