"""``apply_cells``: the table equals the rows that HBase shows, in any order of cells and batches."""

from __future__ import annotations

import itertools
import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import ZookeeperLockManager
from tests.support.deliveries import HISTORIES, Killed, kill_process, session_time_zone, shuffled_batches
from tests.support.hbase_model import SCHEMA, Cell, histories, values_in_hbase
from tests.support.hbase_table import visible_values
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.errors import ChangesError
from writer_jobs.feeds.hbase import apply as hbase_apply
from writer_jobs.feeds.hbase.apply import apply_cells
from writer_jobs.feeds.hbase.cells import CellRows, without_expired
from writer_jobs.feeds.hbase.decode import (
    FAMILY,
    FILTERED,
    MESSAGE,
    ORIGIN,
    QUALIFIER,
    REASON,
    TYPE,
    VALUE,
    WRITE_ORDER,
    decode_cells,
    parse_avro_cells,
    parse_event_cells,
    parse_json_cells,
)
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.feeds.hbase.values import ValueType
from writer_jobs.maintenance.policy import Action
from writer_jobs.maintenance.result import MaintenanceReport
from writer_jobs.maintenance.side_rows import SideTableRetention
from writer_jobs.maintenance.table_list import list_tables
from writer_jobs.merge.batch_applier import BatchApplier
from writer_jobs.merge.change_spec import DELETED, SEQ
from writer_jobs.merge.result import ChangesResult

pytestmark = pytest.mark.spark

SEED = 20
ID = '"row_key": [{"column": "id", "type": "string"}]'
MAPPING = HBaseMapping.parsed(f"{{{ID}}}")
#: Families with one version. The histories of cells have another family, too.
SINGLE = ("d",)
SINGLE_MAPPING = HBaseMapping.parsed(f'{{{ID}, "families": {{"d": {{"versions": 1}}}}}}')


class Feed:
    """Applies cells to one table, and reads the table with delta-rs."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> None:
        self.spark, self.table = spark, table
        self.writer = LockedDeltaWriter(spark, manager, str(table))
        self.dead_letters = f"{table}_dead_letters"

    def apply(self, cells: Iterable[Cell], mapping: HBaseMapping = MAPPING, **options: Any) -> ChangesResult:
        return apply_cells(self.writer, self.spark.createDataFrame(list(cells), SCHEMA), mapping, **options)

    def apply_json(self, messages: DataFrame, mapping: HBaseMapping, run: int) -> ChangesResult:
        return apply_cells(self.writer, parse_json_cells(messages, mapping), mapping, txn=("run", run))

    def values(self) -> dict[str, dict[str, str]]:
        return visible_values(self.table)

    def columns(self, *names: str) -> list[tuple[Any, ...]]:
        rows = DeltaTable(self.table).to_pyarrow_table(columns=list(names)).to_pylist()
        return sorted(tuple(row.values()) for row in rows)


@pytest.fixture
def feed(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Feed:
    return Feed(spark, manager, table)


@HISTORIES
def test_histories_of_cells_in_any_order_equal_the_hbase_rows(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    cells = histories(SEED, number)
    first_batch, killed_batch, third_batch = shuffled_batches(SEED, cells, 3)
    feed.apply(first_batch, SINGLE_MAPPING)
    assert feed.values() == values_in_hbase(first_batch, SINGLE)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(BatchApplier, "_merge", kill_process)
        feed.apply(killed_batch, SINGLE_MAPPING)
    assert feed.values() == values_in_hbase(first_batch, SINGLE)
    # The next batch undoes the whole killed batch.
    feed.apply(third_batch, SINGLE_MAPPING)
    assert feed.values() == values_in_hbase([*first_batch, *third_batch], SINGLE)
    feed.apply(killed_batch, SINGLE_MAPPING)
    assert feed.values() == values_in_hbase(cells, SINGLE)


def test_negative_control_without_stored_cells_rows_are_wrong(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    source = CellRows.source
    monkeypatch.setattr(CellRows, "source", lambda self, rows, read, _, *rest: source(self, rows, read, None, *rest))
    cells = histories(SEED, 500)
    for batch in shuffled_batches(SEED, cells, 2):
        feed.apply(batch)
    stored, expected = feed.values(), values_in_hbase(cells)
    assert sum(stored.get(row) != expected.get(row) for row in stored.keys() | expected.keys()) > 100


def stored_cells(spark: SparkSession, cells: Iterable[Cell], *, is_old: Callable[[], bool]) -> DataFrame:
    """Return cells as a side table has them, with their ages in the column ``old``."""
    rows = [(*cell, is_old()) for cell in cells]
    data = spark.createDataFrame(rows, f"{SCHEMA}, old boolean").withColumn("sequence", F.col("old").cast("bigint"))
    decoded = decode_cells(data, MAPPING).drop(REASON, ORIGIN, MESSAGE, FILTERED, DELETED)
    return decoded.withColumn("old", F.col(WRITE_ORDER) == 1)


def remaining_cells(stored: DataFrame, families: Sequence[str]) -> list[Cell]:
    """Return the cells that maintenance keeps."""
    columns = ("id", FAMILY, QUALIFIER, SEQ, TYPE, F.col(VALUE).cast("string"))
    return [Cell(*row) for row in without_expired(stored, ["id"], F.col("old"), families).select(*columns).collect()]


def test_expiry_keeps_what_later_cells_need(spark: SparkSession) -> None:
    generator, cells = random.Random(SEED), histories(SEED, 500)
    generator.shuffle(cells)
    early, late = cells[: len(cells) * 2 // 3], cells[len(cells) * 2 // 3 :]
    young = stored_cells(spark, early, is_old=lambda: False)
    remaining = remaining_cells(young, SINGLE)
    assert values_in_hbase([*remaining, *late], SINGLE) == values_in_hbase(cells, SINGLE)
    versions = Counter((cell.row, cell.qualifier) for cell in remaining if (cell.family, cell.type) == ("d", "Put"))
    assert max(versions.values()) == 1
    # Old cells are not needed for the cells that are there.
    some_old = stored_cells(spark, early, is_old=lambda: generator.random() < 0.5)
    assert values_in_hbase(remaining_cells(some_old, SINGLE), SINGLE) == values_in_hbase(early, SINGLE)
    values = remaining_cells(stored_cells(spark, early, is_old=lambda: True), SINGLE)
    assert sorted(cell.type for cell in values) == ["Put"] * sum(map(len, values_in_hbase(early, SINGLE).values()))
    # Negative control: the rule for all versions drops a newest Put with the delete that hides it.
    remaining = remaining_cells(young, ())
    assert values_in_hbase([*remaining, *late], SINGLE) != values_in_hbase(cells, SINGLE)
    assert values_in_hbase([*remaining, *late]) == values_in_hbase(cells) != values_in_hbase(cells, SINGLE)


def test_a_mapping_with_other_versions_is_refused(feed: Feed) -> None:
    cells = [Cell("a", "d", "x", 1, "Put", "one")]
    feed.apply(cells, SINGLE_MAPPING)
    with pytest.raises(ChangesError, match="families with one version: d in the table, not set in this run"):
        feed.apply(cells, MAPPING)
    with locked(feed.spark, str(feed.table), manager=feed.writer.manager):
        feed.spark.sql(f"ALTER TABLE delta.`{feed.table}` SET TBLPROPERTIES ('sluice.feed' = 'off')")
    with pytest.raises(ChangesError, match=r"singleVersionFamilies: d in \S+_cells, not set in this run"):
        feed.apply(cells, MAPPING)


def run_during_rewrite(patch: pytest.MonkeyPatch, run: Callable[[], object]) -> None:
    """Make the next maintenance of a side table run a function in a thread, after its rewrite has begun."""
    drop_expired, calls = SideTableRetention.drop_expired, itertools.count(1)

    def drop_and_run(self: SideTableRetention, rows: DataFrame) -> DataFrame:
        # The first call counts the expired rows. The second call is part of the rewrite.
        if next(calls) == 2:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(run).result()
        return drop_expired(self, rows)

    patch.setattr(SideTableRetention, "drop_expired", drop_and_run)


@pytest.mark.full
def test_versions_expire_while_a_batch_is_applied(
    feed: Feed, maintain: Callable[..., MaintenanceReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = [Cell("a", family, "x", timestamp, "Put", f"{timestamp}") for family in "dm" for timestamp in (1, 2)]
    deletes = [Cell("a", family, "x", 2, "Delete", None) for family in "dm"]
    feed.apply(puts, SINGLE_MAPPING)
    # The rewrite does not hold the lock, so the batch need not wait for it.
    with monkeypatch.context() as patch:
        run_during_rewrite(patch, lambda: feed.apply(deletes, SINGLE_MAPPING, lock_timeout_seconds=30))
        assert [unit.problem for unit in maintain(Action.FORGET, suffix="_cells").done] == [None]
    assert feed.values() == {"a": {"m:x": "1"}}
    # The older version in d and the hidden one in m have expired.
    assert DeltaTable(f"{feed.table}_cells").to_pyarrow_table().num_rows == len(puts) - 2 + len(deletes)
    feed.apply(puts, SINGLE_MAPPING)
    assert feed.values() == {"a": {"m:x": "1"}}


@pytest.mark.full
def test_only_a_side_table_without_rows_gets_its_families(feed: Feed) -> None:
    puts, cells_table = [Cell("a", "d", "x", 1, "Put", "1")], f"{feed.table}_cells"
    feed.apply(puts, SINGLE_MAPPING)
    # A run that was killed after it created the side table had not set its properties yet.
    with locked(feed.spark, cells_table, manager=feed.writer.manager):
        feed.spark.sql(
            f"ALTER TABLE delta.`{cells_table}` UNSET TBLPROPERTIES ('sluice.maintenance.singleVersionFamilies')"
        )
    with pytest.raises(ChangesError, match=r"singleVersionFamilies: not set in \S+_cells, d in this run"):
        feed.apply(puts, SINGLE_MAPPING)
    feed.writer.side_writer("_cells").delete("true")
    feed.apply(puts, SINGLE_MAPPING)
    with pytest.raises(ChangesError, match="families with one version"):
        feed.apply(puts, MAPPING)
    assert feed.values() == {"a": {"d:x": "1"}}


@pytest.mark.soak
def test_expiry_of_hidden_cells_keeps_the_rows(
    feed: Feed,
    maintain: Callable[..., MaintenanceReport],
    make_manager: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells_table = f"{feed.table}_cells"
    cells = histories(SEED, 200)
    first_batch, second_batch, concurrent_batch = shuffled_batches(SEED, cells, 3)
    feed.apply(first_batch, SINGLE_MAPPING)
    feed.apply(second_batch, SINGLE_MAPPING)
    second_feed = Feed(feed.spark, make_manager(), feed.table)
    # The maintainer of the table maintains its cells, too.
    assert [Path(name).name for name in list_tables(feed.spark, [str(feed.table)])] == ["table", "table_cells"]
    with monkeypatch.context() as patch:
        run_during_rewrite(patch, lambda: second_feed.apply(concurrent_batch, SINGLE_MAPPING))
        (expiry,) = maintain(Action.FORGET, suffix="_cells").done
    assert expiry.problem is None
    # No cell is old. Only cells that stay hidden and repeated cells are deleted.
    remaining = DeltaTable(cells_table).to_pyarrow_table().num_rows
    assert len(set(cells)) / 4 < remaining < len(set(cells))
    assert feed.values() == values_in_hbase(cells, SINGLE)
    late_cell = Cell("r00000", "d", "a", 99, "Put", "late")
    feed.apply([late_cell], SINGLE_MAPPING, retention=timedelta(0))
    assert feed.values() == values_in_hbase([*cells, late_cell], SINGLE)
    # The longest retention of all batches applies. By that retention, too few cells have expired.
    assert not [unit for unit in maintain(suffix="_cells").done if unit.action is Action.FORGET]
    days = "'sluice.maintenance.forgetAfterDays' = '0'"
    with locked(feed.spark, cells_table, manager=feed.writer.manager):
        feed.spark.sql(f"ALTER TABLE delta.`{cells_table}` SET TBLPROPERTIES ({days})")
    assert Action.FORGET in [unit.action for unit in maintain(suffix="_cells").done]
    # All cells are old. Only the values of the rows remain.
    types = DeltaTable(cells_table).to_pyarrow_table(columns=["__sluice_type"])
    assert set(types["__sluice_type"].to_pylist()) == {"Put"}
    assert types.num_rows == sum(map(len, feed.values().values()))


@pytest.mark.full
def test_two_values_of_one_timestamp_need_a_sequence(feed: Feed) -> None:
    feed.apply([Cell("a", "d", "x", 1, "Put", "one"), Cell("b", "d", "x", 1, "Put", "one")])
    for timestamp, values in ((2, ("two", "three")), (1, ("two",))):
        with pytest.raises(ChangesError, match="id=a"):
            feed.apply([Cell("a", "d", "x", timestamp, "Put", value) for value in values])
    # HBase's code of a Put is 4, of a DeleteColumn 12.
    ordered = feed.spark.createDataFrame(
        [("a", "d", "x", 3, "4", "four", 8), ("a", "d", "x", 3, "put", "three", 7), ("b", "d", "x", 3, "12", None, 7)],
        f"{SCHEMA}, sequence long",
    )
    result = apply_cells(feed.writer, ordered, MAPPING)
    assert feed.values() == {"a": {"d:x": "four"}}
    assert (result.changes, result.folded, result.keys, result.updated, result.deleted) == (3, 2, 2, 1, 1)


BYTES: dict[str, list[tuple[bytes, Any]]] = {
    "string": [("grün".encode(), "grün"), (b"", ""), (b"\xff", None)],
    "boolean": [(b"\x00", False), (b"\xff", True), (b"", None), (b"\x00\x00", None)],
    "byte": [(b"\x80", -128)],
    "short": [(struct.pack(">h", -2), -2), (struct.pack(">h", 300), 300)],
    "int": [(struct.pack(">i", -5), -5), (struct.pack(">i", 2**31 - 1), 2**31 - 1), (b"5", None)],
    "long": [(struct.pack(">q", -(2**63)), -(2**63)), (struct.pack(">q", 7), 7), (struct.pack(">i", 7), None)],
    "float": [(struct.pack(">f", -1.5), -1.5)],
    "double": [(struct.pack(">d", 0.1), 0.1), (struct.pack(">d", -5e-324), -5e-324), (b"0.1", None)],
    "timestamp-millis": [(struct.pack(">q", 1500), 1.5), (struct.pack(">q", 2**63 - 1), None)],
    "text:int": [(b"-12", -12), (b"twelve", None), (b"99999999999", None)],
    "text:decimal(5,2)": [
        *((b"123.45", Decimal("123.45")), (b"12345", None), (b"19.999", None), (b"0.005", None), (b" 1", None)),
        (b"", None),
    ],
    "text:date": [
        (b"2026-11-23", date(2026, 11, 23)),
        (b"yesterday", None),
        (b"2026-01-02T23:59:00Z", None),
        (b"", None),
    ],
    "text:boolean": [(b"true", True), (b"yes", None), (b"1", None)],
    "text:double": [(b"0.1", 0.1), (b"9007199254740993", None), (b"1e400", None)],
    "text:timestamp": [
        (b"today", None),
        (b"12:00:00", None),
        (b"2026-01-02T00:00:00.1234567Z", None),
        # A time without a zone is UTC in any session. The clocks of the session's zone skip this hour.
        (b"2026-03-29 02:30:00", 1774751400.0),
        (b"2026-03-29 02:30", 1774751400.0),
        (b"2026-03-29", 1774742400.0),
        (b"2026-03-29T02:30:00+01:00", 1774747800.0),
    ],
    "decimal(9,2)": [
        (struct.pack(">i", 2) + b"\x30\x39", Decimal("123.45")),
        (struct.pack(">i", 1) + b"\xff\x38", Decimal("-20.00")),
        (struct.pack(">i", 2) + b"\x80" * 9, None),
        (struct.pack(">i", 3) + b"\x01", None),
        (b"\x00", None),
    ],
    "decimal(38,2)": [
        (struct.pack(">i", 2) + (10**37).to_bytes(16), Decimal(10**35)),
        (struct.pack(">i", 0) + (-(10**20)).to_bytes(9, signed=True), Decimal(-(10**20))),
        (struct.pack(">i", 2) + (1 - 10**38).to_bytes(16, signed=True), Decimal("-" + "9" * 36 + ".99")),
        (struct.pack(">i", 2) + (-(10**38)).to_bytes(16, signed=True), None),
        (struct.pack(">i", 1) + (10**37).to_bytes(16), None),
        (struct.pack(">i", 2) + b"\x01" * 17, None),
        (struct.pack(">i", 2), None),
    ],
}


def test_bytes_are_decoded_as_hbase_encodes_them(spark: SparkSession) -> None:
    columns, expected = [], {}
    for type_name, values in BYTES.items():
        for number, (encoded, value) in enumerate(values):
            decoded = ValueType(type_name).decode(F.lit(encoded))
            is_timestamp = type_name.endswith(("timestamp", "millis"))
            columns.append((F.unix_millis(decoded) / 1000 if is_timestamp else decoded).alias(f"{type_name}/{number}"))
            expected[f"{type_name}/{number}"] = value
    with session_time_zone(spark):
        (row,) = spark.range(1).select(*columns).collect()
    assert row.asDict() == expected


def test_a_value_is_decoded_beside_a_key_column_of_its_name(spark: SparkSession) -> None:
    cells = spark.range(1).select(F.lit(struct.pack(">i", 2) + b"\x30\x39").alias("value"))
    decoded = ValueType("decimal(9,2)").decode(F.col("value"))
    (row,) = cells.select(F.lit(b"\0\0\0\1key").alias("value"), decoded.alias("decoded")).collect()
    assert row["decoded"] == Decimal("123.45")


TYPED_MAPPING = """{
  "row_key": [
    {"column": "country", "type": "string", "until": "|"},
    {"column": "shop", "type": "short", "length": 2},
    {"column": "id", "type": "text:long"}
  ],
  "columns": {"d:age": {"column": "age", "type": "int"}, "d:raw": null, "d:name": {"type": "string"}},
  "new_columns": {"type": "text:int"},
  "encoding": "hex"
}"""


def cell_json(row: bytes, column: str, content: bytes | None, **fields: Any) -> str:
    """Return a cell as JSON, in hex."""
    family, _, qualifier = column.partition(":")
    cell = {"row": row.hex(), "family": family.encode().hex(), "qualifier": qualifier.encode().hex(), "timestamp": 5}
    return json.dumps({**cell, "type": "Put", "value": None if content is None else content.hex(), **fields})


@pytest.mark.full
def test_json_cells_become_typed_columns_or_dead_letters(
    feed: Feed, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = HBaseMapping.parsed(TYPED_MAPPING)
    key, padded_key = (b"no|" + struct.pack(">h", 260) + number for number in (b"17", b"017"))
    good = [
        cell_json(key, "d:age", struct.pack(">i", 36)),
        cell_json(key, "d:name", b"Ada"),
        cell_json(key, "d:raw", b"\xff\xff"),
        cell_json(key, "m:new one", b"8"),
        cell_json(b"se|" + struct.pack(">h", 1) + b"4", "d:raw", b"\xff"),
    ]
    bad = {
        cell_json(key, "d:age", b"36"): "the value does not fit the type of age",
        cell_json(key, "m:other", b"eight"): "the value does not fit the type of m_other",
        cell_json(b"no17", "d:name", b"Bo"): "the row key does not fit the mapping: country",
        cell_json(b"no|\x01\x01x", "d:name", b"Bo"): "the row key does not fit the mapping: id",
        cell_json(key, "d:name", b"Bo", type="Change"): "the type of the cell is unknown",
        cell_json(key, "d:name", b"Bo", timestamp=None): "the cell has no timestamp",
        cell_json(key, "d:name", b"Bo", timestamp=-1): "timestamp is negative",
        cell_json(key, "d:name", None): "the cell has no value",
        cell_json(key, "d:name", b"Bo", value="zz"): "value is not hex",
        '{"row": 1': "the message is not the JSON of one cell",
        "\udcff": "the message is not the JSON of one cell",
        cell_json(key, "d:name", b"Bo") + cell_json(key, "d:name", b"Cy"): "the message is not the JSON of one cell",
        cell_json(padded_key, "d:name", b"Bo"): "the row key does not fit the mapping: id",
    }
    messages = spark.createDataFrame(
        [(text.encode(errors="surrogateescape"), f"file:{number}") for number, text in enumerate([*good, *bad])],
        "value binary, origin string",
    )
    result = feed.apply_json(messages, mapping, run=1)
    assert (result.dead_letters, result.folded, result.inserted) == (len(bad), len(good), 2)
    rows = DeltaTable(feed.table).to_pyarrow_table().to_pylist()
    assert sorted(rows, key=lambda row: row["country"]) == [
        {"country": "no", "shop": 260, "id": 17, "age": 36, "d_name": "Ada", "m_new_one": 8},
        {"country": "se", "shop": 1, "id": 4, "age": None, "d_name": None, "m_new_one": None},
    ]
    letters = DeltaTable(feed.dead_letters).to_pyarrow_table().to_pylist()
    assert {letter["value"].decode(errors="surrogateescape"): letter["reason"] for letter in letters} == bad
    assert letters[0]["origin"].startswith("file:")
    # A repeated batch adds neither cells nor dead letters.
    assert feed.apply_json(messages, mapping, run=1).already_applied
    assert DeltaTable(feed.dead_letters).version() == 0
    # A batch that is killed after the commit to the table writes its dead letters when it is repeated.
    killed_batch = spark.createDataFrame([(good[0].encode(), "file:a"), (b"no", "file:b")], messages.schema)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(hbase_apply, "write_dead_letters", kill_process)
        feed.apply_json(killed_batch, mapping, run=2)
    assert DeltaTable(feed.dead_letters).version() == 0
    for _ in range(2):
        repeated = feed.apply_json(killed_batch, mapping, run=2)
        assert (repeated.already_applied, repeated.dead_letters) == (True, 1)
    letter_table = DeltaTable(feed.dead_letters)
    assert [letter_table.transaction_version(name) for name in ("run/dead_letters", "run")] == [2, None]
    assert letter_table.to_pyarrow_table().num_rows == len(bad) + 1


@pytest.mark.full
def test_row_keys_that_no_partition_can_hold_are_dead_letters(feed: Feed) -> None:
    key = [{"column": "country", "type": "string", "until": "|"}, {"column": "id", "type": "string"}]
    mapping = HBaseMapping.parsed(json.dumps({"row_key": key}))
    cells = [Cell(row, "d", "x", 1, "Put", "y") for row in ("|4", "__HIVE_DEFAULT_PARTITION__|4", "no|", "no|4")]
    for _ in range(2):
        result = feed.apply(cells, mapping, partition_by=["country"])
        assert (result.dead_letters, result.folded) == (2, 2)
    assert "the partition column country has the value '" in (result.dead_reason or "")
    values = [Cell("no|4", "d", qualifier, 1, "Put", "") for qualifier in ("x", "y")]
    decoded = decode_cells(feed.spark.createDataFrame(values, SCHEMA), mapping, ["country", "D_X"])
    reason_of_x, reason_of_y = (row[REASON] for row in decoded.orderBy(QUALIFIER).collect())
    assert (reason_of_x.startswith("the partition column D_X has the value ''"), reason_of_y) == (True, None)
    assert feed.columns("country", "id") == [("no", ""), ("no", "4")]


@pytest.mark.full
def test_events_of_the_hbase_kafka_proxy_are_decoded(feed: Feed, spark: SparkSession) -> None:
    encoded = avro_events(
        spark,
        [
            ("r1", 1, False, b"one", "x", "d", "shop"),
            ("r1", 2, False, b"two", "y", "d", "shop"),
            ("r1", 3, True, b"", "x", "d", "shop"),
            ("r2", 1, False, b"one", "x", "d", "shop"),
            ("r3", 1, False, b"one", "x", "d", "shop"),
            ("r3", 2, False, b"one", "x", "m", "shop"),
            ("r3", 1, True, b"", "", "d", "shop"),
            ("r4", 1, False, b"one", "x", "d", "other"),
        ],
    )
    mapping = HBaseMapping.parsed(f'{{{ID}, "table": "shop"}}')
    # The job reads a topic with these columns.
    topic = spark.createDataFrame(
        [(None, event, f"cells/0/{offset}") for offset, event in enumerate([*encoded, b"\x02", encoded[0] + b"\x00"])],
        "key binary, value binary, origin string",
    )
    result = apply_cells(feed.writer, parse_avro_cells(topic, mapping), mapping)
    assert feed.values() == {"r1": {"d:y": "two"}, "r2": {"d:x": "one"}, "r3": {"m:x": "one"}}
    assert (result.changes, result.dead_letters, result.filtered) == (7, 2, 1)
    mapping = HBaseMapping.parsed(f'{{{ID}, "table": "other"}}')
    with pytest.raises(ChangesError, match="source tables: shop in the table, other in this run"):
        apply_cells(feed.writer, parse_avro_cells(topic, mapping), mapping)


@pytest.mark.full
def test_a_delete_event_with_a_null_qualifier_deletes_the_family(feed: Feed, spark: SparkSession) -> None:
    events = spark.createDataFrame(
        [
            (b"r1", 1, False, b"one", b"x", b"d", b"shop"),
            (b"r1", 1, False, b"two", b"x", b"m", b"shop"),
            (b"r1", 1, True, None, None, b"d", b"shop"),
        ],
        "key binary, timestamp long, delete boolean, value binary, qualifier binary, family binary, table binary",
    )
    mapping = HBaseMapping.parsed(f"{{{ID}}}")
    apply_cells(feed.writer, parse_event_cells(events, mapping), mapping)
    assert feed.values() == {"r1": {"m:x": "two"}}


def avro_events(spark: SparkSession, events: list[tuple[Any, ...]]) -> list[bytes]:
    """Encode events with the Avro library, by the schema file of hbase-connectors."""
    jvm: Any = spark._jvm
    fields = [
        {"name": name, "type": kind}
        for name, kind in (
            ("key", "bytes"), ("timestamp", "long"), ("delete", "boolean"), ("value", "bytes"),
            ("qualifier", "bytes"), ("family", "bytes"), ("table", "bytes"),
        )
    ]  # fmt: skip
    text = json.dumps(
        {"namespace": "org.apache.hadoop.hbase.kafka", "type": "record", "name": "HBaseKafkaEvent", "fields": fields}
    )
    schema = jvm.org.apache.avro.Schema.Parser().parse(text)
    encoded = []
    for event in events:
        record = jvm.org.apache.avro.generic.GenericData.Record(schema)
        for field, value in zip(fields, event, strict=True):
            as_bytes = value.encode() if isinstance(value, str) else value
            wrapped = jvm.java.nio.ByteBuffer.wrap(as_bytes) if field["type"] == "bytes" else value
            record.put(field["name"], wrapped)
        out = jvm.java.io.ByteArrayOutputStream()
        encoder = jvm.org.apache.avro.io.EncoderFactory.get().binaryEncoder(out, None)
        jvm.org.apache.avro.generic.GenericDatumWriter(schema).write(record, encoder)
        encoder.flush()
        encoded.append(bytes(out.toByteArray()))
    return encoded


@pytest.mark.full
def test_a_new_qualifier_adds_a_column_with_a_unique_name(feed: Feed) -> None:
    feed.apply([Cell("a", "d", "x", 1, "Put", "one")])
    feed.apply([Cell("a", "d", "new", 2, "Put", "two"), Cell("b", "d", "", 1, "Put", "of the family itself")])
    assert DeltaTable(feed.table).schema().to_arrow().names == ["id", "d_x", "d", "d_new"]
    for family, qualifier in (("d", "X"), ("id", "")):
        with pytest.raises(ChangesError, match=r"map \S+ to another column"):
            feed.apply([Cell("c", family, qualifier, 3, "Put", "y")])
    assert feed.values() == {"a": {"d:x": "one", "d:new": "two"}, "b": {"d": "of the family itself"}}


def test_a_table_with_rows_but_without_cells_is_refused(feed: Feed) -> None:
    feed.writer.append(feed.spark.createDataFrame([("a", "one", "two")], "id string, d_x string, d_y string"))
    with pytest.raises(ChangesError, match="the table has rows"):
        feed.apply([Cell("a", "d", "x", 1, "Put", "new")])
    assert feed.values() == {"a": {"d:x": "one", "d:y": "two"}}


@pytest.mark.full
def test_delta_computes_generated_columns(spark: SparkSession, manager: Any, copy_of: Callable[..., Path]) -> None:
    table = copy_of(
        "CREATE TABLE {t} (id STRING, d_x STRING, twice STRING GENERATED ALWAYS AS (d_x || d_x)) USING delta"
    )
    feed = Feed(spark, manager, table)
    feed.apply([Cell("a", "d", "x", 1, "Put", "one"), Cell("b", "d", "x", 1, "Put", "two")])
    feed.apply([Cell("a", "d", "x", 2, "Put", "new")])
    assert feed.columns("id", "d_x", "twice") == [("a", "new", "newnew"), ("b", "two", "twotwo")]
