"""The rule on nested acquires: what each thread of this process holds, through any of its lock managers.

A thread that holds a lock and waits for another can be part of a deadlock. One rule prevents this in each *ensemble*: a
thread gets again what it already holds, and may wait only for tables that come later in the order of tables than all
that it holds. So no two threads wait for each other. Managers of one ensemble count as one, however their host lists
are spelled: the UUID at the lock root identifies the ensemble. Different lock roots and ensembles are unrelated.

What this cannot decide:

* Two ensembles, or two lock roots of one: there is no order between them. A thread that holds a table in the first and
  waits in the second may wait for one that does the reverse, until the deadline of one of the two.
* Threads that wait for each other by other means: one that holds a table and joins a thread that asks for it. A hold
  counts for the thread that acquired it, whoever works under it.
* An ensemble that was restored from a copy of another one has the UUID of that one, and counts as the same.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import TypeVar

from lock_manager.coordinator import Hold
from lock_manager.errors import LockOrderError
from lock_manager.scope import TableScope

_H = TypeVar("_H", bound=Hold)


class Registry:
    """Holds by the thread that acquired them, in the order of their acquisition; thread-safe.

    It keeps nothing alive: a hold that stands is kept by its manager's threads.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: in a forked child, whose threads hold nothing."""
        self._lock = threading.Lock()
        self._holds: weakref.WeakKeyDictionary[threading.Thread, tuple[weakref.ref[Hold], ...]]
        self._holds = weakref.WeakKeyDictionary()

    def add(self, hold: Hold) -> None:
        """Note that ``hold.thread`` has it."""
        with self._lock:
            self._holds[hold.thread] = (*self._others(hold), weakref.ref(hold))

    def remove(self, hold: Hold) -> None:
        """Note that it was released, or that its manager was closed."""
        with self._lock:
            self._holds[hold.thread] = self._others(hold)

    def of(self, thread: threading.Thread) -> list[Hold]:
        """Return what a thread has, in every ensemble; also what is lost and not given back."""
        with self._lock:
            known = self._holds.get(thread, ())
        return [hold for each in known if (hold := each()) is not None]

    def _others(self, hold: Hold) -> tuple[weakref.ref[Hold], ...]:
        return tuple(each for each in self._holds.get(hold.thread, ()) if each() not in (None, hold))


#: Of this process: the holds of its threads, whichever manager gave them.
REGISTRY = Registry()
os.register_at_fork(after_in_child=REGISTRY.reset)


def covering(held: Sequence[_H], wanted: Mapping[str, TableScope]) -> _H | None:
    """Return the hold among ``held`` that covers what is asked for; None if they have nothing to do with it.

    Args:
        held: what a thread holds in one ensemble.
        wanted: what it asks for there, by canonical URI of the table.

    Raises:
        LockOrderError: it holds something that makes the request a possible deadlock.

    """
    for hold in held:
        if hold.covers(wanted):
            return hold
    for hold in held:
        for uri in wanted:
            if uri in hold.scope and hold.scope[uri].covers(wanted[uri]):
                raise LockOrderError(
                    f"this thread holds {uri} already and asks for it together with others: ask for the others "
                    "only, or for all of them at once in the beginning",
                    resource=uri,
                )
            if uri in hold.scope:
                raise LockOrderError(_sentence_on(hold.scope[uri], wanted[uri]), resource=uri)
            if max(hold.scope) > uri:
                raise LockOrderError(
                    f"this thread holds {max(hold.scope)} and asks for {uri}, while another may hold them the "
                    f"other way round: ask for both at once (acquire_all), or for {uri} first",
                    resource=uri,
                )
    return None


def _sentence_on(has: TableScope, wanted: TableScope) -> str:
    if has.shared and not wanted.shared:
        return (
            f"this thread shares {has} and asks to have {wanted} alone: two that did so would wait for each other; "
            "ask for it alone from the start, or release first"
        )
    return (
        f"this thread holds {has} and asks for {wanted}: two that did so may wait for each other; ask for all of "
        "it at once, or release first"
    )
