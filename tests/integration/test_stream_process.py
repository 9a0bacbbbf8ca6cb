"""``stream.py`` under spark-submit with all flights of a year, killed twenty times at any moment."""

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
    """Flights in the order of their hours, but 5 % a file later, 1 % late, 1 % again, 2 % in a second version."""
    chance = random.Random(SEED)
    flights = pd.read_csv(find_flights(), usecols=[*KEY, "month", "origin", "dest", "arr_delay"])
    flights["time_hour"] = pd.to_datetime(flights["time_hour"], utc=True).astype("datetime64[us, UTC]")
    flights["version"] = 1
    flights = flights.sort_values(KEY, ignore_index=True)
    file = (flights.index * FILES // len(flights)).to_series(index=flights.index)
    kind = pd.Series([chance.random() for _ in range(len(flights))])
    file = file.mask(kind < 0.05, (file + 1).clip(upper=FILES - 1))
    later = pd.Series([chance.randrange(each, FILES) for each in file])
    file = file.mask(kind.between(0.05, 0.06), later)
    again, changed = kind.between(0.06, 0.07), kind.between(0.07, 0.09)
    second = flights[changed].assign(version=2, arr_delay=999.0)
    rows = pd.concat([flights, flights[again], second])
    files = pd.concat([file, later[again], later[changed]])
    return [rows[files == number].sample(frac=1, random_state=number) for number in range(FILES)]


def recomputed(batches: list[pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What the table and the rows that are too late have to be."""
    newest, kept, aside = None, [], []
    for batch in batches:
        too_late = batch["time_hour"] < newest - ALLOWED if newest is not None else pd.Series(False, index=batch.index)
        kept.append(batch[~too_late])
        # A repetition of what the table has is not set aside.
        known = pd.concat(kept).groupby(KEY)["version"].max().rename("known")
        told = batch[too_late].join(known, on=KEY)
        aside.append(told[~(told["known"] >= told["version"])].drop(columns="known"))
        newest = max(each for each in (newest, batch["time_hour"].max()) if each is not None)
    rows = pd.concat(kept).sort_values("version", kind="stable").drop_duplicates(KEY, keep="last")
    return rows, pd.concat(aside)


def same(table: Path, rows: pd.DataFrame) -> bool:
    columns = [*KEY, "month", "origin", "dest", "arr_delay", "version"]
    found = DeltaTable(table).to_pyarrow_table(columns=columns).to_pandas()
    order = [*KEY, "version"]
    found, rows = (
        each.astype({"month": "int64", "version": "int64", "flight": "int64", "arr_delay": "float64"})
        .astype({"time_hour": "datetime64[us, UTC]"})[columns]
        .sort_values(order, ignore_index=True)
        for each in (found, rows)
    )
    return found.equals(rows.astype(found.dtypes.to_dict()))


def test_all_flights_are_once_in_the_table_whenever_the_stream_is_killed(
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
        eventually(lambda job=job: any(event["event"] == "holding" for event in job.events), within=240, what="a lock")
        time.sleep(chance.random() * 6)
        job.kill()
        applied |= {line["batch"]: line for line in job.commits}
    last = start("available-now")
    assert last.wait(580) == 0, last.error
    applied |= {line["batch"]: line for line in last.commits}
    rows, aside = recomputed(batches)
    assert same(table, rows)
    assert same(Path(f"{table}_late"), aside)
    assert len(aside) > 1000
    assert sorted(applied) == list(range(FILES))
