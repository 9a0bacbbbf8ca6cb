"""The object of one queue: read it, and change it by compare-and-set."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from lock_manager.deadline import Deadline
from lock_manager.errors import S3, EnsembleFormatError, EnsembleUnavailableError
from lock_manager.resources import table_key
from lock_manager.s3_lease.state import Observations, Queue, observe
from lock_manager.s3_lease.store import (
    MAX_RETRY_SECONDS,
    REQUEST_SECONDS,
    RETRY_SECONDS,
    ConflictError,
    NotModifiedError,
    ObjectStore,
    UnansweredError,
)

FOLDER = "tables/"
"""Folder of the objects, below the prefix."""

_URGENT_CONFLICTS = 10
"""Number of conflicts after which an urgent change also waits before it is repeated."""

_JITTER_SECONDS = 0.05
"""Longest pause before a change is repeated that another client's change preceded, in seconds, for each repetition."""


class QueueObject:
    """The queue of one table, as this client knows it. One thread at a time uses it; see :meth:`locked`.

    Attributes:
        key: Key of the object.
        confirmed_at: Monotonic time before the last request that returned this queue or wrote it.
        seen: This client's observations of the holders.
        was_unanswered: Whether a write of the last :meth:`update` got no answer. It may have been made.
        is_contended: Whether the last :meth:`update` failed only because other clients changed the queue before it.

    """

    def __init__(self, store: ObjectStore, uri: str) -> None:
        self.key = f"{FOLDER}{table_key(uri)}.json"
        self.confirmed_at = float("-inf")
        self.seen: Observations = {}
        self.was_unanswered = False
        self.is_contended = False
        self._store = store
        self._lock = threading.RLock()
        #: The queue and its ETag. One attribute, because :meth:`copy` reads it in another thread.
        self._stored: tuple[Queue, str | None] = (_new_queue(uri), None)
        self._is_known = False

    @property
    def queue(self) -> Queue:
        """The queue when it was last read or written; empty before."""
        return self._stored[0]

    def copy(self) -> QueueObject:
        """Return an object with the same knowledge, for another request. Does not wait for a request."""
        queue, etag = self._stored
        copied = QueueObject(self._store, queue.uri)
        copied._stored, copied._is_known, copied.seen = (queue, etag), etag is not None, self.seen
        return copied

    @contextmanager
    def locked(self, deadline: Deadline, request_name: str) -> Iterator[None]:
        """Let no other thread use this object.

        Raises:
            EnsembleUnavailableError: The request of another thread took too long.

        """
        if not self._lock.acquire(timeout=max(deadline.remaining(), REQUEST_SECONDS)):
            raise EnsembleUnavailableError(self._store.url, deadline.elapsed(), request_name, service=S3)
        try:
            yield
        finally:
            self._lock.release()

    def refresh(self, deadline: Deadline, request_name: str, *, stop: Callable[[], object] = lambda: None) -> Queue:
        """Read the queue.

        Args:
            deadline: Time limit for an answer.
            request_name: Name of the request, for the message of EnsembleUnavailableError.
            stop: Called before each request; may raise an error.

        Raises:
            EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError: The queue cannot be read.

        """

        def read() -> Queue:
            with self.locked(deadline, request_name):
                self._read()
                return self.queue

        return self._store.answered(read, deadline, request_name, stop=stop)

    def update(
        self,
        change: Callable[[Queue], Queue],
        deadline: Deadline,
        request_name: str,
        *,
        is_urgent: bool = False,
        is_forced: bool = False,
        stop: Callable[[], object] = lambda: None,
    ) -> float:
        """Change the queue.

        Args:
            change: Returns the changed queue. It is called again if another client has changed the queue, and after a
                lost reply, and returns its argument if the queue contains the change. It may raise an error.
            deadline: Time limit for an answer.
            request_name: Name of the request, for messages.
            is_urgent: Repeat the change without a pause: others wait for this client.
            is_forced: Write the queue also if it contains the change. Then an earlier request without an answer cannot
                change the queue any more.
            stop: Called before each request; may raise an error.

        Returns:
            Monotonic time at which the queue did not contain the change yet, as far as this call made it.

        Raises:
            EnsembleUnavailableError: There was no answer in time, or other clients changed the queue all the time. The
                change may be made later, unless another client changes the queue before.
            EnsembleRefusedError, EnsembleFormatError: The queue cannot be read or written.

        """
        with self.locked(deadline, request_name):
            first_sent_at: float | None = None
            self.was_unanswered = self.is_contended = False
            pause, conflicts, is_fresh = RETRY_SECONDS, 0, False
            change_id: str | None = None
            sent_at = 0.0
            while True:
                stop()
                try:
                    if not self._is_known:
                        self._read()
                        is_fresh = True
                        if self.queue.change_id == change_id:
                            # The change was made: its reply was lost, or something between here and S3 repeated it.
                            return sent_at
                    queue = change(self.queue)
                    if queue == self.queue and not is_forced:
                        if is_fresh:
                            return self.confirmed_at if first_sent_at is None else first_sent_at
                        self._is_known = False
                        continue
                    change_id, sent_at = uuid.uuid4().hex, time.monotonic()
                    first_sent_at = sent_at if first_sent_at is None else first_sent_at
                    self._write(replace(queue, change_id=change_id), sent_at)
                except ConflictError:
                    self._is_known = False
                    conflicts += 1
                    # Others wait for an urgent change. Many conflicts mean a store that refuses each condition.
                    factor = max(0, conflicts - _URGENT_CONFLICTS) if is_urgent else conflicts
                    jitter = random.uniform(0, min(MAX_RETRY_SECONDS, _JITTER_SECONDS * factor))  # noqa: S311 (no secret)
                    self.is_contended = True
                    self._store.pause(
                        jitter, deadline, request_name, f"other clients changed the queue {conflicts} times"
                    )
                    self.is_contended = False
                except UnansweredError as error:
                    self._is_known = False
                    self._store.pause(pause, deadline, request_name, str(error))
                    pause = min(2 * pause, MAX_RETRY_SECONDS)
                else:
                    return sent_at

    def _read(self) -> None:
        began = time.monotonic()
        try:
            stored = self._store.read(self.key, known_etag=self._stored[1])
        except NotModifiedError:
            self._is_known, self.confirmed_at = True, began
            self._observe()
            return
        if stored is None:
            # An operator has deleted the object. A later holder still needs a larger token.
            queue = _new_queue(self.queue.uri)
            self._stored = (replace(queue, next_token=max(queue.next_token, self.queue.next_token + 1)), None)
        else:
            try:
                self._stored = (Queue.parse(stored.data), stored.etag)
            except ValueError as error:
                raise EnsembleFormatError(f"{self._store.url}: object {self.key} cannot be read: {error}") from None
        self._is_known, self.confirmed_at = True, began
        self._observe()

    def _observe(self) -> None:
        self.seen = observe(self.seen, self.queue, time.monotonic())

    def _write(self, queue: Queue, began: float) -> None:
        try:
            etag = self._store.write(self.key, queue.data(), self._stored[1])
        except UnansweredError:
            self.was_unanswered = True
            raise
        self._stored, self.confirmed_at = (queue, etag), began
        self._observe()


def _new_queue(uri: str) -> Queue:
    """Return an empty queue. Its numbers start late enough that those of a deleted object do not occur again."""
    return Queue(uri=uri, next_token=int(time.time() * 1000))
