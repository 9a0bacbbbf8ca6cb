"""A hold as the commit guard knows it: it lets the commits of one table pass that belong to the hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from lock_manager.commit_stamp import stamp_of
from lock_manager.coordinator import Hold
from lock_manager.errors import LockNotHeldError, ResourceError, SluiceError
from lock_manager.intents import NO_VERSION, Intent, version_to_fill
from lock_manager.partitions import PartitionSchema, names_of

#: Behind a ticket's name, or a hold's: it is of partitions, and the guard has to be told what a commit touches.
OF_PARTITIONS = "*"
# Where rows get their ids: Delta gives them out again after a conflict.
OF_ANY_PARTITION = frozenset({"domainMetadata delta.rowTracking"})
#: Outcomes of a put after which nothing of it can still come (``Attempts.java``).
DEFINITE = frozenset({"committed", "taken", "rejected"})


def is_definite(attempt: Mapping[str, Any]) -> bool:
    """Tell whether it is known what became of an attempt, as the log store saw it (``Attempts.java``)."""
    return attempt["outcome"] in DEFINITE


class GuardedHold:
    """A hold whose commits to one table the guard lets pass, once it is ready for that.

    Attributes:
        hold: the hold.
        table: canonical URI; the only one of the hold by default.
        metadata: what every commit under it notes beside the hold itself (JSON values).
        schema: of the table's partitions, if the hold is of some of them.
        passed: attempts that were let pass in this block, by id, with the version that they may put.
        refusal: what each of its commits is refused with, whatever the ensemble says; None for most.
        new_metadata: whether a commit was let pass that says anew what the table is, its properties included, and was
            not told to drop one of them.

    """

    def __init__(
        self,
        hold: Hold,
        metadata: Mapping[str, Any],
        *,
        table: str | None = None,
        schema: PartitionSchema | None = None,
    ) -> None:
        self.hold = hold
        self.table = table or next(iter(hold.scope))
        self.metadata = dict(metadata)
        self.schema = schema
        self.passed: dict[str, int] = {}
        self.refusal: SluiceError | None = None
        self.new_metadata = False
        # Holds whose intents a commit fills that is being made now.
        self._fills: list[str] | None = None

    @property
    def name(self) -> str:
        """What threads are bound to: the hold's id, marked if it is not of whole tables only."""
        whole = all(scope.partitions is None for scope in self.hold.scope.values())
        return self.hold.hold_id if whole else self.hold.hold_id + OF_PARTITIONS

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
        self, unanswered: Collection[Intent], newest: Callable[[], int], fill: Callable[[int], int]
    ) -> bool:
        """Make sure that no put from before this block can still succeed: the rule of docs/concepts.md.

        That is a put of an earlier hold that left its intent unfinished, or one under this very hold without an
        answer. If such a put was of a version that is not there yet, the next version is filled with an empty commit,
        which notes whose intent it fills. Then the late put can only fail.

        Args:
            unanswered: see :meth:`unanswered`.
            newest: returns the newest version of the table, -1 if there is no table.
            fill: given a version, returns one that is there and is not older: an empty commit, or another's that was
                faster. Raises if there is none.

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
            self._fills = [intent.hold_id for intent in intents if intent.version > head]
            try:
                head = fill(free)
            finally:
                self._fills = None
        left_behind.settle(intent.attempt for intent in unanswered if intent.version <= head)
        left_behind.clear()
        return True

    def stamp(self) -> dict[str, Any]:
        """Return what a commit under this hold notes of it (``commitInfo.sluice``)."""
        return stamp_of(self.hold, self.metadata, fills=self._fills)
