"""``apply_cells``: the table has what HBase shows, whatever is late, repeated or mixed up."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
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
from tests.support.deliveries import HISTORIES, Killed, delivered, end_of_the_process
from tests.support.hbase_model import SCHEMA, Cell, hbase_shows, histories
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.errors import ChangesError
from writer_jobs.feeds.hbase import apply as hbase_apply
from writer_jobs.feeds.hbase.apply import apply_cells
from writer_jobs.feeds.hbase.cells import CellRows
from writer_jobs.feeds.hbase.decode import QUALIFIER, REASON, decode_cells, parse_avro_cells, parse_json_cells
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.feeds.hbase.values import ValueType
from writer_jobs.maintenance.policy import Action
from writer_jobs.maintenance.result import MaintenanceReport
from writer_jobs.maintenance.side_rows import SideTableRetention
from writer_jobs.maintenance.table_list import list_tables
from writer_jobs.merge.batch_applier import BatchApplier
from writer_jobs.merge.result import ChangesResult

pytestmark = pytest.mark.spark

SEED = 20
MAPPING = HBaseMapping.parsed('{"row_key": [{"column": "id", "type": "string"}]}')


class Feed:
    """Applies cells to one table."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> None:
        self.spark, self.table = spark, table
        self.writer = LockedDeltaWriter(spark, manager, str(table))

    def apply(self, cells: Iterable[Cell], mapping: HBaseMapping = MAPPING, **how: Any) -> ChangesResult:
        return apply_cells(self.writer, self.spark.createDataFrame(list(cells), SCHEMA), mapping, **how)


@pytest.fixture
def feed(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Feed:
    return Feed(spark, manager, table)


def shown_by(table: Path) -> dict[str, dict[str, str]]:
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), "a row is there twice"
    return {
        row["id"]: {name.replace("_", ":"): value for name, value in row.items() if name != "id" and value is not None}
        for row in rows
    }


@HISTORIES
def test_histories_of_cells_in_any_order_show_what_hbase_shows(
    feed: Feed, table: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    cells = histories(SEED, number)
    first, second, third = delivered(SEED, cells, 3)
    feed.apply(first)
    assert shown_by(table) == hbase_shows(first)
    with monkeypatch.context() as patch:
        patch.setattr(BatchApplier, "_merge", end_of_the_process)
        with pytest.raises(Killed):
            feed.apply(second)
    assert shown_by(table) == hbase_shows(first)
    feed.apply(third)
    # The batch that was killed is undone as a whole.
    assert shown_by(table) == hbase_shows([*first, *third])
    feed.apply(second)
    assert shown_by(table) == hbase_shows(cells)


def test_negative_control_without_the_cells_of_before_rows_are_wrong(
    feed: Feed, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = CellRows.source
    monkeypatch.setattr(CellRows, "source", lambda self, rows, read, _: source(self, rows, read, None))
    cells = histories(SEED, 500)
    for batch in delivered(SEED, cells, 2):
        feed.apply(batch)
    shown, right = shown_by(table), hbase_shows(cells)
    assert sum(shown.get(row) != right.get(row) for row in shown.keys() | right.keys()) > 100


@pytest.mark.full
def test_cells_that_nobody_can_see_again_are_forgotten_and_the_rows_stay_right(
    feed: Feed,
    table: Path,
    care: Callable[..., MaintenanceReport],
    make_manager: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = histories(SEED, 200)
    first, second, third = delivered(SEED, cells, 3)
    feed.apply(first)
    feed.apply(second)
    kept_rows, second_feed = SideTableRetention.drop_expired, Feed(feed.spark, make_manager(), table)

    def kept_while_a_batch_comes(self: SideTableRetention, rows: DataFrame) -> DataFrame:
        # The first call is of the measuring, the second one of the rewrite, which has read nothing yet.
        calls.append(kept_rows(self, rows))
        if len(calls) == 2:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(second_feed.apply, third).result()
        return calls[-1]

    calls: list[DataFrame] = []
    # The table's maintainer looks after its cells, too.
    assert [Path(name).name for name in list_tables(feed.spark, [str(table)])] == ["table", "table_cells"]
    monkeypatch.setattr(SideTableRetention, "drop_expired", kept_while_a_batch_comes)
    (forgotten,) = care(Action.FORGET, suffix="_cells").done
    assert (forgotten.problem, len(calls) >= 2) == (None, True)
    monkeypatch.setattr(SideTableRetention, "drop_expired", kept_rows)
    # Nothing is old: only what is hidden for ever is forgotten, and what was said twice.
    remaining = DeltaTable(f"{table}_cells").to_pyarrow_table().num_rows
    assert len(set(cells)) / 4 < remaining < len(set(cells))
    assert shown_by(table) == hbase_shows(cells)
    late = Cell("r00000", "d", "a", 99, "Put", "late")
    feed.apply([late], retention=timedelta(0))
    assert shown_by(table) == hbase_shows([*cells, late])
    # The longest retention of all feeds counts; with it too little has expired.
    assert not [unit for unit in care(suffix="_cells").done if unit.action is Action.FORGET]
    days = "'sluice.maintenance.forgetAfterDays' = '0'"
    with locked(feed.spark, f"{table}_cells", manager=feed.writer.manager):
        feed.spark.sql(f"ALTER TABLE delta.`{table}_cells` SET TBLPROPERTIES ({days})")
    assert Action.FORGET in [unit.action for unit in care(suffix="_cells").done]
    types = DeltaTable(f"{table}_cells").to_pyarrow_table(columns=["__sluice_type"])
    # All is old: what is left are the values that the rows have.
    assert set(types["__sluice_type"].to_pylist()) == {"Put"}
    assert types.num_rows == sum(map(len, shown_by(table).values()))


@pytest.mark.full
def test_two_values_of_one_timestamp_are_refused_unless_it_is_said_which_was_written_later(
    feed: Feed, table: Path, spark: SparkSession
) -> None:
    feed.apply([Cell("a", "d", "x", 1, "Put", "one"), Cell("b", "d", "x", 1, "Put", "one")])
    for rivals in ([("a", "two"), ("a", "three")], [("a", "two")]):
        with pytest.raises(ChangesError, match="id=a"):
            feed.apply([Cell(row, "d", "x", 1 if len(rivals) == 1 else 2, "Put", value) for row, value in rivals])
    ordered = spark.createDataFrame(
        [("a", "d", "x", 3, "4", "four", 8), ("a", "d", "x", 3, "put", "three", 7), ("b", "d", "x", 3, "12", None, 7)],
        f"{SCHEMA}, sequence long",
    )
    done = apply_cells(feed.writer, ordered, MAPPING)
    assert shown_by(table) == {"a": {"d:x": "four"}}
    assert (done.changes, done.folded, done.keys, done.updated, done.deleted) == (3, 2, 2, 1, 1)


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
        (b"123.45", Decimal("123.45")),
        (b"12345", None),
        (b"19.999", None),
        (b"0.005", None),
        (b" 1", None),
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
        # Without a zone a time is UTC, in any session: here one that leaves out this hour.
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
}


def test_bytes_are_read_as_hbase_writes_them(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    request.addfinalizer(lambda: spark.conf.set("spark.sql.session.timeZone", zone))
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    row = spark.range(1).select(
        *(
            (
                F.unix_millis(ValueType(kind).decode(F.lit(given))) / 1000
                if kind.endswith(("timestamp", "millis"))
                else ValueType(kind).decode(F.lit(given))
            ).alias(f"{kind}/{number}")
            for kind, values in BYTES.items()
            for number, (given, _) in enumerate(values)
        )
    )
    found = row.first()
    assert found is not None
    wanted = {f"{kind}/{number}": value for kind, values in BYTES.items() for number, (_, value) in enumerate(values)}
    assert found.asDict() == wanted


TYPED = """{
  "row_key": [
    {"column": "country", "type": "string", "until": "|"},
    {"column": "shop", "type": "short", "length": 2},
    {"column": "id", "type": "text:long"}
  ],
  "columns": {"d:age": {"column": "age", "type": "int"}, "d:raw": null, "d:name": {"type": "string"}},
  "new_columns": {"type": "text:int"},
  "encoding": "hex"
}"""


def line(row: bytes, column: str, said: bytes | None, **more: Any) -> str:
    family, _, qualifier = column.partition(":")
    cell = {"row": row.hex(), "family": family.encode().hex(), "qualifier": qualifier.encode().hex(), "timestamp": 5}
    return json.dumps({**cell, "type": "Put", "value": None if said is None else said.hex(), **more})


@pytest.mark.full
def test_cells_in_json_become_typed_columns_and_what_cannot_is_a_dead_letter(
    feed: Feed, table: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = HBaseMapping.parsed(TYPED)
    key = b"no|" + struct.pack(">h", 260) + b"17"
    good = [
        line(key, "d:age", struct.pack(">i", 36)),
        line(key, "d:name", b"Ada"),
        line(key, "d:raw", b"\xff\xff"),
        line(key, "m:new one", b"8"),
        line(b"se|" + struct.pack(">h", 1) + b"4", "d:raw", b"\xff"),
    ]
    bad = {
        line(key, "d:age", b"36"): "the value does not fit the type of age",
        line(key, "m:other", b"eight"): "the value does not fit the type of m_other",
        line(b"no17", "d:name", b"Bo"): "the row key does not fit the mapping: country",
        line(b"no|\x01\x01x", "d:name", b"Bo"): "the row key does not fit the mapping: id",
        line(key, "d:name", b"Bo", type="Change"): "no such type of cell",
        line(key, "d:name", b"Bo", timestamp=None): "no timestamp",
        line(key, "d:name", b"Bo", timestamp=-1): "timestamp is negative",
        line(key, "d:name", None): "no value",
        line(key, "d:name", b"Bo", value="zz"): "value is not hex",
        '{"row": 1': "not JSON of one cell",
        "\udcff": "not JSON of one cell",
        line(key, "d:name", b"Bo") + line(key, "d:name", b"Cy"): "not JSON of one cell",
        line(b"no|" + struct.pack(">h", 260) + b"017", "d:name", b"Bo"): "the row key does not fit the mapping: id",
    }
    messages = spark.createDataFrame(
        [(text.encode(errors="surrogateescape"), f"file:{number}") for number, text in enumerate([*good, *bad])],
        "value binary, origin string",
    )
    done = apply_cells(feed.writer, parse_json_cells(messages, mapping), mapping, txn=("run", 1))
    assert (done.dead_letters, done.folded, done.inserted) == (len(bad), len(good), 2)
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sorted(rows, key=lambda row: row["country"]) == [
        {"country": "no", "shop": 260, "id": 17, "age": 36, "d_name": "Ada", "m_new_one": 8},
        {"country": "se", "shop": 1, "id": 4, "age": None, "d_name": None, "m_new_one": None},
    ]
    letters = DeltaTable(f"{table}_dead_letters").to_pyarrow_table().to_pylist()
    found = {row["value"].decode(errors="surrogateescape"): row["reason"] for row in letters}
    assert found == bad
    assert letters[0]["origin"].startswith("file:")
    # The same batch again: neither its cells nor its dead letters come twice. One that is killed behind the table's
    # commit has them when it comes again.
    assert apply_cells(feed.writer, parse_json_cells(messages, mapping), mapping, txn=("run", 1)).already_applied
    assert DeltaTable(f"{table}_dead_letters").version() == 0
    killed = spark.createDataFrame([(good[0].encode(), "file:a"), (b"no", "file:b")], messages.schema)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(hbase_apply, "write_dead_letters", end_of_the_process)
        apply_cells(feed.writer, parse_json_cells(killed, mapping), mapping, txn=("run", 2))
    assert DeltaTable(f"{table}_dead_letters").version() == 0
    for _ in range(2):
        again = apply_cells(feed.writer, parse_json_cells(killed, mapping), mapping, txn=("run", 2))
        assert (again.already_applied, again.dead_letters) == (True, 1)
    letters = DeltaTable(f"{table}_dead_letters")
    assert [letters.transaction_version(name) for name in ("run/dead_letters", "run")] == [2, None]
    assert letters.to_pyarrow_table().num_rows == len(bad) + 1


@pytest.mark.full
def test_a_row_key_that_a_partition_cannot_hold_is_a_dead_letter(feed: Feed, table: Path, spark: SparkSession) -> None:
    key = [{"column": "country", "type": "string", "until": "|"}, {"column": "id", "type": "string"}]
    mapping = HBaseMapping.parsed(json.dumps({"row_key": key}))
    cells = [Cell(row, "d", "x", 1, "Put", "y") for row in ("|4", "__HIVE_DEFAULT_PARTITION__|4", "no|", "no|4")]
    for _ in range(2):
        result = feed.apply(cells, mapping, partition_by=["country"])
        assert (result.dead_letters, result.folded) == (2, 2)
    assert "the partition column country has the value '" in (result.dead_reason or "")
    values = [Cell("no|4", "d", qualifier, 1, "Put", "") for qualifier in ("x", "y")]
    cells_of_values = decode_cells(spark.createDataFrame(values, SCHEMA), mapping, ["country", "D_X"])
    first, second = (row[REASON] for row in cells_of_values.orderBy(QUALIFIER).collect())
    assert (first.startswith("the partition column D_X has the value ''"), second) == (True, None)
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert sorted((row["country"], row["id"]) for row in rows) == [("no", ""), ("no", "4")]


def test_events_of_hbases_kafka_proxy_are_cells(feed: Feed, table: Path, spark: SparkSession) -> None:
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
    mapping = HBaseMapping.parsed('{"row_key": [{"column": "id", "type": "string"}], "table": "shop"}')
    # As Kafka's source gives them.
    topic = spark.createDataFrame(
        [(None, event, f"cells/0/{offset}") for offset, event in enumerate([*encoded, b"\x02", encoded[0] + b"\x00"])],
        "key binary, value binary, origin string",
    )
    done = apply_cells(feed.writer, parse_avro_cells(topic, mapping), mapping)
    assert shown_by(table) == {"r1": {"d:y": "two"}, "r2": {"d:x": "one"}, "r3": {"m:x": "one"}}
    assert (done.changes, done.dead_letters, done.filtered) == (7, 2, 1)
    mapping = HBaseMapping.parsed('{"row_key": [{"column": "id", "type": "string"}], "table": "other"}')
    with pytest.raises(ChangesError, match="source tables: shop in the table, other in this run"):
        apply_cells(feed.writer, parse_avro_cells(topic, mapping), mapping)


def avro_events(spark: SparkSession, events: list[tuple[Any, ...]]) -> list[bytes]:
    """Encode events with Avro's own library, by the schema file of hbase-connectors."""
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
def test_a_new_qualifier_is_a_new_column_and_one_name_is_one_column(feed: Feed, table: Path) -> None:
    feed.apply([Cell("a", "d", "x", 1, "Put", "one")])
    feed.apply([Cell("a", "d", "new", 2, "Put", "two"), Cell("b", "d", "", 1, "Put", "of the family itself")])
    assert DeltaTable(table).schema().to_arrow().names == ["id", "d_x", "d", "d_new"]
    for family, qualifier in (("d", "X"), ("id", "")):
        with pytest.raises(ChangesError, match="name it in the mapping"):
            feed.apply([Cell("c", family, qualifier, 3, "Put", "y")])
    assert shown_by(table) == {"a": {"d:x": "one", "d:new": "two"}, "b": {"d": "of the family itself"}}


def test_a_table_that_was_filled_in_another_way_is_refused(feed: Feed, table: Path, spark: SparkSession) -> None:
    feed.writer.append(spark.createDataFrame([("a", "one", "two")], "id string, d_x string, d_y string"))
    with pytest.raises(ChangesError, match="the table has rows"):
        feed.apply([Cell("a", "d", "x", 1, "Put", "new")])
    assert shown_by(table) == {"a": {"d:x": "one", "d:y": "two"}}


@pytest.mark.full
def test_generated_columns_are_left_to_delta(spark: SparkSession, manager: Any, copy_of: Callable[..., Path]) -> None:
    table = copy_of(
        "CREATE TABLE {t} (id STRING, d_x STRING, twice STRING GENERATED ALWAYS AS (d_x || d_x)) USING delta"
    )
    feed = Feed(spark, manager, table)
    feed.apply([Cell("a", "d", "x", 1, "Put", "one"), Cell("b", "d", "x", 1, "Put", "two")])
    feed.apply([Cell("a", "d", "x", 2, "Put", "new")])
    rows = DeltaTable(table).to_pyarrow_table(columns=["id", "d_x", "twice"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [("a", "new", "newnew"), ("b", "two", "twotwo")]
