"""``apply_rows``: each row is once in the table, the newest version of it, whatever is repeated, late or mixed up."""

from __future__ import annotations

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
from tests.support.deliveries import HISTORIES, odd_text, zone_of
from writer_jobs import LockedDeltaWriter
from writer_jobs.commit.merge import LockedMerge
from writer_jobs.errors import ChangesError, SchemaMismatchError, WriteFailedError
from writer_jobs.late_rows.apply import apply_rows
from writer_jobs.late_rows.result import RowsResult
from writer_jobs.late_rows.row_models import LatestRows
from writer_jobs.merge.table_model import RowModel

pytestmark = pytest.mark.spark

Row = tuple[int, datetime, str, int, str]
"""Key, event time, month of it, version, value."""

SEED = 20261124
DETAIL = "named_struct('value', value, 'times', array(at, null))"
SCHEMA = "key long, at timestamp, month string, version int, value string"
#: Clocks are put back in Berlin 87 days later.
BEGIN = datetime(2013, 8, 1, tzinfo=UTC)
CLOCK_CHANGE = 87
DELAY, ALLOWED = timedelta(days=2), timedelta(days=60)
HOW: dict[str, Any] = {"keys": ["key"], "event_time": "at", "partition_by": ["month"]}


def row(key: int, days: float, version: int = 1, value: str | None = None) -> Row:
    at = BEGIN + timedelta(days=days)
    return key, at, f"{at:%Y-%m}", version, value or odd_text(key + version, f"{key} in version {version}")


@dataclass
class Model:
    """What the table and the late rows have to be, in plain Python."""

    latest: bool
    rows: dict[tuple[int, datetime], Row] = field(default_factory=dict)
    too_late: list[Row] = field(default_factory=list)
    newest: datetime | None = None

    def apply(self, batch: Iterable[Row]) -> tuple[int, int]:
        """Apply a batch; return how many are late and too late."""
        before, batch, late, behind = self.newest, list(batch), 0, []
        for each in batch:
            if before is not None and each[1] < before - ALLOWED:
                behind.append(each)
                continue
            late += before is not None and each[1] < before - DELAY
            there = self.rows.setdefault(each[:2], each)
            if self.latest and each[3] > there[3]:
                self.rows[each[:2]] = each
        aside = [each for each in behind if not self.has(each)]
        self.too_late += aside
        self.newest = max(each[1] for each in batch) if before is None else max(before, *(each[1] for each in batch))
        return late, len(aside)

    def has(self, row: Row) -> bool:
        """Whether a row is there, as new or newer."""
        there = self.rows.get(row[:2])
        return there is not None and (not self.latest or there[3] >= row[3])


def arrivals(number: int, batches: int, versions: int) -> list[list[Row]]:
    """Rows of half a year in the order of their event times, but for some: out of order, late, repeated."""
    chance = random.Random(SEED)
    made: list[list[Row]] = [[] for _ in range(batches)]
    for key in range(number):
        at = key * batches // number
        for version in range(1, versions + 1):
            for _ in range(1 + (chance.random() < 0.1)):
                kind = chance.random()
                to = at if kind < 0.8 else min(at + 1, batches - 1) if kind < 0.95 else chance.randrange(batches)
                made[to].append(row(key, key * 180 / number, version))
    # One flight at both moments of one local time.
    for key in range(number, number + 10):
        for hour in (0.5, 1.5):
            for version in range(1, versions + 1):
                at = key % 2 + batches * CLOCK_CHANGE // 180 - 1
                made[at].append(row(key, CLOCK_CHANGE + hour / 24, version))
    for batch in made:
        chance.shuffle(batch)
    return made


class Stream:
    """Brings batches of rows into one table."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> None:
        self.spark, self.table = spark, table
        self.writer = LockedDeltaWriter(spark, manager, str(table))

    def apply(self, rows: Iterable[Row], **how: Any) -> RowsResult:
        return apply_rows(self.writer, self.frame(rows), **{**HOW, **how})

    def frame(self, rows: Iterable[Row]) -> DataFrame:
        return self.spark.createDataFrame(list(rows), SCHEMA).withColumn("detail", F.expr(DETAIL))


@pytest.fixture
def stream(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Stream:
    return Stream(spark, manager, table)


def rows_of(table: Path) -> list[Row]:
    rows = DeltaTable(table).to_pyarrow_table(columns=["key", "at", "month", "version", "value", "detail"]).to_pylist()
    for columns in rows:
        assert columns.pop("detail") == {"value": columns["value"], "times": [columns["at"], None]}
    return sorted(tuple(each.values()) for each in rows)


@pytest.mark.full
@HISTORIES
@pytest.mark.parametrize("how", [{}, {"sequence_by": "version"}], ids=["first", "latest"])
def test_rows_in_any_order_equal_the_model(stream: Stream, table: Path, how: dict[str, str], number: int) -> None:
    model = Model(latest=bool(how))
    for at, batch in enumerate(arrivals(number, 4, 2 if how else 1)):
        times = {"newest_before": model.newest, "watermark_delay": DELAY, "allowed_lateness": ALLOWED}
        with zone_of(stream.spark):
            done = stream.apply(batch, **how, **times, txn=("stream", at))
        before = len(model.rows)
        assert (done.late, done.too_late) == model.apply(batch)
        assert (done.arrived, done.inserted) == (len(batch), len(model.rows) - before)
        assert done.repeated == len(batch) - done.inserted - done.updated - done.too_late
        assert (done.newest, done.watermark) == (model.newest, model.newest and model.newest - DELAY)
        again = stream.apply(batch, **how, **times, txn=("stream", at))
        assert (again.already_applied, again.inserted) == (True, 0)
    assert rows_of(table) == sorted(model.rows.values())
    assert len(model.too_late) > 2
    assert rows_of(Path(f"{table}_late")) == sorted(model.too_late)


@pytest.mark.full
def test_negative_control_without_the_order_older_versions_replace_newer_ones(
    stream: Stream, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def merge(self: RowModel, writer: LockedDeltaWriter, source: Any, within: Any) -> LockedMerge:
        same = "t.key = s.key AND t.at = s.at"
        return writer.merge(source.alias("s"), same, alias="t").whenMatchedUpdateAll().whenNotMatchedInsertAll()

    monkeypatch.setattr(LatestRows, "merge", merge)
    model = Model(latest=True)
    stream.writer.append(stream.frame([row(-1, 0)]), partition_by=["month"])
    for batch in arrivals(500, 2, 2):
        model.apply(batch)
        stream.apply(batch, sequence_by="version")
    assert len(set(rows_of(table)) - set(model.rows.values())) > 5


@pytest.mark.full
def test_late_rows_rewrite_the_files_that_have_older_versions_and_look_into_no_others(
    stream: Stream, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for week in range(4):
        stream.apply([row(key, key / 24) for key in range(week * 168, week * 168 + 168)], sequence_by="version")

    def files() -> dict[str, datetime]:
        actions = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
        return {action["path"]: action["min.at"] for action in actions}

    before = files()
    by_week = [{path for path, at in before.items() if (at - BEGIN).days // 7 == week} for week in range(4)]
    # What is in the second week nobody has to know.
    for path in by_week[1]:
        (table / path).rename(table / f"{Path(path).name}.away")
    late = [row(key, key / 24, 2, "late") for key in (1, 3, 400)]
    done = stream.apply(late, sequence_by="version")
    assert (done.updated, done.inserted) == (3, 0)
    assert len(before.keys() - files().keys()) == 2
    assert by_week[3] <= files().keys()
    # Without the ranges of the event time all files between are looked into.
    monkeypatch.setattr("writer_jobs.merge.key_bounds.KeyBounds.refine", lambda *_: None)
    with pytest.raises(WriteFailedError):
        stream.apply([(key, at, month, 3, value) for key, at, month, _, value in late], sequence_by="version")


@pytest.mark.full
def test_streams_with_the_same_rows_have_each_of_them_once_in_the_table(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    make_manager: Callable[..., ZookeeperLockManager],
    stream: Stream,
    table: Path,
    eventually: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All have compared their rows with the table before the first one commits: the others do so again."""
    caplog.set_level(logging.INFO)
    rows = [row(key, key / 4) for key in range(120)]
    stream.apply(rows[:3])
    others = [Stream(spark, make_manager(timeout_seconds=300), table) for _ in range(4)]
    with ThreadPoolExecutor(len(others)) as pool:
        with manager.acquire(stream.writer.table):
            given = [random.Random(SEED + number).sample(rows, 100) for number in range(len(others))]
            done = [pool.submit(Stream.apply, other, sample) for other, sample in zip(others, given, strict=True)]
            waiting = len(others) + 1
            eventually(lambda: len(manager.queue(stream.writer.table)) == waiting, within=120, what="all at the gate")
        inserted = sum(each.result().inserted for each in done)
    there = rows_of(table)
    assert len({each[0] for each in there}) == len(there) == 3 + inserted
    assert caplog.text.count("writing again: ") == len(others) - 1


def test_rows_that_cannot_be_placed_are_refused(stream: Stream, table: Path, spark: SparkSession) -> None:
    with pytest.raises(ChangesError, match="must be a timestamp or a date"):
        stream.apply([row(1, 1)], event_time="value")
    nameless = spark.createDataFrame([(1, None, "2013-01", 1, "x")], SCHEMA)
    with pytest.raises(ChangesError, match="key=1"):
        apply_rows(stream.writer, nameless, **HOW)
    # Also if the row would be too late for the table.
    with pytest.raises(ChangesError, match="key=None"):
        stream.apply([(None, *row(1, 1)[1:])], newest_before=BEGIN + 2 * ALLOWED, allowed_lateness=ALLOWED)
    beyond = spark.sql("SELECT 1L key, timestamp'+10000-01-01' at")
    with pytest.raises(ChangesError, match="event time at beyond the years 1 to 9999"):
        apply_rows(stream.writer, beyond, keys=["key"], event_time="at")
    days = spark.createDataFrame([(1, date(2013, 1, 1))], "key long, `day.of_it` date")
    long_ago = {"newest_before": BEGIN, "watermark_delay": timedelta(800_000), "allowed_lateness": timedelta(900_000)}
    done = apply_rows(stream.writer, days, keys=["key"], event_time="day.of_it", **long_ago)
    assert (done.inserted, done.newest, done.watermark) == (1, BEGIN, datetime(1, 1, 1, tzinfo=UTC))
    ends = [(1, date(1, 1, 3)), (1, date(9999, 12, 29))]
    done = apply_rows(stream.writer, spark.createDataFrame(ends, days.schema), keys=["key"], event_time="day.of_it")
    assert (done.inserted, done.newest) == (2, datetime(9999, 12, 29, tzinfo=UTC))
    assert not Path(f"{table}_late").exists()


@pytest.mark.parametrize(
    ("columns", "says"),
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
def test_a_table_in_which_other_rows_would_be_one_is_refused(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    copy_of: Callable[..., Path],
    versions: Callable[[Path], list[str]],
    columns: str,
    says: str,
) -> None:
    table = copy_of(f"CREATE TABLE {{t}} ({columns}")
    key = "timestamp'2013-01-01'" if "_NTZ" in columns else "1L"
    rows = spark.sql(f"SELECT {key} key, timestamp'2013-01-01' at")
    with pytest.raises(SchemaMismatchError, match=says):
        apply_rows(LockedDeltaWriter(spark, manager, str(table)), rows, keys=["key"], event_time="at")
    assert len(versions(table)) == 1
