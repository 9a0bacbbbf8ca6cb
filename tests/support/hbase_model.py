"""HBase's read semantics in plain Python, and random histories of cells."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from tests.support.deliveries import AWKWARD_TEXTS


class Cell(NamedTuple):
    """One mutation in a file of cells."""

    row: str
    family: str
    qualifier: str
    timestamp: int
    type: str
    value: str | None


SCHEMA = "row string, family string, qualifier string, timestamp long, type string, value string"
PUT_SHARE, FAMILIES, QUALIFIERS, TIMESTAMPS = 0.6, ("d", "m"), ("a", "b"), len(AWKWARD_TEXTS)
DELETE_TYPES = ("Delete", "DeleteColumn", "DeleteFamily", "DeleteFamilyVersion")


def values_in_hbase(cells: Iterable[Cell], single_version_families: Collection[str] = ()) -> dict[str, dict[str, str]]:
    """Return the values that a reader gets, by row and ``family:qualifier``.

    In the families with one version, an older Put is removed before any delete is applied.
    """
    cells_by_row: dict[str, set[Cell]] = defaultdict(set)
    for cell in cells:
        cells_by_row[cell.row].add(cell)
    puts: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for row, row_cells in cells_by_row.items():
        newest: dict[tuple[str, str], int] = {}
        for put in row_cells:
            if put.type == "Put" and put.family in single_version_families:
                column = put.family, put.qualifier
                newest[column] = max(newest.get(column, 0), put.timestamp)
        for put in row_cells:
            is_removed = put.timestamp < newest.get((put.family, put.qualifier), 0)
            if put.type == "Put" and not is_removed and not any(hides(delete, put) for delete in row_cells):
                puts[row, f"{put.family}:{put.qualifier}"].append(put)
    values: dict[str, dict[str, str]] = defaultdict(dict)
    for (row, column), versions in puts.items():
        values[row][column] = str(max(versions, key=lambda put: put.timestamp).value)
    return dict(values)


def hides(delete: Cell, put: Cell) -> bool:
    """Return whether a cell is a delete that hides a Put of the same row."""
    if delete.type == "Put" or delete.family != put.family:
        return False
    if delete.type in ("Delete", "DeleteColumn") and delete.qualifier != put.qualifier:
        return False
    if delete.type in ("Delete", "DeleteFamilyVersion"):
        return delete.timestamp == put.timestamp
    return delete.timestamp >= put.timestamp


def histories(seed: int, number: int) -> list[Cell]:
    """Return the cells of random histories, one history for each row. Mutations share timestamps, because few exist."""
    generator = random.Random(seed)
    cells: set[Cell] = set()
    for history in range(number):
        for _ in range(generator.randint(2, 9)):
            cell_type = "Put" if generator.random() < PUT_SHARE else generator.choice(DELETE_TYPES)
            family, qualifier = generator.choice(FAMILIES), generator.choice(QUALIFIERS)
            timestamp = generator.randrange(TIMESTAMPS)
            # Each timestamp has one value, because HBase does not define which of two values counts.
            value = AWKWARD_TEXTS[timestamp] if cell_type == "Put" else None
            cell_qualifier = "" if "Family" in cell_type else qualifier
            cells.add(Cell(f"r{history:05}", family, cell_qualifier, timestamp, cell_type, value))
    return sorted(cells, key=repr)
