"""The contenders of one hold: how to ask the ensemble about them, read its answer, and delete them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from lock_manager.deadline import Deadline
from lock_manager.zookeeper.asking import failure_in
from lock_manager.zookeeper.hold_intents import HoldIntents
from lock_manager.zookeeper.request import Acquired, Node
from lock_manager.zookeeper.session import NO_ANSWER, SESSION_GONE, Session
from lock_manager.zookeeper.znodes import Mode

#: Value of :attr:`Answer.lost` when the ensemble has ended the session.
SESSION_ENDED = "its session had ended"
_CONTENDER_GONE = "its contender was gone: somebody removed it, as `sluice break` does"
_ANY_VERSION = -1


@dataclass(frozen=True)
class Answer:
    """What the ensemble has said of a hold; with nothing set: that it stands.

    Attributes:
        lost: how the hold was lost.
        refusal: what was refused, so that it is not known whether the hold stands.
        not_done: why the operation beside the question was not done: a node is there, is not there, or has changed.

    """

    lost: str | None = None
    refusal: str | None = None
    not_done: Exception | None = None


@dataclass(frozen=True)
class Deletion:
    """How the attempt to delete the contenders ended.

    Attributes:
        done: whether the ensemble said that they are gone, by us or before.
        lost: how the hold had been lost before, if it had.

    """

    done: bool
    lost: str | None = None


class OwnContenders:
    """The contenders with which a hold was acquired.

    Args:
        session: to ask through.
        acquired: what the acquire ended with.

    """

    def __init__(self, session: Session, acquired: Acquired) -> None:
        self._session = session
        self._entries = acquired.entries

    @property
    def queues(self) -> list[str]:
        """Znodes of the queues that they stand in, in the order of the request."""
        return [entry.node.path for entry in self._entries]

    @property
    def tokens(self) -> dict[str, int]:
        """Fencing token of each, by the key of its node."""
        return {entry.node.key: entry.token for entry in self._entries}

    @property
    def exclusive_keys(self) -> frozenset[str]:
        """Keys of the nodes that are held alone."""
        return frozenset(entry.node.key for entry in self._entries if entry.node.mode is Mode.EXCLUSIVE)

    def ask(self, operation: Callable[[Any], None] | None = None, data: Callable[[Node], bytes] | None = None) -> Any:
        """Send the question whether all are there, as a quorum request; return kazoo's AsyncResult.

        Args:
            operation: given the transaction, adds one operation, which is done if and only if all are there.
            data: what each is to say of itself from now on; None: what it says.

        """
        transaction = self._session.client.transaction()
        for entry in self._entries:
            transaction.check(entry.path, _ANY_VERSION)
        if operation is not None:
            operation(transaction)
        if data is not None:
            for entry in self._entries:
                transaction.set_data(entry.path, data(entry.node))
        return transaction.commit_async()

    def read(self, outcome: object, *, with_operation: bool = False) -> Answer:
        """Return what the outcome of :meth:`ask` says: a list of results, or what kazoo raised."""
        if isinstance(outcome, SESSION_GONE):
            return Answer(lost=SESSION_ENDED)
        failure = failure_in(outcome if isinstance(outcome, list) else [outcome])
        if failure is None:
            return Answer()
        if failure.index < len(self._entries) and isinstance(failure.error, NoNodeError):
            return Answer(lost=_CONTENDER_GONE)
        is_operation = with_operation and failure.index == len(self._entries)
        if is_operation and isinstance(failure.error, NodeExistsError | NoNodeError | BadVersionError):
            return Answer(not_done=failure.error)
        return Answer(refusal=type(failure.error).__name__)

    def delete(self, intents: Mapping[str, HoldIntents], deadline: Deadline, *, stood: bool) -> Deletion:
        """Delete them, and the intents with them that are settled.

        Args:
            intents: of the hold, by table.
            deadline: for the answer.
            stood: whether the hold stood, by our own clock, when its release began.

        Raises:
            EnsembleRefusedError: they may not be deleted.

        """
        unsure = False
        while True:
            try:
                answer = self._session.wait(self._send_delete(intents.values()), deadline)
                if isinstance(answer, list) and not self._is_deleted(answer, intents.values()):
                    continue
            except NoNodeError:
                # After an attempt without an answer it is most likely our own delete that was done.
                return Deletion(done=True, lost=None if unsure and stood else _CONTENDER_GONE)
            except SESSION_GONE:
                return Deletion(done=True, lost=None if unsure and stood else SESSION_ENDED)
            except NO_ANSWER:
                unsure = True
                if deadline.remaining() == 0:
                    return Deletion(done=False)
                self._session.wait_for_connection(deadline)
            else:
                return Deletion(done=True)

    def _send_delete(self, intents: Collection[HoldIntents]) -> Any:
        settled = [each for each in intents if each.settled]
        if not settled and len(self._entries) == 1:
            return self._session.client.delete_async(self._entries[0].path)
        transaction = self._session.client.transaction()
        for entry in reversed(self._entries):
            transaction.delete(entry.path)
        for each in settled:
            each.forget_in(transaction)
        return transaction.commit_async()

    def _is_deleted(self, answer: list[Any], intents: Collection[HoldIntents]) -> bool:
        """Tell whether a transaction did what was asked for; False to ask again without the intents."""
        failure = failure_in(answer)
        if failure is None:
            return True
        if failure.index < len(self._entries):
            self._session.raise_known(failure.error)
        for each in intents:
            if each.settled:
                each.are_gone()
        return False
