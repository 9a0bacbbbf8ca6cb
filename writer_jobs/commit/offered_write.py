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

_LOOK_SECONDS = 20.0
"""Time to find out whether a holder has committed an offer, in seconds. Most puts end within a few seconds."""
_POLL_SECONDS = 0.2


class OfferedWrite:
    """The offer of one write, and its outcome.

    Attributes:
        is_unresolved: Whether a holder may have committed the offer, or may still commit it, as far as the writer
            knows. Then its files must stay.

    """

    def __init__(self, execution: Execution, ticket: Ticket) -> None:
        self.is_unresolved = False
        self._execution = execution
        self._context = execution.context
        self._ticket = ticket
        self._offer: Offer | None = None
        self._has_looked = False

    @property
    def was_made(self) -> bool:
        """Whether the write has made an offer."""
        return self._offer is not None

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
        """Find out whether a holder has committed the offer, after the wait for the lock has failed.

        A write that got the lock looks for its commit under the lock; this method then changes nothing. It looks only
        once, so a later call returns its argument, such as the exception that the first call returned.

        Returns:
            None if a holder has committed it; ``problem`` if no holder has or will; CommitUnknownError if that is not
            known. Exceptions that are no SluiceErrors are returned with a note.

        """
        ticket = self._ticket
        is_open = self.is_unresolved and not self._has_looked and ticket.block is None and ticket.committed is None
        if self._offer is not None and is_open:
            self._has_looked = True
            try:
                self._look(self._offer)
            except CommitUnknownError as error:
                if isinstance(problem, SluiceError):
                    error.__cause__ = problem
                    return error
                problem.add_note(str(error))
            except BaseException as error:  # noqa: BLE001 (raised when the write has ended)
                # Most likely Ctrl-C.
                error.add_note(str(self._unknown("the look at the log was interrupted")))
                return error
        return None if ticket.is_member and isinstance(problem, SluiceError) else problem

    def _look(self, offer: Offer) -> None:
        """Record the commit of the offer in the ticket, unless no holder has or will commit it.

        Raises:
            CommitUnknownError: A holder may still commit it, or the log cannot be read.

        """
        deadline = Deadline(_LOOK_SECONDS)
        commit = self._find(offer)
        while commit is None:
            may_be_committed = self._may_be_committed(offer, deadline)
            # After the look at the queue and the intents: a commit that was made before it is in the log.
            commit = self._find(offer)
            if commit is None and not may_be_committed:
                self.is_unresolved = False
                return
            if commit is None:
                if deadline.remaining() == 0:
                    raise self._unknown("another writer may still commit it together with its own rows")
                time.sleep(_POLL_SECONDS)
        self.is_unresolved = False
        self._ticket.record_commit(commit.version, commit.metrics, is_member=True)

    def _find(self, offer: Offer) -> Commit | None:
        try:
            after = self._ticket.checked_version
            commit, _ = self._context.log.find_commit(offer.write_id, after=after, guarded=True)
        except (StorageError, TableError) as error:
            raise self._unknown(str(error)) from error
        return commit

    def _may_be_committed(self, offer: Offer, deadline: Deadline) -> bool:
        try:
            return self._context.manager.is_offered(self._context.table, offer, max(1.0, deadline.remaining()))
        except SluiceError as error:
            log.info("whether a holder may commit a write to %s is not known: %s", self._context.table, error)
            return True

    def _unknown(self, reason: str) -> CommitUnknownError:
        return CommitUnknownError(table=self._context.table, reason=reason, commit_id=self._execution.write_id)
