"""An append at the gate that a holder of the lock may commit together with its own (a group commit)."""

from __future__ import annotations

import logging
import time

from lock_manager import SluiceError
from lock_manager.coordinator import Offer
from lock_manager.deadline import Deadline
from lock_manager.guard.group_commit import OfferedAppend
from lock_manager.guard.ticket import Ticket
from writer_jobs.commit.execution import Execution
from writer_jobs.commit.lock_target import job_note
from writer_jobs.delta.table_log import Commit
from writer_jobs.errors import CommitUnknownError, StorageError, TableError

log = logging.getLogger(__name__)

_RESOLVE_SECONDS = 20.0
"""Time to find out whether a holder has committed an offer, in seconds: longer than the repeated puts of a version."""
_POLL_SECONDS = 0.2


class OfferedWrite:
    """The offer of one write, and its outcome.

    Attributes:
        is_unresolved: Whether a holder may have committed the offer, or may still commit it.

    """

    def __init__(self, execution: Execution, ticket: Ticket) -> None:
        self.is_unresolved = False
        self._execution = execution
        self._context = execution.context
        self._ticket = ticket
        self._offer: Offer | None = None

    def make_offer(self) -> Offer | None:
        """Return the offer of the waiting commit; None if no holder may make that commit."""
        if self._ticket.offer is None:
            return None
        attempt, context = self._ticket.attempt, self._context
        append = OfferedAppend.of(self._ticket.offer, attempt, job_note(context.spark, context.manager))
        self._offer = Offer(attempt.write_id, append.data())
        self.is_unresolved = True
        return self._offer

    def resolve(self, problem: BaseException) -> BaseException | None:
        """Find out whether a holder has committed the offer, after the wait for the lock or the commit has failed.

        Returns:
            None if a holder has committed it; ``problem`` if no holder has or will; CommitUnknownError if that is not
            known. An exception that interrupts this method is returned, too.

        """
        ticket = self._ticket
        if isinstance(problem, CommitUnknownError):
            return problem
        if self._offer is None or ticket.block is not None or ticket.committed is not None:
            # The write has made no offer; or it got the lock, and looks for its commit itself.
            self.is_unresolved = False
        try:
            commit = self._find(self._offer) if self._offer is not None and self.is_unresolved else None
        except SluiceError as error:
            if isinstance(problem, SluiceError):
                error.__cause__ = problem
                return error
            problem.add_note(str(error))
            return problem
        except BaseException as interrupt:  # noqa: BLE001 (raised when the write has ended)
            return interrupt
        self.is_unresolved = False
        if commit is not None:
            ticket.record_member(commit.version, commit.metrics)
        return None if ticket.is_member and isinstance(problem, SluiceError) else problem

    def _find(self, offer: Offer) -> Commit | None:
        """Return the commit of the offer; None if no holder has or will commit it.

        Raises:
            CommitUnknownError: A holder may still commit it, or the log cannot be read.

        """
        context, deadline = self._context, Deadline(_RESOLVE_SECONDS)
        while True:
            may_be_committed = self._may_be_committed(offer, deadline)
            try:
                # After the look at the queue and the intents: a commit that was made before it is in the log.
                commit, _ = context.log.find_commit(offer.write_id, after=self._ticket.checked_version, guarded=True)
            except (StorageError, TableError) as error:
                raise self._unknown(str(error)) from error
            if commit is not None or not may_be_committed:
                return commit
            if deadline.remaining() == 0:
                raise self._unknown("another writer may still commit it together with its own rows")
            time.sleep(_POLL_SECONDS)

    def _may_be_committed(self, offer: Offer, deadline: Deadline) -> bool:
        try:
            return self._context.manager.is_offered(self._context.table, offer, max(1.0, deadline.remaining()))
        except SluiceError as error:
            log.info("whether a holder may commit a write to %s is not known: %s", self._context.table, error)
            return True

    def _unknown(self, reason: str) -> CommitUnknownError:
        return CommitUnknownError(table=self._context.table, reason=reason, commit_id=self._execution.write_id)
