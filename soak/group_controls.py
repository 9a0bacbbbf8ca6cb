"""The protections of group commits that a negative control can leave out (:class:`soak.controls.Protection`).

Each replaces one function of the product in a writer process. The product does not contain these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lock_manager import ZookeeperLockManager
from lock_manager.coordinator import Offer
from lock_manager.deadline import Deadline
from lock_manager.errors import ContenderGoneError
from lock_manager.guard import commit_guard, ticket
from lock_manager.guard.group_commit import GroupTerms, OfferedAppend, members_of
from lock_manager.intents import Intent
from lock_manager.zookeeper.hold_contenders import HoldContenders
from lock_manager.zookeeper.hold_intents import HoldIntents
from lock_manager.zookeeper.queue import Acquisition
from soak.controls import Protection
from writer_jobs.commit.execution import WriteThread
from writer_jobs.commit.gate import StagedWrite
from writer_jobs.commit.offered_write import OfferedWrite
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.table_log import Commit
from writer_jobs.errors import CommitUnknownError

_SLOW_TURN_SECONDS = 30.0


class GroupWriter(Protocol):
    """The writer process (:class:`soak.spark_worker.SparkWorker`)."""

    def reach(self, point: str) -> None:
        """Stop at this point if a fault requests it."""

    def make_groups(self, *, enabled: bool) -> None:
        """Change the setting ``spark.sluice.groupCommits``."""


@dataclass(frozen=True)
class GroupControl:
    """A protection of group commits.

    Attributes:
        description: Behaviour of a writer without it.
        breaks: At least one of these invariants breaks without it.
        leave_out: Replaces the function in this process.
        prepare: Lets the history occur that needs the protection. No invariant breaks by it alone.

    """

    description: str
    breaks: frozenset[str]
    leave_out: Callable[[GroupWriter], None]
    prepare: Callable[[GroupWriter], None] = lambda _: None


def add_look_point(writer: GroupWriter) -> None:
    """Let a member whose wait has ended come to the point ``looked`` each time before it reads the intents."""
    real_ask = OfferedWrite._may_be_committed  # noqa: SLF001

    def ask(self: OfferedWrite, offer: Offer, deadline: Deadline) -> bool:
        writer.reach("looked")
        return real_ask(self, offer, deadline)

    _replace(OfferedWrite, "_may_be_committed", ask)


def _name_no_members(_: GroupWriter) -> None:
    real_data = HoldIntents._data  # noqa: SLF001
    _replace(HoldIntents, "_data", lambda self, intent, _: real_data(self, intent, {}))


def _check_no_members(_: GroupWriter) -> None:
    real_check = HoldContenders.send_check

    def check(self: HoldContenders, *arguments: Any, **options: Any) -> Any:
        return real_check(self, *arguments, **{**options, "members": ()})

    _replace(HoldContenders, "send_check", check)


def _keep_members_that_left(_: GroupWriter) -> None:
    real_record = HoldIntents.record

    def record(self: HoldIntents, intent: Intent, members: Mapping[str, str]) -> dict[str, str]:
        real_record(self, intent, members)
        return dict(members)

    _replace(HoldIntents, "record", record)


def _ask_nobody(_: GroupWriter) -> None:
    _replace(ZookeeperLockManager, "is_offered", lambda *_: False)


def _read_the_log_first(_: GroupWriter) -> None:
    """Read the log before the intents, and use that result after them."""
    real_ask, real_find = OfferedWrite._may_be_committed, OfferedWrite._find  # noqa: SLF001
    commits: list[Commit | None] = []

    def ask(self: OfferedWrite, offer: Offer, deadline: Deadline) -> bool:
        commits.append(real_find(self, offer))
        return real_ask(self, offer, deadline)

    def find(self: OfferedWrite, offer: Offer) -> Commit | None:
        return commits.pop() if commits else real_find(self, offer)

    _replace(OfferedWrite, "_may_be_committed", ask)
    _replace(OfferedWrite, "_find", find)


def _look_for_nothing(writer: GroupWriter) -> None:
    """Turn groups off in the driver as soon as its append waits behind another writer, and on with its next write."""
    real_init, real_wait = StagedWrite.__init__, Acquisition._wait_behind  # noqa: SLF001

    def init(self: StagedWrite, *arguments: Any) -> None:
        writer.make_groups(enabled=True)
        real_init(self, *arguments)

    def wait_behind(self: Acquisition, *arguments: Any) -> bool:
        writer.make_groups(enabled=False)
        return real_wait(self, *arguments)

    _replace(StagedWrite, "__init__", init)
    _replace(Acquisition, "_wait_behind", wait_behind)


def _take_committed_offers(_: GroupWriter) -> None:
    real_terms = GroupTerms.of
    _replace(GroupTerms, "of", staticmethod(lambda request: real_terms({**request, "committed": ()})))


def _leave_out_first_offer(_: GroupWriter) -> None:
    """Leave out the first of several offers, as if it did not fit, and let members look at the log rarely.

    So the writer of the first offer holds the lock next, and the member still waits behind it.
    """
    real_choose = GroupTerms.choose

    def choose(self: GroupTerms, offers: Mapping[str, Mapping[str, Any]]) -> dict[str, OfferedAppend]:
        return real_choose(self, dict(list(offers.items())[len(offers) > 1 :]))

    _replace(GroupTerms, "choose", choose)
    _replace(ticket, "TURN_SECONDS", _SLOW_TURN_SECONDS)


def _change_members(**changes: Any) -> Callable[[GroupWriter], None]:
    def change(appends: Iterable[OfferedAppend]) -> list[dict[str, Any]]:
        return [{**member, **changes} for member in members_of(appends)]

    return lambda _: _replace(commit_guard, "members_of", change)


def _delete_files_of_unknown_commits(_: GroupWriter) -> None:
    real_conclude = StagedWrite._conclude  # noqa: SLF001

    def conclude(self: StagedWrite, thread: WriteThread, problem: BaseException | None) -> CommitResult:
        if isinstance(problem, CommitUnknownError):
            self._delete_staged_files()
        return real_conclude(self, thread, problem)

    _replace(StagedWrite, "_conclude", conclude)


def _trust_the_removal(_: GroupWriter) -> None:
    real_resolve = OfferedWrite.resolve

    def resolve(self: OfferedWrite, problem: BaseException) -> BaseException | None:
        if isinstance(problem, ContenderGoneError):
            self._ticket.record_commit(self._ticket.checked_version + 1, {}, is_member=True)
            return None
        return real_resolve(self, problem)

    _replace(OfferedWrite, "resolve", resolve)


def _replace(owner: Any, name: str, replacement: Any) -> None:
    setattr(owner, name, replacement)


def _control(description: str, breaks: str, *functions: Callable[[GroupWriter], None]) -> GroupControl:
    return GroupControl(description, frozenset(breaks.split()), *functions)


#: Protections of group commits.
GROUP_CONTROLS: Mapping[str, GroupControl] = {
    Protection.NAMED_MEMBERS: _control("the intent names no members", "I1 I2", _name_no_members),
    Protection.WAITING_MEMBERS: _control(
        "the request that stores the intent does not check that the members still wait", "I1 I2", _check_no_members
    ),
    Protection.REMAINING_MEMBERS: _control(
        "a holder puts members although the check has shown that they have left", "I1 I2", _keep_members_that_left
    ),
    Protection.MEMBER_ASKS: _control(
        "a member that has left the queue does not ask whether an intent names it", "I1 I2", _ask_nobody
    ),
    Protection.INTENTS_FIRST: _control(
        "a member that has left the queue reads the log before the intents", "I1 I2", _read_the_log_first
    ),
    Protection.MEMBER_LOOKS: _control("a member does not look for its append in its turn", "I2", _look_for_nothing),
    Protection.COMMITTED_OFFERS: _control(
        "a holder takes offers that an earlier holder has committed",
        "I2",
        _take_committed_offers,
        _leave_out_first_offer,
    ),
    Protection.MEMBER_STAMPS: _control("the stamp names only the holder", "I2", _change_members(stamp={})),
    Protection.MEMBER_ACTIONS: _control("the version has only the holder's actions", "I1", _change_members(lines=[])),
    Protection.KEPT_FILES: _control(
        "a member deletes its files although a holder may still commit them", "I1", _delete_files_of_unknown_commits
    ),
    Protection.LOG_PROVES: _control(
        "a member whose contender is gone reports success without a look at the log", "I1", _trust_the_removal
    ),
}
