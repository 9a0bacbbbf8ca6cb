"""What the doctor says of rivals: only those count who asked the store at the same moment."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from sluice.doctor import store as doctor_store
from sluice.doctor.finding import Verdict
from sluice.doctor.store import store_findings

RIVALS = 8


class Sound:
    """A scratch object in memory that one rival creates.

    Attributes:
        numbers: of the objects.
        asks: whether the rival of that turn says that it is ready.

    """

    numbers = itertools.count()

    def __init__(self) -> None:
        self.where = f"memory:{next(self.numbers)}"
        self._lock = threading.Lock()
        self._turns = itertools.count()
        self._content: bytes | None = None

    def asks(self, turn: int) -> bool:
        del turn
        return True

    def put(self, content: bytes, ready: Callable[[], object] = lambda: None) -> bool:
        if self.asks(next(self._turns)):
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


class NoneReady(Sound):
    """Its rivals ask whenever they like."""

    def asks(self, turn: int) -> bool:
        del turn
        return False


class OneLate(Sound):
    """One of its rivals does not say that it is ready, so that the others wait for it in vain."""

    def asks(self, turn: int) -> bool:
        return turn != 0


def test_rivals_who_asked_at_once_count() -> None:
    (found,) = store_findings(Sound)
    assert found.verdict is Verdict.OK
    assert f"by {RIVALS} concurrent rivals, with one winner each time, in 8 of 8 rounds" in found.message


@pytest.mark.parametrize("kind", [NoneReady, OneLate])
def test_rivals_who_did_not_ask_at_once_do_not_count(kind: type[Sound], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_store, "_BARRIER_SECONDS", 0.1)
    (found,) = store_findings(kind)
    assert found.verdict is Verdict.NOTE, found
    assert f"{RIVALS} rivals never met in 8 rounds" in found.message
    assert found.message.endswith("it is not known whether it accepts two concurrent writers; try again")
