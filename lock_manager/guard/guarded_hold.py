"""A block under a hold, as the commit guard knows it: it allows the commits to one table that belong to the block."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lock_manager.coordinator import Hold
from lock_manager.errors import LockNotHeldError, ResourceError, SluiceError
from lock_manager.guard.write_attempt import WriteAttempt
from lock_manager.intents import NO_VERSION, Intent, version_to_fill
from lock_manager.partitions import PartitionSchema, names_of
from lock_manager.table_records.commit_stamp import stamp_of

#: Suffix of the name of a ticket or block that locks partitions only: the guard needs the footprint of each commit.
OF_PARTITIONS = "*"
# Where rows get their ids: Delta gives them out again after a conflict.
OF_ANY_PARTITION = frozenset({"domainMetadata delta.rowTracking"})
#: Outcomes of a put after which nothing of it can still come (``Attempts.java``).
DEFINITE = frozenset({"committed", "taken", "rejected"})


def is_definite(attempt: Mapping[str, Any]) -> bool:
    """Tell whether it is known what became of an attempt, as the log store saw it (``Attempts.java``)."""
    return attempt["outcome"] in DEFINITE


@dataclass(frozen=True)
class AllowedPut:
    """A put that the guard allowed.

    Attributes:
        version: of the table.
        write_id: of the attempt to which the commit belongs; None if it belongs to none.

    """

    version: int
    write_id: str | None


class GuardedHold:
    """A block under a hold. The guard allows its commits to one table while the hold stands.

    Several blocks may be open under one hold: nested ones, and those of other threads. A thread is bound to the blocks
    that it has entered, not to the hold.

    Args:
        hold: the hold.
        metadata: what each commit records beside the hold itself (JSON values).
        table: canonical URI; by default the only table of the hold.
        schema: of the table's partitions, if the hold locks some of them.
        fills: for the block of an empty commit: ids of the holds whose unfinished intents it fills.

    Attributes:
        block_id: unique id of the block.
        passed: puts that the guard allowed in this block, by id of the attempt to put.
        refusal: error for every commit; None if the coordinator decides.
        new_metadata: whether an allowed commit contained ``metaData`` other than UNSET TBLPROPERTIES.

    """

    def __init__(
        self,
        hold: Hold,
        metadata: Mapping[str, Any],
        *,
        table: str | None = None,
        schema: PartitionSchema | None = None,
        fills: Collection[str] | None = None,
    ) -> None:
        self.hold = hold
        self.block_id = uuid.uuid4().hex
        self.table = table or next(iter(hold.scope))
        self.metadata = dict(metadata)
        self.schema = schema
        self.passed: dict[str, AllowedPut] = {}
        self.refusal: SluiceError | None = None
        self.new_metadata = False
        self._fills = fills
        self._attempts: dict[str, tuple[WriteAttempt, bool]] = {}

    @property
    def name(self) -> str:
        """Name to which threads are bound: the block's id, with a suffix if the hold locks partitions."""
        whole = all(scope.partitions is None for scope in self.hold.scope.values())
        return self.block_id if whole else self.block_id + OF_PARTITIONS

    def for_empty_commit(self, fills: Collection[str]) -> GuardedHold:
        """Return a block for one empty commit under the same hold.

        It has none of this block's operations, so its commit records the job and the holds whose intents it fills.

        Args:
            fills: ids of those holds.

        """
        return GuardedHold(self.hold, self.metadata, table=self.table, schema=self.schema, fills=fills)

    @contextmanager
    def executing(self, attempt: WriteAttempt, *, stamps_note: bool) -> Iterator[None]:
        """Allow the commit of an attempt while the block executes it.

        Args:
            attempt: the attempt.
            stamps_note: whether the stamp contains the attempt's note, because Delta has no ``userMetadata`` for it.

        """
        self._attempts[attempt.write_id] = (attempt, stamps_note)
        try:
            yield
        finally:
            del self._attempts[attempt.write_id]

    def puts_of(self, write_id: str) -> set[str]:
        """Return the ids of the puts that the guard allowed for an operation attempt."""
        # A copy: the guard adds to it in other threads.
        return {name for name, put in list(self.passed.items()) if put.write_id == write_id}

    def check_write(self, write_id: str | None, retention_seconds: float) -> None:
        """Raise unless a commit with this write id may be made now.

        Args:
            write_id: as the log store sent it; None: a statement that no writer executes.
            retention_seconds: age at which VACUUM deletes files that belong to no commit.

        Raises:
            LockNotHeldError: the block does not execute that attempt.
            NotStagedError: its files are too old.

        """
        if write_id is None:
            return
        if write_id not in self._attempts:
            raise LockNotHeldError(
                f"a commit to {self.table} was refused: the operation that it belongs to has ended", resource=self.table
            )
        attempt, _ = self._attempts[write_id]
        attempt.refuse_if_old(self.table, retention_seconds)

    def check_footprint(self, footprint: Mapping[str, Any]) -> None:
        """Make sure that a commit touches nothing of the table but the partitions that are held.

        Args:
            footprint: see ``CommitBody.java``.

        Raises:
            LockNotHeldError: it does; the message names what.

        """
        table, scope = self.table, self.hold.scope[self.table]
        if scope.partitions is None:
            return
        others = [name for name in footprint.get("actions", ()) if name not in OF_ANY_PARTITION]
        if others or footprint.get("unplaced", True) or self.schema is None:
            what = f"its {', '.join(others)}" if others else "files that say no partition"
            raise LockNotHeldError(
                f"{what} of {table} needs the lock on the whole table, and {scope} is held", resource=table
            )
        try:
            touched = map(self.schema.touched, footprint["partitions"])
            outside = sorted({each for each in touched if not scope.contains([each])}, key=lambda each: each.sort_key)
        except ResourceError as error:
            raise LockNotHeldError(f"{scope} is held, and {error}", resource=table) from error
        if outside:
            raise LockNotHeldError(
                f"the commit to {table} touches {names_of(outside)}, and {scope} is held", resource=table
            )

    def settle(self, attempts: Iterable[Mapping[str, Any]]) -> bool:
        """Note which attempts have an outcome by now; tell whether all of the hold's attempts on the table have one.

        The attempts of every block under the hold count: one that is open keeps the intent, whoever made it.

        Args:
            attempts: what the log store says of them; see ``Attempts.java``.

        """
        intents = self.hold.intents_of(self.table)
        intents.settle(each["attempt"] for each in attempts if is_definite(each))
        return not intents.open

    def unanswered(self, attempts: Iterable[Mapping[str, Any]], busy: Collection[str] = ()) -> list[Intent]:
        """Return the puts of earlier blocks under this very hold that got no answer, as intents to be settled.

        Args:
            attempts: as for :meth:`settle`. An attempt that the log store does not know may still reach it.
            busy: attempts of blocks that are not over: one of these counts only if its outcome is said to be unknown.

        """
        outcomes = {each["attempt"]: each for each in attempts}
        found = []
        for name, version in self.hold.intents_of(self.table).open.items():
            known = outcomes.get(name, {"outcome": "pending"})
            if known["outcome"] == "unknown" or not (is_definite(known) or name in busy):
                txn = known.get("txn")
                hold_id, token = self.hold.hold_id, self.hold.token
                found.append(Intent(hold_id=hold_id, version=version, txn=txn, attempt=name, token=token))
        return found

    def settle_unfinished(
        self, unanswered: Collection[Intent], newest: Callable[[], int], fill: Callable[[int, Collection[str]], int]
    ) -> bool:
        """Make sure that no put from before this block can still succeed: the rule of docs/concepts.md.

        That is a put of an earlier hold that left its intent unfinished, or one under this very hold without an
        answer. If such a put was of a version that is not there yet, the next version is filled with an empty commit,
        which notes whose intent it fills. Then the late put can only fail.

        Args:
            unanswered: see :meth:`unanswered`.
            newest: returns the newest version of the table, -1 if there is no table.
            fill: given a version and the ids of the holds that left it unfinished, returns a version that exists and
                is not older: an empty commit, or another writer's that was faster. Raises if there is none.

        Returns:
            Whether anything was unfinished, and is settled now. In front of a table that is not there an intent stays:
            an empty commit would be no table, whatever is written first is version 0, and so the late put and it
            exclude each other.

        """
        left_behind = self.hold.intents_of(self.table)
        if not left_behind.unfinished and not unanswered:
            return False
        intents = [*left_behind.read(), *unanswered]
        head = newest()
        free = version_to_fill(intents, head)
        if head == NO_VERSION and free is not None:
            return False
        if free is not None:
            head = fill(free, [intent.hold_id for intent in intents if intent.version > head])
        left_behind.settle(intent.attempt for intent in unanswered if intent.version <= head)
        left_behind.clear()
        return True

    def stamp(self, write_id: str | None = None) -> dict[str, Any]:
        """Return the stamp of a commit in this block (``commitInfo.sluice``).

        Args:
            write_id: of the attempt to which the commit belongs; None if it belongs to none.

        """
        attempt, stamps_note = self._attempts.get(write_id or "", (None, False))
        note = attempt.note if attempt is not None and stamps_note else {}
        return stamp_of(self.hold, {**note, **self.metadata}, write_id=write_id, fills=self._fills)
