"""``stream.py`` under spark-submit with all flights of a year, killed twenty times at random."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from deltalake import DeltaTable

from sluice.demo.flights import find_flights
from tests.support.submitted_job import SubmittedJob
from writer_jobs import stream as stream_module

pytestmark = [pytest.mark.spark, pytest.mark.soak]

STREAM = Path(stream_module.__file__)
SEED, FILES, KILLS = 20261124, 60, 20
KEY = ["time_hour", "carrier", "flight"]
ALLOWED_LATENESS = timedelta(days=20)


def arrivals() -> list[pd.DataFrame]:
    """Return the rows of each file: flights by hour, some of them late or repeated.

    5 % arrive one file late, 1 % in a random later file, 1 % are repeated, and 2 % have a second version.
    """
    chance = random.Random(SEED)
    flights = pd.read_csv(find_flights(), usecols=[*KEY, "month", "origin", "dest", "arr_delay"])
    flights["time_hour"] = pd.to_datetime(flights["time_hour"], utc=True).astype("datetime64[us, UTC]")
    flights["version"] = 1
    flights = flights.sort_values(KEY, ignore_index=True)
    file_numbers = (flights.index * FILES // len(flights)).to_series(index=flights.index)
    share = pd.Series([chance.random() for _ in range(len(flights))])
    file_numbers = file_numbers.mask(share < 0.05, (file_numbers + 1).clip(upper=FILES - 1))
    later_file_numbers = pd.Series([chance.randrange(number, FILES) for number in file_numbers])
    file_numbers = file_numbers.mask(share.between(0.05, 0.06), later_file_numbers)
    is_repeated, is_changed = share.between(0.06, 0.07), share.between(0.07, 0.09)
    second_versions = flights[is_changed].assign(version=2, arr_delay=999.0)
    rows = pd.concat([flights, flights[is_repeated], second_versions])
    files = pd.concat([file_numbers, later_file_numbers[is_repeated], later_file_numbers[is_changed]])
    return [rows[files == number].sample(frac=1, random_state=number) for number in range(FILES)]


def expected_tables(batches: list[pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the expected rows of the table and of the table of late rows."""
    newest_time, batches_in_time, late_batches = None, [], []
    for batch in batches:
        is_too_late = (
            batch["time_hour"] < newest_time - ALLOWED_LATENESS
            if newest_time is not None
            else pd.Series(False, index=batch.index)
        )
        batches_in_time.append(batch[~is_too_late])
        # A late row is not stored if the table has its version or a newer one.
        stored_versions = pd.concat(batches_in_time).groupby(KEY)["version"].max().rename("stored")
        candidates = batch[is_too_late].join(stored_versions, on=KEY)
        late_batches.append(candidates[~(candidates["stored"] >= candidates["version"])].drop(columns="stored"))
        newest_time = max(time for time in (newest_time, batch["time_hour"].max()) if time is not None)
    rows = pd.concat(batches_in_time).sort_values("version", kind="stable").drop_duplicates(KEY, keep="last")
    return rows, pd.concat(late_batches)


def has_rows(table: Path, expected: pd.DataFrame) -> bool:
    """Return whether a table has exactly these rows."""
    columns = [*KEY, "month", "origin", "dest", "arr_delay", "version"]
    stored = DeltaTable(table).to_pyarrow_table(columns=columns).to_pandas()
    stored, expected = (
        rows.astype({"month": "int64", "version": "int64", "flight": "int64", "arr_delay": "float64"})
        .astype({"time_hour": "datetime64[us, UTC]"})[columns]
        .sort_values([*KEY, "version"], ignore_index=True)
        for rows in (stored, expected)
    )
    return stored.equals(expected.astype(stored.dtypes.to_dict()))


def test_a_stream_killed_at_random_inserts_each_flight_once(
    submit: Callable[..., SubmittedJob], tmp_path: Path, eventually: Callable[..., None]
) -> None:
    chance, table, landing = random.Random(SEED), tmp_path / "table", tmp_path / "landing"
    landing.mkdir()
    batches = arrivals()
    for number, batch in enumerate(batches):
        file = landing / f"{number:03}.parquet"
        batch.to_parquet(file, index=False, coerce_timestamps="us")
        os.utime(file, (1_700_000_000 + number,) * 2)

    def start(trigger: str) -> SubmittedJob:
        return submit(
            STREAM, "--table", table, "--partition-by", "month", "--source", landing, "--keys", "carrier,flight",
            "--event-time", "time_hour", "--sequence-by", "version",
            "--allowed-lateness", f"{ALLOWED_LATENESS.days} days", "--watermark-delay", "1 day",
            "--trigger", trigger, "--max-files-per-batch", 1,
            "--checkpoint", tmp_path / "checkpoint", "--lock-timeout", 60,
        )  # fmt: skip

    applied_batches: dict[int, dict[str, Any]] = {}
    for _ in range(KILLS):
        job = start("1 second")
        eventually(lambda job=job: any(event["event"] == "holding" for event in job.events), within=240, label="a lock")
        time.sleep(chance.random() * 6)
        job.kill()
        applied_batches |= {line["batch"]: line for line in job.commits}
    job = start("available-now")
    assert job.wait(580) == 0, job.error
    applied_batches |= {line["batch"]: line for line in job.commits}
    rows, late_rows = expected_tables(batches)
    assert has_rows(table, rows)
    assert has_rows(Path(f"{table}_late"), late_rows)
    assert len(late_rows) > 1000
    assert sorted(applied_batches) == list(range(FILES))
