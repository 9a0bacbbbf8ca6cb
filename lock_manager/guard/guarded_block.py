"""Blocks under a hold. The commit guard asks a block whether it allows a commit."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lock_manager import tracing
from lock_manager.coordinator import Hold
from lock_manager.errors import LockNotHeldError, ResourceError, SluiceError, VersionTakenError
from lock_manager.events import Event, emit
from lock_manager.guard.write_attempt import WriteAttempt
from lock_manager.intents import NO_VERSION, Intent, version_to_fill
from lock_manager.partitions import PartitionSchema, format_partitions, smallest_cover
from lock_manager.scope import TableScope
from lock_manager.table_records.commit_stamp import stamp_of

#: Suffix of the name of a ticket or block that is confined to partitions. It makes the log store send the footprint of
#: each commit.
PARTITIONS_SUFFIX = "*"
#: Actions on the whole table that a lock on partitions allows. Row tracking stores the highest row id there, and Delta
#: assigns the ids of a commit again after a conflict.
ALLOWED_TABLE_ACTIONS = frozenset({"domainMetadata delta.rowTracking"})


def is_definite(report: Mapping[str, Any]) -> bool:
    """Return whether the outcome of a put, in the log store's report (``Attempts.java``), can no longer change."""
    return report["outcome"] in ("committed", "taken", "rejected")


@dataclass(frozen=True)
class AllowedPut:
    """A put that the guard allowed. ``write_id`` identifies the operation attempt; None for a put without one."""

    version: int
    write_id: str | None


class GuardedBlock:
    """A block under a hold: one ``locked`` block or one operation of a writer.

    The guard allows the commits of the block to one table while the hold stands.

    Several blocks may be open under one hold: nested ones, and those of other threads. A thread is bound to the blocks
    that it has entered, not to the hold.

    Args:
        metadata: Further fields of the stamp of each commit (JSON values).
        table: Canonical URI; by default the only table of the hold.
        schema: Partition columns of the table, if the block is confined to partitions.
        scope: The part of the table to which commits are confined; by default the part that is held. It may be smaller
            than that, because many partitions are locked as one table, and because blocks may be nested.
        fills: For the block of an empty commit: ids of the holds whose unfinished intents it fills.

    Attributes:
        block_id: Unique id of the block.
        allowed_puts: Puts that the guard allowed in this block, by id of the attempt to put.
        refusal: Error with which the guard refuses every commit; None if the coordinator decides.
        has_new_metadata: Whether an allowed commit contained ``metaData`` other than UNSET TBLPROPERTIES.
        span: Parent of the spans of the block's commits, current when the block was created.

    """

    def __init__(
        self,
        hold: Hold,
        metadata: Mapping[str, Any],
        *,
        table: str | None = None,
        schema: PartitionSchema | None = None,
        scope: TableScope | None = None,
        fills: Collection[str] | None = None,
    ) -> None:
        self.hold = hold
        self.block_id = uuid.uuid4().hex
        self.table = table or next(iter(hold.scope))
        self.metadata = dict(metadata)
        self.schema = schema
        self.allowed_puts: dict[str, AllowedPut] = {}
        self.refusal: SluiceError | None = None
        self.has_new_metadata = False
        self.span = tracing.current()
        self._scope = scope
        self._read_version: int | None = None
        self._fills = fills
        self._attempts: dict[str, tuple[WriteAttempt, bool]] = {}
        self._phases: dict[str, tracing.Span] = {}

    @property
    def scope(self) -> TableScope:
        """The part of the table to which commits are confined."""
        return self._scope or self.hold.scope[self.table]

    @property
    def name(self) -> str:
        """Name to which threads are bound: the block's id, with a suffix if it is confined to partitions."""
        return self.block_id if self.scope.partitions is None else self.block_id + PARTITIONS_SUFFIX

    def for_empty_commit(self, fills: Collection[str]) -> GuardedBlock:
        """Return a block for one empty commit, under the same hold but without this block's operations.

        The commit records the job and ``fills``, the ids of the holds whose unfinished intents it fills.
        """
        return GuardedBlock(self.hold, self.metadata, table=self.table, schema=self.schema, fills=fills)

    @contextmanager
    def executing(
        self, attempt: WriteAttempt, *, stamps_note: bool, phase: tracing.Span = tracing.NO_SPAN
    ) -> Iterator[None]:
        """Allow the commit of an attempt while the block executes it.

        Args:
            attempt: The attempt.
            stamps_note: Whether the commit stamp contains the attempt's note. It is for operations whose commit cannot
                have ``userMetadata``.
            phase: Span that ends when the log store asks whether the commit may be made.

        """
        self._attempts[attempt.write_id] = (attempt, stamps_note)
        self._phases[attempt.write_id] = phase
        try:
            yield
        finally:
            del self._attempts[attempt.write_id], self._phases[attempt.write_id]

    def end_phase(self, write_id: str | None) -> None:
        """End the span that precedes the commit of an attempt, see :meth:`executing`."""
        self._phases.get(write_id or "", tracing.NO_SPAN).end()

    def puts_of(self, write_id: str) -> set[str]:
        """Return the ids of the puts that the guard allowed for an operation attempt."""
        # A copy, because the guard adds puts in other threads.
        return {name for name, put in list(self.allowed_puts.items()) if put.write_id == write_id}

    def check_write(self, write_id: str | None, retention_seconds: float) -> None:
        """Raise unless the block executes the operation attempt of a commit, and the attempt's files are young enough.

        ``write_id`` is None for a statement that no writer executes.

        Raises:
            LockNotHeldError: The block does not execute that attempt.
            NotStagedError: The files of the attempt are too old, see :meth:`WriteAttempt.refuse_if_old`.

        """
        if write_id is None:
            return
        if write_id not in self._attempts:
            raise LockNotHeldError(
                f"a commit to {self.table} was refused: the operation that it belongs to has ended", resource=self.table
            )
        attempt, _ = self._attempts[write_id]
        attempt.refuse_if_old(self.table, retention_seconds)

    def require_unchanged_since(self, version: int) -> None:
        """Refuse commits once another writer has committed after a version, as far as the hold does not exclude it.

        Args:
            version: The newest version of the table, read before anything else of the table.

        """
        self._read_version = version

    def check_version(self, version: int) -> None:
        """Raise if another writer has committed between the version that was read and a version to put.

        Raises:
            VersionTakenError: There is such a version. Versions that this hold has recorded as its own do not count.

        """
        if self._read_version is None:
            return
        committed = self.hold.commits.get(self.table, ())
        for number in range(self._read_version + 1, version):
            if number not in committed:
                raise VersionTakenError(resource=self.table, hold_id=self.hold.hold_id, version=number)

    def check_footprint(self, footprint: Mapping[str, Any]) -> None:
        """Raise if a commit touches more than the part of the table to which the block is confined.

        ``CommitBody.java`` describes the footprint.

        Raises:
            LockNotHeldError: The commit touches other partitions or the whole table.

        """
        table, scope = self.table, self.scope
        if scope.partitions is None:
            return
        table_actions = [name for name in footprint.get("actions", ()) if name not in ALLOWED_TABLE_ACTIONS]
        if table_actions or footprint.get("unplaced", True) or self.schema is None:
            if table_actions:
                reason = f"it changes the table's {', '.join(table_actions)}"
            elif self.schema is None:
                reason = "the partition columns of the table are unknown"
            else:
                reason = "a file has no partition values, or the commit cannot be parsed"
            raise LockNotHeldError(
                f"a commit to {table} needs the lock on the whole table ({reason}), but {self._limit}",
                resource=table,
            )
        try:
            partitions = smallest_cover(map(self.schema.partition_of_file, footprint["partitions"]))
        except ResourceError as error:
            message = f"a commit to {table} was refused: {error}; {self._limit}"
            raise LockNotHeldError(message, resource=table) from error
        if unlocked_partitions := [partition for partition in partitions if not scope.contains([partition])]:
            names = format_partitions(unlocked_partitions)
            raise LockNotHeldError(f"the commit to {table} touches {names}, but {self._limit}", resource=table)

    @property
    def _limit(self) -> str:
        is_held = self.hold.scope[self.table].partitions is not None
        return f"only {self.scope} is held" if is_held else f"its write is confined to {self.scope}"

    def settle(self, reports: Iterable[Mapping[str, Any]]) -> bool:
        """Settle the puts whose outcome is definite in the log store's reports (``Attempts.java``).

        Return whether every put of the hold on this table, in any block, is settled. Otherwise the intent stays.
        """
        intents = self.hold.intents_of(self.table)
        intents.settle(report["attempt"] for report in reports if is_definite(report))
        return not intents.open

    def unanswered_intents(
        self, reports: Iterable[Mapping[str, Any]], busy_attempts: Collection[str] = ()
    ) -> list[Intent]:
        """Return the puts of earlier blocks under this hold that got no answer, as unfinished intents.

        A put that the log store has not reported counts, too, because it may still arrive. A put of another open block
        (its id is in ``busy_attempts``) counts only if the log store reports its outcome as unknown.
        """
        report_of = {report["attempt"]: report for report in reports}
        intents = []
        for attempt, version in self.hold.intents_of(self.table).open.items():
            report = report_of.get(attempt, {"outcome": "pending"})
            if report["outcome"] == "unknown" or not (is_definite(report) or attempt in busy_attempts):
                hold_id, token, txn = self.hold.hold_id, self.hold.token, report.get("txn")
                intents.append(Intent(hold_id=hold_id, version=version, txn=txn, attempt=attempt, token=token))
        return intents

    def settle_unfinished(
        self,
        unanswered_intents: Collection[Intent],
        read_newest: Callable[[], int],
        fill: Callable[[int, Collection[str]], int],
    ) -> bool:
        """Make sure that no put from before this block can still succeed ("Unfinished intents" in docs/concepts.md).

        Such a put belongs to an earlier hold with an unfinished intent, or it is an unanswered put of an earlier block
        of this hold. If the version that it intends does not exist yet, an empty commit takes the table's next version
        and records the ids of those holds. Then the late put can only fail.

        Args:
            unanswered_intents: Intents that :meth:`unanswered_intents` returns.
            read_newest: Returns the newest version of the table; -1 if the table does not exist.
            fill: Takes a version and the ids of the holds that left it unfinished. Returns an existing version that is
                not older: an empty commit, or the commit of a faster writer. Raises if there is no such version.

        Returns:
            Whether there were unfinished intents or unanswered puts, and all are settled now. If the table does not
            exist, the intents stay, because an empty commit cannot create a table. The first commit and the late put
            are both version 0, so they exclude each other.

        """
        hold_intents = self.hold.intents_of(self.table)
        if not hold_intents.unfinished and not unanswered_intents:
            return False
        intents = [*hold_intents.read(), *unanswered_intents]
        outcome = Event.INTENT_LEFT
        try:
            head = read_newest()
            free_version = version_to_fill(intents, head)
            if free_version is not None:
                if head == NO_VERSION:
                    return False
                head = fill(free_version, [intent.hold_id for intent in intents if intent.version > head])
            hold_intents.settle(intent.attempt for intent in unanswered_intents if intent.version <= head)
            hold_intents.clear()
            outcome = Event.INTENT_SETTLED
        finally:
            for _ in intents:
                emit(outcome, self.table)
        return True

    def stamp(self, write_id: str | None = None) -> dict[str, Any]:
        """Return the stamp of a commit in this block (``commitInfo.sluice``)."""
        attempt, stamps_note = self._attempts.get(write_id or "", (None, False))
        note = attempt.note if attempt is not None and stamps_note else {}
        trace_id = self.span.trace_id if self._fills is None else None
        return stamp_of(self.hold, {**note, **self.metadata}, write_id=write_id, fills=self._fills, trace_id=trace_id)


def check_versions(blocks: Iterable[GuardedBlock], version: int) -> None:
    """Raise if one of the blocks may not put a version; see :meth:`GuardedBlock.check_version`."""
    for block in blocks:
        block.check_version(version)
