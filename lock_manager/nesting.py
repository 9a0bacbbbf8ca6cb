"""The rule on nested acquires, over all lock managers of this process.

A thread that holds a lock and waits for another can be part of a deadlock. One rule prevents this in each *ensemble*: a
thread may acquire again the locks that it already holds. It may wait only for tables whose canonical URIs sort
after those of all tables that it holds. So no two threads wait for each other. Managers of one ensemble count as one,
however their host lists are spelled: the UUID at the lock root identifies the ensemble. Different lock roots and
ensembles are unrelated.

The rule does not cover:

* Two ensembles, or two lock roots of one: there is no order between them. A thread that holds a table in the first and
  waits in the second may wait for a thread that does the reverse, until the deadline of one of the two.
* Threads that wait for each other by other means: a thread may hold a table and join a thread that requests the same
  table. A hold counts for the thread that acquired it, even if another thread works under it.
* An ensemble that was restored from a copy of another ensemble. It has the same UUID and counts as the same ensemble.
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


class HoldRegistry:
    """The holds of all managers of this process, in the order of their acquisition; thread-safe.

    It has weak references only. The manager that acquired a hold has the strong reference.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Remove all holds. A forked child calls this, because its threads hold no lock."""
        self._lock = threading.Lock()
        self._holds: weakref.WeakValueDictionary[str, Hold] = weakref.WeakValueDictionary()

    def add(self, hold: Hold) -> None:
        """Add a hold for ``hold.thread``."""
        with self._lock:
            self._holds[hold.hold_id] = hold

    def remove(self, hold: Hold) -> None:
        """Remove a hold that was released, or whose manager was closed."""
        with self._lock:
            self._holds.pop(hold.hold_id, None)

    def of(self, thread: threading.Thread) -> list[Hold]:
        """Return the holds of a thread in every ensemble, including lost ones that were not released."""
        with self._lock:
            holds = [reference() for reference in self._holds.valuerefs()]
        return [hold for hold in holds if hold is not None and hold.thread is thread]


#: The holds of this process, of every manager.
REGISTRY = HoldRegistry()
os.register_at_fork(after_in_child=REGISTRY.reset)


def find_covering_hold(holds: Sequence[_H], request: Mapping[str, TableScope]) -> _H | None:
    """Return the hold that covers a request; None if a new hold is needed.

    ``holds`` are the holds of this thread in the ensemble of the request.

    Raises:
        LockOrderError: Waiting for the request could deadlock with a hold of the thread.

    """
    for hold in holds:
        if hold.covers(request):
            return hold
    for hold in holds:
        for uri, scope in request.items():
            if uri in hold.scope:
                raise LockOrderError(_overlap_message(hold.scope[uri], scope), resource=uri)
            if max(hold.scope) > uri:
                raise LockOrderError(
                    f"this thread holds {max(hold.scope)} and asks for {uri}; another thread may hold {uri} and ask "
                    f"for {max(hold.scope)}: acquire both at once (acquire_all), or {uri} first",
                    resource=uri,
                )
    return None


def _overlap_message(held: TableScope, requested: TableScope) -> str:
    if held.covers(requested):
        return (
            f"this thread already holds {requested.table.uri} and asks for it together with other tables: ask for the "
            "other tables only, or release first and acquire all of them at once (acquire_all)"
        )
    if held.shared and not requested.shared:
        return (
            f"this thread holds a shared lock on {held} and asks for an exclusive lock on {requested}: two threads "
            "that do so would wait for each other; acquire the exclusive lock from the start, or release first"
        )
    return (
        f"this thread holds {held} and asks for {requested}: two threads that do so may wait for each other; acquire "
        "all of it at once, or release first"
    )
