"""``apply_rows``: the table has each row once, in its newest version, in any order of rows and batches."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import ZookeeperLockManager
from tests.support.at_the_gate import commit_info
from tests.support.deliveries import odd_text, session_time_zone
from writer_jobs import LockedDeltaWriter
from writer_jobs.commit.merge import LockedMerge
from writer_jobs.errors import ChangesError, SchemaMismatchError, WriteFailedError
from writer_jobs.late_rows.apply import apply_rows
from writer_jobs.late_rows.result import RowsResult
from writer_jobs.late_rows.row_models import LatestRows
from writer_jobs.merge.table_model import RowModel

pytestmark = pytest.mark.spark

Row = tuple[int, datetime, str, int, str]
"""Key, event time, month of the event time, version, value."""

SEED = 20261124
DETAIL = "named_struct('value', value, 'times', array(at, null))"
SCHEMA = "key long, at timestamp, month string, version int, value string"
BEGIN = datetime(2013, 8, 1, tzinfo=UTC)
#: Days from ``BEGIN`` until clocks are put back in Berlin.
CLOCK_CHANGE = 87
DELAY, ALLOWED = timedelta(days=2), timedelta(days=60)
OPTIONS: dict[str, Any] = {"keys": ["key"], "event_time": "at", "partition_by": ["month"]}


def row(key: int, days: float, version: int = 1, value: str | None = None) -> Row:
    at = BEGIN + timedelta(days=days)
    return key, at, f"{at:%Y-%m}", version, value or odd_text(key + version, f"{key} in version {version}")


@dataclass
class Model:
    """Expected rows of the table and of the table of late rows.

    If ``keeps_newest`` is False, the first version of a row that arrives stays.
    """

    keeps_newest: bool
    rows: dict[tuple[int, datetime], Row] = field(default_factory=dict)
    too_late: list[Row] = field(default_factory=list)
    newest: datetime | None = None

    def apply(self, batch: Iterable[Row]) -> tuple[int, int]:
        """Apply a batch, and return the numbers of late rows and of rows that are too late."""
        batch, newest, late, expired = list(batch), self.newest, 0, []
        for candidate in batch:
            if newest is not None and candidate[1] < newest - ALLOWED:
                expired.append(candidate)
                continue
            late += newest is not None and candidate[1] < newest - DELAY
            stored = self.rows.setdefault(candidate[:2], candidate)
            if self.keeps_newest and candidate[3] > stored[3]:
                self.rows[candidate[:2]] = candidate
        too_late = [candidate for candidate in expired if not self.has(candidate)]
        self.too_late += too_late
        times = [candidate[1] for candidate in batch]
        self.newest = max(times) if newest is None else max(newest, *times)
        return late, len(too_late)

    def has(self, row: Row) -> bool:
        """Return whether the table has this version of a row, or a newer one."""
        stored = self.rows.get(row[:2])
        return stored is not None and (not self.keeps_newest or stored[3] >= row[3])


def arrivals(number: int, batches: int, versions: int) -> list[list[Row]]:
    """Return batches of rows of half a year. Most are in the batch of their event time; some in another or repeated."""
    chance = random.Random(SEED)
    arrived: list[list[Row]] = [[] for _ in range(batches)]
    last = batches - 1
    for key in range(number):
        on_time = key * batches // number
        for version in range(1, versions + 1):
            for _ in range(1 + (chance.random() < 0.1)):
                draw = chance.random()
                index = on_time if draw < 0.8 else min(on_time + 1, last) if draw < 0.95 else chance.randrange(batches)
                arrived[index].append(row(key, key * 180 / number, version))
    # These keys have a row at both instants of one local time.
    for key in range(number, number + 10):
        for hour in (0.5, 1.5):
            for version in range(1, versions + 1):
                index = key % 2 + batches * CLOCK_CHANGE // 180 - 1
                arrived[index].append(row(key, CLOCK_CHANGE + hour / 24, version))
    for batch in arrived:
        chance.shuffle(batch)
    return arrived


class Stream:
    """Applies batches of rows to one table."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> None:
        self.spark, self.table = spark, table
        self.writer = LockedDeltaWriter(spark, manager, str(table))

    def apply(self, rows: Iterable[Row], **options: Any) -> RowsResult:
        return apply_rows(self.writer, self.frame(rows), **{**OPTIONS, **options})

    def frame(self, rows: Iterable[Row]) -> DataFrame:
        return self.spark.createDataFrame(list(rows), SCHEMA).withColumn("detail", F.expr(DETAIL))

    def rows(self, suffix: str = "") -> list[Row]:
        """Return the rows of the table, or of the side table with this suffix."""
        names = ["key", "at", "month", "version", "value", "detail"]
        rows = DeltaTable(f"{self.table}{suffix}").to_pyarrow_table(columns=names).to_pylist()
        for columns in rows:
            assert columns.pop("detail") == {"value": columns["value"], "times": [columns["at"], None]}
        return sorted(tuple(columns.values()) for columns in rows)

    def files(self) -> dict[str, datetime]:
        """Return the smallest event time of each data file."""
        actions = pa.table(DeltaTable(self.table).get_add_actions(flatten=True)).to_pylist()
        return {action["path"]: action["min.at"] for action in actions}


@pytest.fixture
def stream(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Stream:
    return Stream(spark, manager, table)


@pytest.mark.full
@pytest.mark.parametrize("number", [500, pytest.param(20_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"sequence_by": "version"}, marks=pytest.mark.soak)], ids=["first", "latest"]
)
def test_rows_in_any_order_equal_the_model(stream: Stream, options: dict[str, str], number: int) -> None:
    model = Model(keeps_newest=bool(options))
    for batch_number, batch in enumerate(arrivals(number, 3, 2 if options else 1)):
        times = {"newest_before": model.newest, "watermark_delay": DELAY, "allowed_lateness": ALLOWED}
        with session_time_zone(stream.spark):
            result = stream.apply(batch, **options, **times, txn=("stream", batch_number))
        previous_count = len(model.rows)
        assert (result.late, result.too_late) == model.apply(batch)
        assert (result.arrived, result.inserted) == (len(batch), len(model.rows) - previous_count)
        assert result.repeated == len(batch) - result.inserted - result.updated - result.too_late
        assert (result.newest, result.watermark) == (model.newest, model.newest and model.newest - DELAY)
        repeated = stream.apply(batch, **options, **times, txn=("stream", batch_number))
        assert (repeated.already_applied, repeated.inserted) == (True, 0)
    assert stream.rows() == sorted(model.rows.values())
    assert len(model.too_late) > 2
    assert stream.rows("_late") == sorted(model.too_late)


@pytest.mark.full
def test_negative_control_without_an_order_older_versions_win(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(self: RowModel, writer: LockedDeltaWriter, source: Any, within: Any) -> LockedMerge:
        condition = "t.key = s.key AND t.at = s.at"
        return writer.merge(source.alias("s"), condition, alias="t").whenMatchedUpdateAll().whenNotMatchedInsertAll()

    monkeypatch.setattr(LatestRows, "merge", merge)
    monkeypatch.setattr(LatestRows, "needs_comparison", lambda *_: False)
    first, batches = row(-1, 0), arrivals(500, 2, 2)
    model = Model(keeps_newest=True)
    # No row of one batch is too late.
    model.apply([first, *itertools.chain.from_iterable(batches)])
    stream.writer.append(stream.frame([first]), partition_by=["month"])
    for batch in batches:
        stream.apply(batch, sequence_by="version")
    assert len(set(stream.rows()) - set(model.rows.values())) > 5


@pytest.mark.full
def test_late_rows_rewrite_only_files_with_older_versions(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    for week in range(4):
        stream.apply([row(key, key / 24) for key in range(week * 168, week * 168 + 168)], sequence_by="version")
    # A MERGE of new rows reads the table, so it is no light commit.
    newest = commit_info(stream.table, DeltaTable(stream.table).version())
    assert (newest["operation"], newest["isBlindAppend"], newest["sluice"].get("light")) == ("MERGE", False, None)
    files = stream.files()
    by_week = [{path for path, at in files.items() if (at - BEGIN).days // 7 == week} for week in range(4)]
    # Files of the second week contain no row of the batch, so they are not read.
    for path in by_week[1]:
        (stream.table / path).rename(stream.table / f"{Path(path).name}.away")
    late = [row(key, key / 24, 2, "late") for key in (1, 3, 400)]
    result = stream.apply(late, sequence_by="version")
    assert (result.updated, result.inserted) == (3, 0)
    assert len(files.keys() - stream.files().keys()) == 2
    assert by_week[3] <= stream.files().keys()
    # The control: without ranges of the event time, Delta reads the removed files, too.
    monkeypatch.setattr("writer_jobs.merge.key_bounds.KeyBounds.refine", lambda *_: None)
    with pytest.raises(WriteFailedError):
        stream.apply([(key, at, month, 3, value) for key, at, month, _, value in late], sequence_by="version")


@pytest.mark.full
def test_streams_of_the_same_rows_insert_each_row_once(
    make_manager: Callable[..., ZookeeperLockManager],
    stream: Stream,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All streams compare their rows with the table before the first one commits. The later ones compare again."""
    caplog.set_level(logging.INFO)
    table, manager = stream.writer.table, stream.writer.manager
    rows = [row(key, key / 4) for key in range(120)]
    stream.apply(rows[:3])
    streams = [Stream(stream.spark, make_manager(timeout_seconds=300), stream.table) for _ in range(4)]
    with ThreadPoolExecutor(len(streams)) as pool:
        with manager.acquire(table):
            futures = [
                pool.submit(rival.apply, random.Random(SEED + number).sample(rows, 100))
                for number, rival in enumerate(streams)
            ]
            eventually(
                lambda: len(manager.queue(table)) == len(streams) + 1,
                within=120,
                label="a waiting commit of each stream",
            )
        inserted = sum(future.result().inserted for future in futures)
    stored = stream.rows()
    assert len({key for key, *_ in stored}) == len(stored) == 3 + inserted
    assert caplog.text.count("writing again: ") == len(streams) - 1


@pytest.mark.full
def test_rows_without_a_usable_key_or_event_time_are_refused(stream: Stream) -> None:
    with pytest.raises(ChangesError, match="must be a timestamp or a date"):
        stream.apply([row(1, 1)], event_time="value")
    row_without_time = stream.spark.createDataFrame([(1, None, "2013-01", 1, "x")], SCHEMA)
    with pytest.raises(ChangesError, match="key=1"):
        apply_rows(stream.writer, row_without_time, **OPTIONS)
    # A row without a key is refused even if it is too late for the table.
    with pytest.raises(ChangesError, match="key=None"):
        stream.apply([(None, *row(1, 1)[1:])], newest_before=BEGIN + 2 * ALLOWED, allowed_lateness=ALLOWED)
    row_of_year_10000 = stream.spark.sql("SELECT 1L key, timestamp'+10000-01-01' at")
    with pytest.raises(ChangesError, match="event time at is outside 0001-01-03 to 9999-12-29"):
        apply_rows(stream.writer, row_of_year_10000, keys=["key"], event_time="at")
    assert not Path(f"{stream.table}_late").exists()


@pytest.mark.full
def test_dates_from_year_1_to_9999_are_event_times(stream: Stream) -> None:
    def apply(*days: date, **options: Any) -> RowsResult:
        rows = stream.spark.createDataFrame([(1, day) for day in days], "key long, `day.of_it` date")
        return apply_rows(stream.writer, rows, keys=["key"], event_time="day.of_it", **options)

    wide_limits = {
        "newest_before": BEGIN,
        "watermark_delay": timedelta(800_000),
        "allowed_lateness": timedelta(900_000),
    }
    result = apply(date(2013, 1, 1), **wide_limits)
    assert (result.inserted, result.newest, result.watermark) == (1, BEGIN, datetime(1, 1, 1, tzinfo=UTC))
    result = apply(date(1, 1, 3), date(9999, 12, 29))
    assert (result.inserted, result.newest) == (2, datetime(9999, 12, 29, tzinfo=UTC))
    assert not Path(f"{stream.table}_late").exists()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("key LONG, at DATE) USING delta", "at: table date, rows timestamp"),
        ("key LONG, at STRING) USING delta", "event time at must be a timestamp or a date, but is string in the table"),
        ("key INT, at TIMESTAMP, month STRING) USING delta PARTITIONED BY (month)", "no column month, by which"),
        (
            "key LONG, at TIMESTAMP, day DATE GENERATED ALWAYS AS (CAST(at AS DATE))) USING delta PARTITIONED BY (day)",
            "no column day, by which .* even if Delta could generate it",
        ),
        ("key TIMESTAMP_NTZ, at TIMESTAMP) USING delta", "key: table timestamp_ntz, rows timestamp"),
    ],
)
def test_a_table_with_unsuitable_columns_is_refused(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    copy_of: Callable[..., Path],
    versions: Callable[[Path], list[str]],
    columns: str,
    message: str,
) -> None:
    table = copy_of(f"CREATE TABLE {{t}} ({columns}")
    key = "timestamp'2013-01-01'" if "_NTZ" in columns else "1L"
    rows = spark.sql(f"SELECT {key} key, timestamp'2013-01-01' at")
    with pytest.raises(SchemaMismatchError, match=message):
        apply_rows(LockedDeltaWriter(spark, manager, str(table)), rows, keys=["key"], event_time="at")
    assert len(versions(table)) == 1
