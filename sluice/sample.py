"""``sluice sample``: writes a few real flights as CSV files, to try a job with."""

from __future__ import annotations

import csv
import io
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

from sluice.demo.flights import MISSING, read_flights
from sluice.errors import OutputFolderError


def write_sample(folder: Path) -> list[Path]:
    """Write ``flights-2013-MM.csv`` for three months, with a header and 30 rows each (8 KB in all); return the paths.

    The folder is created if it does not exist. A file that already has this content is not written again: a job records
    the modification times of its sources.

    Raises:
        FlightsError: The data set is not installed.
        OutputFolderError: The folder cannot be written, or contains a file of that name with other content.

    """
    paths = []
    for month, flights in islice(groupby(read_flights(), key=itemgetter("month")), 3):
        path = folder / f"flights-2013-{int(month):02}.csv"
        content = _csv_text(list(islice(flights, 30)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text(content, encoding="utf-8")
            elif path.read_bytes() != content.encode():
                raise OutputFolderError(f"{path} exists and has other content; choose another folder")
        except OSError as error:
            raise OutputFolderError(f"{path} cannot be written: {error.strerror}; choose another folder") from error
        paths.append(path)
    return paths


def _csv_text(flights: list[dict[str, str]]) -> str:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(flights[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if value == MISSING else value for name, value in row.items()} for row in flights)
    return out.getvalue()
