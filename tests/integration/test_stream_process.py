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
ALLOWED = timedelta(days=20)


def arrivals() -> list[pd.DataFrame]:
    """Return flights by hour: 5 % are a file late, 1 % later, 1 % repeated, and 2 % have a second version."""
    chance = random.Random(SEED)
    flights = pd.read_csv(find_flights(), usecols=[*KEY, "month", "origin", "dest", "arr_delay"])
    flights["time_hour"] = pd.to_datetime(flights["time_hour"], utc=True).astype("datetime64[us, UTC]")
    flights["version"] = 1
    flights = flights.sort_values(KEY, ignore_index=True)
    file = (flights.index * FILES // len(flights)).to_series(index=flights.index)
    share = pd.Series([chance.random() for _ in range(len(flights))])
    file = file.mask(share < 0.05, (file + 1).clip(upper=FILES - 1))
    later_file = pd.Series([chance.randrange(number, FILES) for number in file])
    file = file.mask(share.between(0.05, 0.06), later_file)
    repeated, changed = share.between(0.06, 0.07), share.between(0.07, 0.09)
    second_versions = flights[changed].assign(version=2, arr_delay=999.0)
    rows = pd.concat([flights, flights[repeated], second_versions])
    files = pd.concat([file, later_file[repeated], later_file[changed]])
    return [rows[files == number].sample(frac=1, random_state=number) for number in range(FILES)]


def expected_tables(batches: list[pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the expected rows of the table and of the table of late rows."""
    newest, in_time, late = None, [], []
    for batch in batches:
        too_late = batch["time_hour"] < newest - ALLOWED if newest is not None else pd.Series(False, index=batch.index)
        in_time.append(batch[~too_late])
        # A late row is not stored if the table has its version or a newer one.
        stored = pd.concat(in_time).groupby(KEY)["version"].max().rename("stored")
        candidates = batch[too_late].join(stored, on=KEY)
        late.append(candidates[~(candidates["stored"] >= candidates["version"])].drop(columns="stored"))
        newest = max(time for time in (newest, batch["time_hour"].max()) if time is not None)
    rows = pd.concat(in_time).sort_values("version", kind="stable").drop_duplicates(KEY, keep="last")
    return rows, pd.concat(late)


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
            "--event-time", "time_hour", "--sequence-by", "version", "--allowed-lateness", f"{ALLOWED.days} days",
            "--watermark-delay", "1 day", "--trigger", trigger, "--max-files-per-batch", 1,
            "--checkpoint", tmp_path / "checkpoint", "--lock-timeout", 60,
        )  # fmt: skip

    applied: dict[int, dict[str, Any]] = {}
    for _ in range(KILLS):
        job = start("1 second")
        eventually(lambda job=job: any(event["event"] == "holding" for event in job.events), within=240, label="a lock")
        time.sleep(chance.random() * 6)
        job.kill()
        applied |= {line["batch"]: line for line in job.commits}
    job = start("available-now")
    assert job.wait(580) == 0, job.error
    applied |= {line["batch"]: line for line in job.commits}
    rows, late = expected_tables(batches)
    assert has_rows(table, rows)
    assert has_rows(Path(f"{table}_late"), late)
    assert len(late) > 1000
    assert sorted(applied) == list(range(FILES))
