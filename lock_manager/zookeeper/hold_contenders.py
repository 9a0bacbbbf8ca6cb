"""The contenders of one hold: check that they exist, interpret the response, and delete them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from lock_manager.deadline import Deadline
from lock_manager.errors import ClosedError, EnsembleRefusedError
from lock_manager.zookeeper.hold_intents import HoldIntents
from lock_manager.zookeeper.offers import read_offers
from lock_manager.zookeeper.request import ANY_VERSION, AcquireResult, RequestedQueue, checking_transaction
from lock_manager.zookeeper.responses import failure_in
from lock_manager.zookeeper.session import EXPECTED_ERRORS, NO_ANSWER, SESSION_GONE, Session
from lock_manager.zookeeper.znodes import Mode

#: Value of :attr:`CheckResult.lost` when the ensemble has ended the session.
SESSION_ENDED = "its session had ended"
_CONTENDER_GONE = "its contender was gone: another client removed it, as `sluice break` does"


@dataclass(frozen=True)
class CheckResult:
    """The result of checking or deleting a hold's contenders.

    If all attributes are None, the hold stands, or stood until the deletion.

    Attributes:
        lost: How the hold was lost.
        refusal: The ensemble's refusal, after which it is unknown whether the hold stands.
        operation_error: Error of the additional operation in the transaction: its znode exists, is missing or has
            changed.
        missing_member: The first of the waiting contenders that has left the queue. Nothing was executed.

    """

    lost: str | None = None
    refusal: str | None = None
    operation_error: Exception | None = None
    missing_member: str | None = None


class HoldContenders:
    """The contenders of one hold, from the result of its acquire."""

    def __init__(self, session: Session, acquire_result: AcquireResult) -> None:
        self._session = session
        self._entries = acquire_result.entries

    @property
    def queues(self) -> list[str]:
        """Znodes of the contenders' queues, in the order of the request."""
        return [entry.queue.path for entry in self._entries]

    def send_check(
        self,
        operation: Callable[[Any], None] | None = None,
        data: Callable[[RequestedQueue], bytes] | None = None,
        members: Collection[str] = (),
    ) -> Any:
        """Send a quorum request that checks whether all contenders exist; return kazoo's AsyncResult.

        ``operation`` adds one operation to the transaction, which is executed only if all contenders exist.
        ``data`` returns the new data of a contender; without it the data stays.
        ``members`` are the paths of waiting contenders, which must exist, too.
        """
        transaction = checking_transaction(self._session.client, self._entries)
        if operation is not None:
            operation(transaction)
        for member in members:
            transaction.check(member, ANY_VERSION)
        if data is not None:
            for entry in self._entries:
                transaction.set_data(entry.path, data(entry.queue))
        return transaction.commit_async()

    def read_offers(self, deadline: Deadline) -> dict[str, Mapping[str, Any]]:
        """Return the offers behind this hold, see :meth:`HeldLock.offers`; none if they cannot be read soon."""
        if len(self._entries) != 1 or self._entries[0].queue.mode is not Mode.EXCLUSIVE:
            return {}
        entry = self._entries[0]
        try:
            return read_offers(self._session, entry.queue.path, entry.contender, deadline)
        except (*EXPECTED_ERRORS, EnsembleRefusedError):
            return {}

    def delete_members(self, members: Iterable[str]) -> None:
        """Send requests that delete waiting contenders, and do not wait for the responses."""
        with suppress(*EXPECTED_ERRORS, ClosedError):
            for member in members:
                self._session.client.delete_async(member)

    def interpret(self, outcome: object, *, with_operation: bool = False, members: Sequence[str] = ()) -> CheckResult:
        """Interpret the outcome of :meth:`send_check`: a list of results, or kazoo's exception."""
        if isinstance(outcome, SESSION_GONE):
            return CheckResult(lost=SESSION_ENDED)
        failure = failure_in(outcome if isinstance(outcome, list) else [outcome])
        if failure is None:
            return CheckResult()
        if failure.index < len(self._entries) and isinstance(failure.error, NoNodeError):
            return CheckResult(lost=_CONTENDER_GONE)
        is_operation = with_operation and failure.index == len(self._entries)
        if is_operation and isinstance(failure.error, NodeExistsError | NoNodeError | BadVersionError):
            return CheckResult(operation_error=failure.error)
        member_index = failure.index - len(self._entries) - with_operation
        if 0 <= member_index < len(members) and isinstance(failure.error, NoNodeError):
            return CheckResult(missing_member=members[member_index])
        return CheckResult(refusal=type(failure.error).__name__)

    def delete(self, intents: Collection[HoldIntents], deadline: Deadline, *, was_proven: bool) -> CheckResult | None:
        """Delete the contenders, together with the settled intents of the hold.

        ``was_proven`` is :attr:`HoldState.is_proven` at the beginning of the release.

        Returns:
            A result whose ``lost`` is set if the hold was lost before the deletion; None if the ensemble did not
            confirm the deletion in time.

        Raises:
            EnsembleRefusedError: The ensemble refused the deletion.

        """
        may_be_deleted = False
        while True:
            try:
                response = self._session.wait(self._send_delete(intents), deadline)
                if isinstance(response, list) and not self._is_deleted(response, intents):
                    continue
            except NoNodeError:
                # After an attempt without a response, that attempt has most likely deleted the contenders.
                return CheckResult(lost=None if may_be_deleted and was_proven else _CONTENDER_GONE)
            except SESSION_GONE:
                return CheckResult(lost=None if may_be_deleted and was_proven else SESSION_ENDED)
            except NO_ANSWER:
                may_be_deleted = True
                if deadline.remaining() == 0:
                    return None
                self._session.wait_for_connection(deadline)
            else:
                return CheckResult()

    def _send_delete(self, intents: Collection[HoldIntents]) -> Any:
        settled_intents = [table_intents for table_intents in intents if table_intents.settled]
        if not settled_intents and len(self._entries) == 1:
            return self._session.client.delete_async(self._entries[0].path)
        transaction = self._session.client.transaction()
        for entry in reversed(self._entries):
            transaction.delete(entry.path)
        for table_intents in settled_intents:
            table_intents.add_deletion(transaction)
        return transaction.commit_async()

    def _is_deleted(self, results: list[Any], intents: Collection[HoldIntents]) -> bool:
        """Return whether a transaction deleted the contenders; False to try again without the intents."""
        failure = failure_in(results)
        if failure is None:
            return True
        if failure.index < len(self._entries):
            self._session.raise_response_error(failure.error)
        # The deletion of an intent failed, so another client has cleared it. The next attempt deletes no intents. Those
        # on other tables stay until the next holders clear them.
        for table_intents in intents:
            if table_intents.settled:
                table_intents.record_deletion()
        return False
