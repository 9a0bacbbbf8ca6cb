"""HBase's rules of reading in plain Python, and random histories of cells."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from tests.support.deliveries import AWKWARD_TEXTS


class Cell(NamedTuple):
    """One mutation, as a file of cells has it."""

    row: str
    family: str
    qualifier: str
    timestamp: int
    type: str
    value: str | None


SCHEMA = "row string, family string, qualifier string, timestamp long, type string, value string"
PUTS, FAMILIES, QUALIFIERS, MOMENTS = 0.6, ("d", "m"), ("a", "b"), len(AWKWARD_TEXTS)
TYPES = ("Delete", "DeleteColumn", "DeleteFamily", "DeleteFamilyVersion")


def hbase_shows(cells: Iterable[Cell]) -> dict[str, dict[str, str]]:
    """Return the values that a reader sees, by row and ``family:qualifier``."""
    of_row: dict[str, set[Cell]] = defaultdict(set)
    for cell in cells:
        of_row[cell.row].add(cell)
    versions: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for row, known in of_row.items():
        for cell in known:
            if cell.type == "Put" and not any(hides(other, cell) for other in known):
                versions[row, f"{cell.family}:{cell.qualifier}"].append(cell)
    shown: dict[str, dict[str, str]] = defaultdict(dict)
    for (row, column), seen in versions.items():
        shown[row][column] = str(max(seen, key=lambda cell: cell.timestamp).value)
    return dict(shown)


def hides(delete: Cell, put: Cell) -> bool:
    """Tell whether a delete hides a Put of its row."""
    if delete.type == "Put" or delete.family != put.family:
        return False
    if delete.type in ("Delete", "DeleteColumn") and delete.qualifier != put.qualifier:
        return False
    if delete.type in ("Delete", "DeleteFamilyVersion"):
        return delete.timestamp == put.timestamp
    return delete.timestamp >= put.timestamp


def histories(seed: int, number: int) -> list[Cell]:
    """Return the cells of many short histories, each of a row of its own, with few timestamps so that they meet."""
    chance = random.Random(seed)
    cells: set[Cell] = set()
    for history in range(number):
        for _ in range(chance.randint(2, 9)):
            kind = "Put" if chance.random() < PUTS else chance.choice(TYPES)
            family, qualifier = chance.choice(FAMILIES), chance.choice(QUALIFIERS)
            at = chance.randrange(MOMENTS)
            # One value for one timestamp: which of two would count, the cells alone do not tell.
            value = AWKWARD_TEXTS[at] if kind == "Put" else None
            named = "" if "Family" in kind else qualifier
            cells.add(Cell(f"r{history:05}", family, named, at, kind, value))
    return sorted(cells, key=repr)
