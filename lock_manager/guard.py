"""The commit guard's Python side: asked by the log store, at every commit, whether the lock is held.

The log store (``log_store/``, in the driver's JVM) sends one JSON object for each attempt to write a version, at the
last moment before its put, and writes only after a yes. A commit belongs to the holds to which its thread is bound:
that this process holds *some* lock on the table says nothing about whose commit it is.

Knows nothing of Spark: :mod:`writer_jobs.guarded` brings the question here.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from lock_manager.errors import (
    UNPINNING,
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LockLostError,
    LockNotHeldError,
    ResourceError,
    SluiceError,
)
from lock_manager.held import HeldLock
from lock_manager.resources import canonical_table_uri

log = logging.getLogger(__name__)

_REMEMBERED_REFUSALS = 256
_DEFINITE = frozenset({"committed", "taken", "rejected"})


def is_definite(attempt: Mapping[str, Any]) -> bool:
    """Tell whether it is known what became of an attempt, as the log store saw it (``Attempts.java``)."""
    return attempt["outcome"] in _DEFINITE


class GuardedHold:
    """A hold whose commits the guard lets pass, once it is ready for that.

    Attributes:
        hold: the hold.
        metadata: what every commit under it notes beside the hold itself (JSON values).
        passed: attempts that were let pass, by id, with the version that they may put.
        refusal: what each of its commits is refused with, whatever the ensemble says; None for most.
        new_metadata: whether a commit was let pass that says anew what the table is, its properties included, and was
            not told to drop one of them.

    """

    def __init__(self, hold: HeldLock, metadata: Mapping[str, Any]) -> None:
        self.hold = hold
        self.metadata = dict(metadata)
        self.passed: dict[str, int] = {}
        self.refusal: SluiceError | None = None
        self.new_metadata = False

    def has_ended(self, attempts: Iterable[Mapping[str, Any]]) -> bool:
        """Tell whether it is known of every attempt that was let pass that it was stored, or never will be.

        Args:
            attempts: what the log store says of them; see ``Attempts.java``.

        """
        return {each["attempt"] for each in attempts if is_definite(each)} >= self.passed.keys()

    def stamp(self) -> dict[str, Any]:
        """Return what a commit under this hold notes of it (``commitInfo.sluice``)."""
        mode = "shared" if self.hold.shared else "exclusive"
        nodes = [{"key": key, "mode": mode, "token": token} for key, token in self.hold.tokens.items()]
        return {
            **self.metadata,
            "hold": self.hold.hold_id,
            "ensemble": self.hold.ensemble_id,
            "nodes": nodes,
            "acquired_at": self.hold.acquired_at,
        }


class CommitGuard:
    """Decides on commits by the holds that it knows; one for a process.

    Attributes:
        observed: how many commits it would have refused, had the driver not been told to observe only.

    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holds: dict[str, GuardedHold] = {}
        self._refusals: OrderedDict[str, SluiceError] = OrderedDict()
        self.observed = 0

    def add(self, guarded: GuardedHold) -> None:
        """Let commits pass that belong to this hold, as long as the ensemble confirms it."""
        with self._lock:
            self._holds[guarded.hold.hold_id] = guarded

    def remove(self, guarded: GuardedHold) -> None:
        """Let none of its commits pass any more."""
        with self._lock:
            self._holds.pop(guarded.hold.hold_id, None)

    def refusal(self, attempt: str) -> SluiceError | None:
        """Return with what error an attempt was refused, if that was not long ago."""
        with self._lock:
            found = self._refusals.get(attempt)
        # A copy, for every raise adds to what it raises.
        return copy.copy(found)

    def refusal_in(self, text: str) -> SluiceError | None:
        """Return the refusal whose message ``text`` repeats: of an exception that went through Java as text."""
        with self._lock:
            return next((error for error in reversed(self._refusals.values()) if str(error) in text), None)

    def check(self, request: str) -> str:
        """Decide on one attempt; never raises. See ``CommitGuard.java`` for both objects."""
        attempt, observe = "", False
        try:
            asked = json.loads(request)
            attempt, observe = asked["attempt"], bool(asked.get("observe"))
            return json.dumps(self._check(asked))
        except SluiceError as error:
            refusal = error
        except Exception as error:  # whatever it is, the commit must not be written for it
            log.exception("the commit guard failed")
            refusal = SluiceError(f"the commit guard failed: {type(error).__name__}: {error}")
        with self._lock:
            if attempt:
                self._refusals[attempt] = refusal
            while len(self._refusals) > _REMEMBERED_REFUSALS:
                self._refusals.popitem(last=False)
            self.observed += observe
        if observe:
            log.warning("required mode would refuse (the %d. time in this driver): %s", self.observed, refusal)
        return json.dumps({"refused": type(refusal).__name__, "message": str(refusal)})

    def _check(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        version, attempt = int(asked["version"]), str(asked["attempt"])
        with self._lock:
            *others, guarded = self._covering(asked)
            if guarded.refusal is not None:
                raise guarded.refusal
            # Before the question: an answer that comes too late for the log store must leave its trace here. Under the
            # lock: nobody who has removed the hold may miss it.
            guarded.passed[attempt] = version
        try:
            for other in others:
                # While a table is moved it has two gates, and a commit needs both.
                other.hold.check()
            guarded.hold.intend(version, txn=asked.get("txn"), attempt=attempt)
        except (EnsembleUnavailableError, EnsembleRefusedError) as error:
            del guarded.passed[attempt]
            # Whether it stands is not known: to a commit that is as good as lost.
            raise LockLostError(
                resource=guarded.hold.resource, hold_id=guarded.hold.hold_id, reason=f"not confirmed: {error}"
            ) from error
        except SluiceError:
            del guarded.passed[attempt]
            raise
        if asked.get("metadata") and asked.get("operation") != UNPINNING:
            guarded.new_metadata = True
        return {"hold": guarded.hold.hold_id, "stamp": guarded.stamp()}

    def _covering(self, asked: Mapping[str, Any]) -> list[GuardedHold]:
        try:
            uri = canonical_table_uri(asked["table"])
        except ResourceError as error:
            raise LockNotHeldError(str(error), resource=str(asked["table"])) from error
        what = f"version {asked['version']} of {uri} ({asked.get('operation') or 'unknown operation'})"
        names = [name for name in (asked.get("holds") or "").split(",") if name]
        if not names:
            raise LockNotHeldError(
                f"{what} was not committed: the thread is bound to no lock; write it inside "
                "`with locked(spark, table):`, in the same thread or a pyspark.InheritableThread",
                resource=uri,
            )
        bound = [self._holds[name] for name in names if name in self._holds]
        covering = [guarded for guarded in bound if guarded.hold.resource == uri]
        if not covering:
            others = ", ".join(guarded.hold.resource for guarded in bound)
            held = f"it holds {others}" if others else "the lock to which its thread is bound was given back"
            raise LockNotHeldError(f"{what} was not committed: {held}", resource=uri)
        exclusive = [guarded for guarded in covering if not guarded.hold.shared]
        if not exclusive:
            raise LockNotHeldError(
                f"{what} was not committed: the lock is shared, and shared locks are for readers", resource=uri
            )
        return exclusive
