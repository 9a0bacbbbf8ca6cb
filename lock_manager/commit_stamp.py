"""What a commit notes of the hold under which it was made, for writers that the commit guard does not see."""

from __future__ import annotations

import json
import uuid

from lock_manager.commit_guard import GuardedHold
from lock_manager.zookeeper.held_lock import HeldLock

STAMP = "sluice"


def commit_metadata(hold: HeldLock, *, job: str | None = None) -> dict[str, str]:
    """Return what a writer without the guard notes in its commit, so that ``sluice verify`` can check the order.

    For delta-rs: ``CommitProperties(custom_metadata=commit_metadata(hold))``. To be made anew for every commit, right
    after :meth:`HeldLock.check`: it names hold, fencing token and ensemble, and this one attempt. It is the writer's
    own word: nobody refuses the commit if the hold is lost by then. See docs/python-writers.md.

    Args:
        hold: under which the commit is made.
        job: what the writer calls itself.

    Returns:
        One key, ``sluice``, with a JSON object as text.

    """
    said = GuardedHold(hold, {"attempt": uuid.uuid4().hex, **({} if job is None else {"job": job})}).stamp()
    return {STAMP: json.dumps(said, separators=(",", ":"))}
