"""``cdc.py`` in this process: cells and Debezium messages of files, once and as a stream. Bad input writes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.test_debezium import INT, MICROS, TEXT, ZONED, envelope_schema, struct
from tests.support.deliveries import Killed, kill_process, shuffled_batches
from tests.support.error_line import error_line
from tests.support.hbase_model import SCHEMA, Cell, histories, values_in_hbase
from tests.support.hbase_table import visible_values
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import SourceError
from writer_jobs.feeds.debezium import apply as debezium_apply
from writer_jobs.job.cdc.arguments import parse_arguments

pytestmark = pytest.mark.spark

MAPPING = '{"row_key": [{"column": "id", "type": "string"}]}'
TOPIC = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"


@pytest.fixture
def mapping(tmp_path: Path) -> Path:
    file = tmp_path / "mapping.json"
    file.write_text(MAPPING)
    return file


@pytest.fixture
def cdc(run_job: Callable[..., Any], table: Path) -> Callable[..., Any]:
    """Run the job on the table: ``cdc("hbase", "--source", …)``."""

    def run(decoder: str, *arguments: Any) -> Any:
        return run_job("cdc", "--table", table, "--decoder", decoder, *arguments)

    return run


def json_lines(file: Path, values: Sequence[Any]) -> Path:
    """Write values as JSON lines. Texts are written as they are."""
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values))
    return file


def cell_lines(file: Path, cells: Sequence[Cell], *texts: str) -> Path:
    return json_lines(file, [*(cell._asdict() for cell in cells), *texts])


def event(op: str, at: int, before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any]:
    """Return the key and the value of a Debezium message, whose position in the source's log is ``at``."""
    source = {"connector": "postgresql", "lsn": at, "ts_ms": 1_700_000_000_000 + at, "sequence": f'["{at}","{at}"]'}
    key = {"id": (after or before or {})["id"]}
    return {"key": key, "value": {"op": op, "before": before, "after": after, "source": source}}


@pytest.mark.full
def test_cells_of_files_and_of_a_stream_equal_the_hbase_rows(
    cdc: Callable[..., Any], mapping: Path, table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    cells = histories(7, 60)
    json_batch, parquet_batch, stream_batch = shuffled_batches(7, cells, 3)
    source = cell_lines(tmp_path / "1" / "cells.jsonl", json_batch, '{"row": ')
    arguments = ("hbase", "--mapping", mapping, "--source", source, "--run-id", "one")
    report_file = tmp_path / "report.json"
    outcome = cdc(*arguments, "--report", report_file)
    assert outcome.code == 0, outcome.error
    assert [line["event"] for line in outcome.lines] == ["begun", "holding", "commit"]
    report = json.loads(report_file.read_text())
    (commit,) = report["commits"]
    assert (report["decoder"], commit["dead_letters"], commit["changes"]) == ("hbase", 1, len(json_batch))
    # The cells' timestamps are a few milliseconds after 1970.
    assert commit["lag_s"] > 1e9
    assert visible_values(table) == values_in_hbase(json_batch)
    version = outcome.lines[-1]["version"]
    outcome = cdc(*arguments)
    assert (outcome.code, outcome.lines[-1]["already_committed"], outcome.lines[-1]["version"]) == (0, True, version)
    os.utime(source, (1_700_000_000,) * 2)
    outcome = cdc(*arguments)
    assert (outcome.code, "with other sources" in error_line(outcome)) == (2, True)
    spark.createDataFrame(parquet_batch, SCHEMA).write.parquet(str(tmp_path / "2"))
    assert cdc("hbase", "--mapping", mapping, "--source", tmp_path / "2").code == 0
    assert visible_values(table) == values_in_hbase([*json_batch, *parquet_batch])
    folder, checkpoint = tmp_path / "3", tmp_path / "checkpoint"
    stream = ("--mapping", mapping, "--source", folder, "--trigger", "available-now", "--checkpoint", checkpoint)
    for number in range(2):
        cell_lines(folder / f"{number}.jsonl", stream_batch[number::2])
        outcome = cdc("hbase", *stream)
        assert outcome.code == 0, outcome.error
    assert visible_values(table) == values_in_hbase(cells)


@pytest.mark.full
def test_a_stream_of_debezium_messages_updates_the_table(
    cdc: Callable[..., Any],
    table: Path,
    tmp_path: Path,
    spark: SparkSession,
    rows_of: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def publish(messages: Sequence[dict[str, Any]]) -> None:
        rows = []
        for offset, message in enumerate(messages):
            value = message["value"] and json.dumps(message["value"]).encode()
            rows.append((json.dumps(message["key"]).encode(), value, "t", 0, offset, None, 0))
        # These are the columns of Spark's Kafka source.
        spark.createDataFrame(rows, TOPIC).write.mode("append").parquet(str(tmp_path / "topic"))

    ada, bo = {"id": 1, "name": "Ada"}, {"id": 2, "name": "Bo"}
    publish([
        event("u", 5, ada, {**ada, "name": "Ada!"}), event("c", 3, None, bo), event("c", 2, None, ada),
        event("d", 7, bo, None), {"key": {"id": 2}, "value": None}, {"key": {"id": 3}, "value": {"op": "x"}},
    ])  # fmt: skip
    stream = ("--source", tmp_path / "topic", "--format", "parquet", "--trigger", "available-now")
    arguments = ("debezium", *stream, "--checkpoint", tmp_path / "checkpoint")
    outcome = cdc(*arguments)
    assert outcome.code == 0, outcome.error
    counts = {"changes": 4, "folded": 2, "inserted": 1, "dead_letters": 1, "skipped": 1}
    assert {name: outcome.lines[-1][name] for name in counts} == counts
    publish([
        event("u", 4, bo, {**bo, "name": "late"}), event("u", 9, ada, {**ada, "name": "Ada?", "age": 36}),
        {"key": {"id": 3}, "value": {"op": "y"}},
    ])  # fmt: skip
    # The job is killed between the commits to the table and to the dead letters.
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(debezium_apply, "write_dead_letters", kill_process)
        cdc(*arguments)
    outcome = cdc(*arguments)
    assert (outcome.code, outcome.lines[-1]["already_committed"]) == (0, True), outcome.error
    assert rows_of(table, "id", "name", "age") == [(1, "Ada?", 36)]
    letters = rows_of(f"{table}_dead_letters", "origin", "reason")
    assert all("not known" in reason for _, reason in letters)
    assert [origin for origin, _ in letters] == ["t/0/2", "t/0/5"]


@pytest.mark.full
def test_options_for_events_are_applied(
    cdc: Callable[..., Any], table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    schema = envelope_schema(struct(id=INT, ends=ZONED, begins=MICROS, note=TEXT))
    row = {"id": 1, "ends": "infinity", "begins": 0, "note": "long"}
    messages = [event("c", 1, None, row), event("u", 2, None, {**row, "begins": 1, "note": "absent"})]
    lines = [{**message, "value": {"schema": schema, "payload": message["value"]}} for message in messages]
    source = json_lines(tmp_path / "source" / "events.json", lines)
    options = ("--infinity", "largest", "--local-times", "--unavailable-value", "absent")
    outcome = cdc("debezium", "--source", source, *options)
    assert (outcome.code, outcome.lines[-1]["dead_letters"]) == (0, 0), outcome.error
    rows = spark.read.format("delta").load(str(table))
    assert (dict(rows.dtypes)["begins"], dict(rows.dtypes)["ends"]) == ("timestamp_ntz", "timestamp")
    (stored,) = rows.collect()
    local_time = datetime(1970, 1, 1, microsecond=1)  # noqa: DTZ001 (without a zone)
    assert (stored["note"], stored["begins"], stored["ends"].year) == ("long", local_time, 9999)


@pytest.mark.full
def test_an_input_without_applied_changes_exits_with_8(
    cdc: Callable[..., Any], mapping: Path, table: Path, tmp_path: Path
) -> None:
    flat = json_lines(tmp_path / "1" / "flat.json", [{"key": {"id": 1}, "value": {"id": 1, "__op": "u"}}])
    stream = ("--source", flat.parent, "--trigger", "available-now", "--checkpoint", tmp_path / "checkpoint")
    for arguments in (("--source", flat), stream):
        outcome = cdc("debezium", *arguments, "--format", "json")
        assert outcome.code == 8, outcome.error
        assert "ExtractNewRecordState" in error_line(outcome)
        start, _, end = error_line(outcome).partition("1 messages are in ")
        assert start == f"cdc.py: nothing was applied to file:{table}: "
        assert end.startswith(f"file:{table}_dead_letters, the last batch most often: "), end
        assert not end.endswith("in the table)"), end
    orders = event("c", 1, None, {"id": 1, "n": 10})
    orders["value"]["source"] |= {"db": "shop", "table": "orders"}
    good = json_lines(tmp_path / "good.json", [orders])
    outcome = cdc("debezium", "--source", good, "--source-table", "customers")
    assert (outcome.code, outcome.lines[-1]["filtered"]) == (8, 1), outcome.error
    assert error_line(outcome) == (
        f"cdc.py: nothing was applied to file:{table}: 1 events are of other source tables than customers"
    )
    assert not table.exists()
    mixed = ("--source", good, "--source", flat, "--format", "json", "--max-dead-letters")
    for limit, code in (("0", 5), ("49%", 5), ("50%", 0), ("1", 0)):
        outcome = cdc("debezium", *mixed, limit)
        assert (outcome.code, table.exists()) == (code, code == 0), outcome.error
    customers = json_lines(tmp_path / "other.json", [json.loads(json.dumps(orders).replace("orders", "customers"))])
    # A source table without events is no error if the Delta table is bound to it. Any other name may be misspelled.
    for source, name, code in (
        (good, "customers", 8),
        (good, "orders", 0),
        (customers, "orders", 0),
        (customers, "order", 8),
    ):
        outcome = cdc("debezium", "--table", tmp_path / "bound", "--source", source, "--source-table", name)
        assert outcome.code == code, (name, outcome.error)
    bad = json_lines(tmp_path / "bad.json", ["no cell"])
    cells = ("--mapping", mapping, "--source", bad, "--table", tmp_path / "cells")
    assert [cdc("hbase", *cells, *limit).code for limit in ((), ("--max-dead-letters", "0"))] == [8, 5]
    outcome = cdc("hbase", *cells, "--max-dead-letters", "few")
    assert (outcome.code, "--max-dead-letters" in error_line(outcome)) == (2, True)


def test_missing_local_sources_and_mappings_are_refused(mapping: Path, tmp_path: Path, spark: SparkSession) -> None:
    folder, empty = json_lines(tmp_path / "full" / "1.json", [{}]).parent, tmp_path / "empty"
    empty.mkdir()
    files = HadoopFiles.of(spark)

    def check(mapping: Path, *sources: Path) -> None:
        options = ("--zookeeper", "127.0.0.1:1", "--table", "t", "--decoder", "hbase", "--mapping", str(mapping))
        parse_arguments([*options, "--source", *map(str, sources)]).check_local_sources(files)

    # One of several folders may be empty.
    check(mapping, folder, empty)
    for bad_mapping, sources, message in (
        (tmp_path / "nowhere.json", [folder], "mapping .* does not exist"),
        (mapping, [empty], "has no files"),
        (mapping, [folder, tmp_path / "nowhere"], "does not exist"),
    ):
        with pytest.raises(SourceError, match=message):
            check(bad_mapping, *sources)


HBASE = ("--mapping", "{mapping}", "--source", "{cells}")
CHECKPOINT_IN_THE_TABLE = ("--source", "{folder}", "--trigger", "available-now", "--checkpoint", "{table}/notes")
OF_EVENTS = "are for Debezium's events"
BAD: list[tuple[str, tuple[str, ...], int, str]] = [
    ("hbase", ("--source", "{cells}"), 2, "--mapping"),
    ("hbase", (*HBASE, "--keys", "id"), 2, "--keys"),
    ("hbase", (*HBASE, "--source-table", "a"), 2, "--source-table"),
    ("hbase", (*HBASE, "--schema-registry", "http://127.0.0.1:1"), 2, OF_EVENTS),
    ("hbase", (*HBASE, "--sequence-by", "ts_ms"), 2, OF_EVENTS),
    ("hbase", (*HBASE, "--unavailable-value", "absent"), 2, OF_EVENTS),
    ("hbase", (*HBASE, "--infinity", "largest"), 2, OF_EVENTS),
    ("hbase", (*HBASE, "--local-times"), 2, OF_EVENTS),
    ("hbase", (*HBASE, "--on-truncate", "delete"), 2, OF_EVENTS),
    ("hbase", (*HBASE, "--scd-type", "2"), 2, OF_EVENTS),
    ("debezium", (*HBASE,), 2, "--mapping"),
    ("debezium", ("--source", "{cells}", "--infinity", "never"), 2, "--infinity"),
    ("hbase", ("--mapping", "{mapping}"), 2, "--source"),
    ("hbase", ("--mapping", "/nowhere.json", "--source", "{cells}"), 2, "does not exist"),
    ("hbase", ("--mapping", "{cells}", "--source", "{cells}"), 2, "unknown fields: family, row"),
    ("hbase", ("--mapping", "{mapping}", "--source", "/nowhere"), 2, "does not exist"),
    ("hbase-proxy", HBASE, 2, "lines"),
    ("hbase", ("--mapping", "{mapping}", *CHECKPOINT_IN_THE_TABLE), 2, "in the folder of the table"),
    ("hbase", ("--mapping", "{mapping}", "--source", "{corrupt}"), 5, "corrupt.json.gz"),
    ("debezium", ("--source", "{truncate}"), 5, "truncated"),
    ("debezium", ("--source", "{keyless}"), 5, "key"),
    ("debezium", ("--kafka", "localhost:1", "--topic", "t"), 2, "--packages"),
    ("debezium", ("--kafka", "localhost:1", "--topic", "t", "--format", "json"), 2, "--format"),
]


@pytest.mark.parametrize(("decoder", "arguments", "code", "message"), BAD)
def test_bad_input_is_one_error_line_and_writes_nothing(
    cdc: Callable[..., Any],
    mapping: Path,
    table: Path,
    tmp_path: Path,
    decoder: str,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    files = {
        "folder": tmp_path,
        "table": table,
        "mapping": mapping,
        "cells": json_lines(tmp_path / "cells.json", [{"row": "a", "family": "d"}]),
        "truncate": json_lines(tmp_path / "truncate.json", [{**event("t", 1, None, {"id": 1}), "key": {"id": 1}}]),
        "keyless": json_lines(tmp_path / "keyless.json", [event("c", 1, None, {"id": 1})["value"]]),
    }
    (tmp_path / "corrupt.json.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    files["corrupt"] = tmp_path / "corrupt.json.gz"
    outcome = cdc(decoder, *(argument.format(**files) for argument in arguments))
    assert outcome.code == code, outcome.error
    assert message in error_line(outcome), outcome.error
    assert not table.exists()
