"""The thread that deletes contenders of failed acquires, for as long as it takes, and empty znodes of partitions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

from kazoo.exceptions import NoNodeError

from lock_manager.deadline import Deadline
from lock_manager.errors import ClosedError, EnsembleRefusedError, EnsembleUnavailableError
from lock_manager.zookeeper.asking import UNANSWERED
from lock_manager.zookeeper.empty_znodes import EmptyZnodes
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.znodes import contender_node, is_of_hold

log = logging.getLogger(__name__)

ABANDON_SECONDS = 2.0
"""How long a failed acquire waits for its contender to be gone before it leaves the rest to :class:`Cleanup`."""

_RETRY_SECONDS = 1.0
"""How soon what did not answer is asked again, if the connection's state does not change before."""


class Cleanup:
    """Deletes the contenders of acquires that failed, for as long as it takes.

    An acquire that fails hands its contenders over at once. A background thread deletes them, and tries again after
    each reconnection, until the ensemble confirms that they or their session are gone. If the ensemble refuses, the
    thread gives the session up, and the contenders end with it: a contender that stays would block its table.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._empty_znodes = EmptyZnodes(session)
        self._wanted: dict[str, tuple[Sequence[str], threading.Event]] = {}
        self._changed = threading.Condition()
        self._fresh = False
        self._thread: threading.Thread | None = None

    def discard(self, nodes: Sequence[str], hold_id: str, wait_seconds: float) -> bool:
        """Remove every contender of a hold from these nodes; tell whether it was done in time."""
        if self._session.closed:
            return True
        done = threading.Event()
        with self._changed:
            self._wanted[hold_id] = (nodes, done)
            self._fresh = True
            self._rouse()
        return done.wait(wait_seconds)

    def left(self, nodes: Sequence[str]) -> None:
        """Take note that queues were left, so that those of partitions are removed when nobody uses them any more."""
        with self._changed:
            if self._empty_znodes.used(nodes):
                self._rouse()

    def close(self) -> None:
        """Remove empty queues that were used; to be called while the session still stands. Takes a second at most."""
        self._empty_znodes.remove_all()

    def _rouse(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sluice-cleanup", daemon=True)
            self._session.add_waker(self._wake)
            self._thread.start()
        self._changed.notify()

    def _wake(self) -> None:
        # Called in kazoo's thread. The condition is never held across a request, so this does not wait for one.
        with self._changed:
            self._fresh = True
            self._changed.notify()

    def _run(self) -> None:
        while not self._session.closed:
            with self._changed:
                wanted, self._fresh = dict(self._wanted), False
            for hold_id, (nodes, done) in wanted.items():
                try:
                    # In the order of the request, a table before its partitions: whoever gets a partition then finds
                    # its last holder gone from the table's queue, and takes that one's intent for left behind.
                    gone = all(self._remove(node, hold_id) for node in nodes)
                except Exception:  # whatever it was, the others' contenders must still go
                    log.exception("could not remove the contender %s of %s", hold_id, ", ".join(nodes))
                    gone = False
                if gone:
                    with self._changed:
                        self._wanted.pop(hold_id, None)
                        self._empty_znodes.used(nodes)
                    done.set()
            try:
                self._empty_znodes.remove_due()
            except Exception:  # likewise
                log.exception("could not remove empty partitions")
            with self._changed:
                if not self._fresh and not self._session.closed:
                    # What did not answer is asked again when the state changes, or soon.
                    self._changed.wait(_RETRY_SECONDS if self._wanted else self._empty_znodes.pause())
        with self._changed:
            for _, done in self._wanted.values():
                done.set()

    def _remove(self, node: str, hold_id: str) -> bool:
        deadline = Deadline(ABANDON_SECONDS)
        try:
            self._session.ready(deadline)
            client = self._session.client
            # A create of ours may be known to a server that the one we talk to lags behind.
            self._session.wait(client.sync_async(node), deadline)
            for name in self._session.wait(client.get_children_async(node), deadline):
                if is_of_hold(name, hold_id):
                    with suppress(NoNodeError):
                        self._session.wait(client.delete_async(contender_node(node, name)), deadline)
        except (NoNodeError, ClosedError):
            return True
        except (*UNANSWERED, EnsembleUnavailableError):
            return False
        except EnsembleRefusedError as error:
            self._session.renew(f"a contender could not be removed from {node}: {error}")
        return True
