"""How changes arrive: in any order, cut anywhere, some again; and a process that ends in the middle."""

from __future__ import annotations

import random
from typing import TypeVar

import pytest

_ONCE = 0.7
#: Of a test that takes the ``number`` of histories: as many as fit in CI, and many.
HISTORIES = pytest.mark.parametrize("number", [500, pytest.param(20_000, marks=pytest.mark.soak)])

_T = TypeVar("_T")


class Killed(BaseException):
    """Stands for the end of the process."""


def end_of_the_process(*_: object) -> None:
    """End it."""
    raise Killed


def delivered(seed: int, changes: list[_T], batches: int) -> list[list[_T]]:
    """Return the changes in any order, cut anywhere, each at least once, many again."""
    chance = random.Random(seed)
    cut: list[list[_T]] = [[] for _ in range(batches)]
    for change in changes:
        for _ in range(1 if chance.random() < _ONCE else 3):
            cut[chance.randrange(batches)].append(change)
    for batch in cut:
        chance.shuffle(batch)
    return cut
