"""The doctor's test of a store with rivals: a round counts if all rivals send their request at the same moment."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from sluice.doctor import rivals
from sluice.doctor.finding import Verdict
from sluice.doctor.store import store_findings

RIVALS = 8


class MemoryObject:
    """A scratch object in memory that one rival creates.

    Args:
        is_ready: Whether the rival with this number reports that it is ready.

    """

    numbers = itertools.count()

    def __init__(self, is_ready: Callable[[int], bool]) -> None:
        self.location = f"memory:{next(self.numbers)}"
        self._is_ready = is_ready
        self._lock = threading.Lock()
        self._rivals = itertools.count()
        self._content: bytes | None = None

    def put(self, content: bytes, ready: Callable[[], object] = lambda: None) -> bool:
        if self._is_ready(next(self._rivals)):
            ready()
        with self._lock:
            if self._content is not None:
                return False
            self._content = content
            return True

    def read(self) -> bytes | None:
        return self._content

    def remove(self) -> None:
        self._content = None


def test_a_round_of_concurrent_rivals_counts() -> None:
    (finding,) = store_findings(lambda: MemoryObject(lambda _: True))
    assert finding.verdict is Verdict.OK
    assert f"by {RIVALS} concurrent rivals, with one winner in 8 of 8 rounds" in finding.message


@pytest.mark.parametrize("is_ready", [lambda _: False, lambda rival: rival != 0], ids=["no rival", "all but one"])
def test_a_round_in_which_rivals_do_not_meet_does_not_count(
    is_ready: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rivals, "_BARRIER_SECONDS", 0.1)
    (finding,) = store_findings(lambda: MemoryObject(is_ready))
    assert finding.verdict is Verdict.NOTE, finding
    assert f"{RIVALS} rivals never sent their requests together, in 8 rounds" in finding.message
    assert finding.message.endswith("it is not known whether it accepts two concurrent writers; try again")
