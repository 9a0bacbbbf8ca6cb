"""The thread that deletes remaining contenders of acquires and holds, and the empty znodes of partitions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

from kazoo.exceptions import NoNodeError

from lock_manager.deadline import Deadline
from lock_manager.errors import ClosedError, EnsembleRefusedError, EnsembleUnavailableError
from lock_manager.zookeeper.empty_znodes import EmptyZnodes
from lock_manager.zookeeper.session import UNANSWERED, Session
from lock_manager.zookeeper.znodes import child_node, is_contender_of

log = logging.getLogger(__name__)

ABANDON_SECONDS = 2.0
"""Time that a failed acquire waits for the deletion of its contenders, and time limit of each attempt, in seconds."""

_RETRY_SECONDS = 1.0
"""Time until a request without a response is repeated, in seconds, unless the connection's state changes before."""


class Cleanup:
    """Deletes remaining contenders of failed acquires and ended holds, and the empty znodes of partitions.

    A failed acquire hands its contenders over at once. A background thread deletes them, and tries again after each
    reconnection, until the ensemble confirms that they or their session are gone. If the ensemble refuses the deletion,
    the thread replaces the session, and the old session's contenders are deleted with it. A contender that stays would
    block its table.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._empty_znodes = EmptyZnodes(session)
        #: Queues of the contenders to delete, and the event that is set after their deletion, by hold id.
        self._pending: dict[str, tuple[Sequence[str], threading.Event]] = {}
        self._changed = threading.Condition()
        self._run_now = False
        self._thread: threading.Thread | None = None

    def discard(self, queues: Sequence[str], hold_id: str, wait_seconds: float) -> bool:
        """Delete every contender of a hold from these queues; return whether they were deleted within the wait.

        Return True at once if the session is closed.
        """
        if self._session.closed:
            return True
        deleted = threading.Event()
        with self._changed:
            self._pending[hold_id] = (queues, deleted)
            self._run_now = True
            self._notify_thread()
        return deleted.wait(wait_seconds)

    def record_use(self, queues: Sequence[str]) -> None:
        """Record that a hold left these queues. Queues of partitions are removed once they are unused."""
        with self._changed:
            if self._empty_znodes.record_use(queues):
                self._notify_thread()

    def close(self) -> None:
        """Remove the empty queues of this manager, in at most a second. The session must not be closed yet."""
        self._empty_znodes.remove_all()

    def _notify_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sluice-cleanup", daemon=True)
            self._session.add_waker(self._wake)
            self._thread.start()
        self._changed.notify()

    def _wake(self) -> None:
        # Kazoo's thread calls this. The condition is never held across a request, so the call does not wait for one.
        with self._changed:
            self._run_now = True
            self._changed.notify()

    def _run(self) -> None:
        while not self._session.closed:
            with self._changed:
                pending, self._run_now = dict(self._pending), False
            for hold_id, (queues, deleted) in pending.items():
                try:
                    # In the order of the request, a table before its partitions: the next holder of a partition then
                    # sees that the previous one has left the table's queue, and treats its intent as unfinished.
                    is_gone = all(self._delete_contenders(queue, hold_id) for queue in queues)
                except Exception:  # an error must not keep the contenders of other holds
                    log.exception("could not delete the contenders of hold %s from %s", hold_id, ", ".join(queues))
                    is_gone = False
                if is_gone:
                    with self._changed:
                        self._pending.pop(hold_id, None)
                        self._empty_znodes.record_use(queues)
                    deleted.set()
            try:
                self._empty_znodes.remove_due()
            except Exception:  # an error must not end the thread
                log.exception("could not remove empty partitions")
            with self._changed:
                if not self._run_now and not self._session.closed:
                    pause = _RETRY_SECONDS if self._pending else self._empty_znodes.seconds_until_due()
                    self._changed.wait(pause)
        with self._changed:
            for _, deleted in self._pending.values():
                deleted.set()

    def _delete_contenders(self, queue: str, hold_id: str) -> bool:
        deadline = Deadline(ABANDON_SECONDS)
        try:
            self._session.ensure_ready(deadline)
            client = self._session.client
            # The server of this connection may lag behind the one that executed the create.
            self._session.wait(client.sync_async(queue), deadline)
            for name in self._session.wait(client.get_children_async(queue), deadline):
                if is_contender_of(name, hold_id):
                    with suppress(NoNodeError):
                        self._session.wait(client.delete_async(child_node(queue, name)), deadline)
        except (NoNodeError, ClosedError):
            return True
        except (*UNANSWERED, EnsembleUnavailableError):
            return False
        except EnsembleRefusedError as error:
            self._session.renew(f"a contender could not be deleted from {queue}: {error}")
        return True
