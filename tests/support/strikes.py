"""Faults that a test runs itself in a soak of two writers, and the outcomes of the struck transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from soak.fault_context import PUT
from soak.faults import CLASSES
from soak.run import Soak
from tests.support.lake import require_embedded_s3

WRITER = "writer-1"
"""Name of the writer that a fault strikes by default."""
END_EVENTS = ("acknowledged", "refused", "unknown", "gave-up")
"""Events that end a transaction."""


def wait_for_commits(soak: Soak) -> Soak:
    """Wait until each writer has committed: the first commit of a JVM loads classes for seconds."""
    while len({event["worker"] for event in soak.history if event["event"] == "acknowledged"}) < len(soak.writers):
        soak.next_event()
    return soak


def strike(soak: Soak, name: str, point: str, writer: str = WRITER) -> list[dict[str, Any]]:
    """Run a fault of a writer; return the history from its start on."""
    if CLASSES[name].needs in ("gate", "lease") or point == PUT:
        require_embedded_s3(f"{name} at {point}")
    wait_until(soak, lambda: _has_new_hold(soak.history, writer))
    start = len(soak.history)
    soak.run_fault(CLASSES[name].strike(soak.context, writer, point))
    history = soak.history[start:]
    assert [event["kind"] for event in history if event["event"] == "fault"] == [name]
    return history


def wait_until(soak: Soak, condition: Callable[[], bool], within: float = 60.0) -> None:
    """Follow the history until a condition is true."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"the condition is still false after {within:g} s"
        soak.next_event()


def _has_new_hold(history: Sequence[dict[str, Any]], writer: str) -> bool:
    """Whether a writer has acquired the lock since its last outcome.

    A refused transaction reports its outcome before it releases the lock. A fault at the release would strike it still.
    """
    for event in reversed(history):
        if event.get("worker") == writer and event["event"] in ("holding", *END_EVENTS):
            return event["event"] in ("holding", "acknowledged")
    return True


def outcome(history: list[dict[str, Any]], writer: str = WRITER) -> dict[str, Any]:
    """Return the event that ends the struck transaction of a writer."""
    (fault,) = [index for index, event in enumerate(history) if event["event"] == "fault"]
    token = history[fault].get("token")
    return next(
        event for event in history[fault:]
        if event["event"] in END_EVENTS and event.get("worker") == writer and token in (None, event.get("token", token))
    )  # fmt: skip
