"""The agent of a driver, which waits at one step of a commit: ``python stopping_agent.py FOLDER``.

A test names the step in ``FOLDER/stop-at``. The agent renames this file to ``FOLDER/stopped`` when it reaches the step,
and waits until that file is removed. The steps are ``turn`` (before the answer that the commit has its lock),
``commit`` (before the permission for the commit), ``allowed`` (after it) and ``outcome`` (before the agent knows the
outcome of the put). While ``FOLDER/unprotected`` exists, the agent allows each commit without a check of its hold.
If ``FOLDER/answer-seconds`` exists when the agent starts, the driver waits that number of seconds for each answer.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lock_manager import agent
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.zookeeper.held_lock import HeldLock

FOLDER = Path(sys.argv[1])


class StoppingGuard(CommitGuard):
    """A commit guard that stops at a step."""

    def check(self, request: str) -> str:
        kind = json.loads(request)["kind"]
        if kind in ("commit", "outcome"):
            stop(kind)
        answer = super().check(request)
        if kind == "commit":
            stop("allowed")
        if kind == "turn" and json.loads(answer).get("turn"):
            stop(kind)
        return answer


def stop(step: str) -> None:
    order, stopped = FOLDER / "stop-at", FOLDER / "stopped"
    if order.exists() and order.read_text() == step:
        order.rename(stopped)
        while stopped.exists():
            time.sleep(0.01)


def intend(hold: HeldLock, version: int, **arguments: Any) -> Mapping[str, str]:
    return {} if (FOLDER / "unprotected").exists() else checked_intend(hold, version, **arguments)


if __name__ == "__main__":
    checked_intend = HeldLock.intend
    HeldLock.intend = intend  # type: ignore[method-assign]
    agent.CommitGuard = StoppingGuard  # type: ignore[misc]
    with suppress(FileNotFoundError):
        agent.ANSWER_SECONDS = int((FOLDER / "answer-seconds").read_text())
    sys.exit(agent.main())
