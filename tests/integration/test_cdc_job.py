"""``cdc.py`` in this process: cells and events out of files and topics, once and as a stream; what bad input leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.support.deliveries import Killed, delivered, end_of_the_process
from tests.support.hbase_model import SCHEMA, hbase_shows, histories
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


def sentence(done: Any) -> str:
    (said,) = [line for line in done.error.splitlines() if line.startswith("cdc.py: ")]
    return str(said)


def lines_of(file: Path, objects: Sequence[Any]) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in objects))
    return file


def shown_by(table: Path) -> dict[str, dict[str, str]]:
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    return {
        row["id"]: {name.replace("_", ":"): value for name, value in row.items() if name != "id" and value is not None}
        for row in rows
    }


def event(op: str, at: int, before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any]:
    source = {"connector": "postgresql", "lsn": at, "ts_ms": 1_700_000_000_000 + at, "sequence": f'["{at}","{at}"]'}
    key = {"id": (after or before or {})["id"]}
    return {"key": key, "value": {"op": op, "before": before, "after": after, "source": source}}


@pytest.mark.full
def test_cells_as_lines_and_as_parquet_and_as_a_stream_of_both_are_what_hbase_shows(
    cdc: Callable[..., Any], mapping: Path, table: Path, tmp_path: Path, spark: SparkSession
) -> None:
    cells = histories(7, 60)
    first, second, third = delivered(7, cells, 3)
    source = lines_of(tmp_path / "1" / "cells.jsonl", [*(each._asdict() for each in first), '{"row": '])
    report = tmp_path / "report.json"
    done = cdc("hbase", "--mapping", mapping, "--source", source, "--report", report, "--run-id", "one")
    assert done.code == 0, done.error
    assert [line["event"] for line in done.lines] == ["begun", "holding", "commit"]
    told = json.loads(report.read_text())
    assert (told["decoder"], told["commits"][0]["dead_letters"], told["commits"][0]["changes"]) == (
        "hbase", 1, len(first),
    )  # fmt: skip
    assert told["commits"][0]["lag_s"] > 1e9
    assert shown_by(table) == hbase_shows(first)
    version = done.lines[-1]["version"]
    done = cdc("hbase", "--mapping", mapping, "--source", source, "--run-id", "one")
    assert (done.code, done.lines[-1]["already_committed"], done.lines[-1]["version"]) == (0, True, version)
    os.utime(source, (1_700_000_000,) * 2)
    refused = cdc("hbase", "--mapping", mapping, "--source", source, "--run-id", "one")
    assert (refused.code, "with other sources" in sentence(refused)) == (2, True)
    spark.createDataFrame(second, SCHEMA).write.parquet(str(tmp_path / "2"))
    assert cdc("hbase", "--mapping", mapping, "--source", tmp_path / "2").code == 0
    assert shown_by(table) == hbase_shows([*first, *second])
    folder, checkpoint = tmp_path / "3", tmp_path / "checkpoint"
    stream = ("--mapping", mapping, "--source", folder, "--trigger", "available-now", "--checkpoint", checkpoint)
    for number in range(2):
        lines_of(folder / f"{number}.jsonl", [each._asdict() for each in third[number::2]])
        done = cdc("hbase", *stream)
        assert done.code == 0, done.error
    assert shown_by(table) == hbase_shows(cells)


@pytest.mark.full
def test_a_topic_of_debezium_is_the_table_as_a_stream_too(
    cdc: Callable[..., Any], table: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def topic(folder: str, messages: Sequence[dict[str, Any]]) -> None:
        rows = [
            (
                json.dumps(each["key"]).encode(),
                each["value"] and json.dumps(each["value"]).encode(),
                "t",
                0,
                at,
                None,
                0,
            )
            for at, each in enumerate(messages)
        ]
        # As Kafka's source gives them.
        spark.createDataFrame(rows, TOPIC).write.mode("append").parquet(str(tmp_path / folder))

    ada, bo = {"id": 1, "name": "Ada"}, {"id": 2, "name": "Bo"}
    topic("1", [
        event("u", 5, ada, {**ada, "name": "Ada!"}), event("c", 3, None, bo), event("c", 2, None, ada),
        event("d", 7, bo, None), {"key": {"id": 2}, "value": None}, {"key": {"id": 3}, "value": {"op": "x"}},
    ])  # fmt: skip
    stream = ("--source", tmp_path / "1", "--trigger", "available-now", "--checkpoint", tmp_path / "checkpoint")
    done = cdc("debezium", *stream, "--format", "parquet")
    assert done.code == 0, done.error
    counts = {"changes": 4, "folded": 2, "inserted": 1, "dead_letters": 1, "skipped": 1}
    assert {name: done.lines[-1][name] for name in counts} == counts
    topic("1", [
        event("u", 4, bo, {**bo, "name": "late"}), event("u", 9, ada, {**ada, "name": "Ada?", "age": 36}),
        {"key": {"id": 3}, "value": {"op": "y"}},
    ])  # fmt: skip
    # Killed between the table's commit and that of the dead letters.
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(debezium_apply, "write_dead_letters", end_of_the_process)
        cdc("debezium", *stream, "--format", "parquet")
    done = cdc("debezium", *stream, "--format", "parquet")
    assert (done.code, done.lines[-1]["already_committed"]) == (0, True), done.error
    rows = DeltaTable(table).to_pyarrow_table(columns=["id", "name", "age"]).to_pylist()
    assert rows == [{"id": 1, "name": "Ada?", "age": 36}]
    letters = DeltaTable(f"{table}_dead_letters").to_pyarrow_table().to_pylist()
    assert all("not known" in each["reason"] for each in letters)
    assert sorted(each["origin"] for each in letters) == ["t/0/2", "t/0/5"]


@pytest.mark.full
def test_an_input_of_which_nothing_is_applied_ends_with_8(
    cdc: Callable[..., Any], mapping: Path, table: Path, tmp_path: Path
) -> None:
    flat = lines_of(tmp_path / "1" / "flat.json", [{"key": {"id": 1}, "value": {"id": 1, "__op": "u"}}])
    stream = ("--source", flat.parent, "--trigger", "available-now", "--checkpoint", tmp_path / "checkpoint")
    for arguments in (("--source", flat), stream):
        outcome = cdc("debezium", *arguments, "--format", "json")
        assert outcome.code == 8, outcome.error
        assert "ExtractNewRecordState" in sentence(outcome)
        start, _, end = sentence(outcome).partition("1 messages are in ")
        assert start == f"cdc.py: nothing was applied to file:{table}: "
        assert end.startswith(f"file:{table}_dead_letters, most frequent reason: "), end
        assert not end.endswith("in the table)"), end
    orders = event("c", 1, None, {"id": 1, "n": 10})
    orders["value"]["source"] |= {"db": "shop", "table": "orders"}
    good = lines_of(tmp_path / "good.json", [orders])
    outcome = cdc("debezium", "--source", good, "--source-table", "customers")
    assert (outcome.code, outcome.lines[-1]["filtered"]) == (8, 1), outcome.error
    assert sentence(outcome) == (
        f"cdc.py: nothing was applied to file:{table}: 1 events are of other source tables than customers"
    )
    assert not table.exists()
    mixed = ("--source", good, "--source", flat, "--format", "json", "--max-dead-letters")
    for limit, code in (("0", 5), ("49%", 5), ("50%", 0), ("1", 0)):
        outcome = cdc("debezium", *mixed, limit)
        assert (outcome.code, table.exists()) == (code, code == 0), outcome.error
    bound = ("--table", tmp_path / "bound", "--source", good, "--source-table")
    customers = lines_of(tmp_path / "other.json", [json.loads(json.dumps(orders).replace("orders", "customers"))])
    codes = [(8, "customers"), (0, "orders")]
    assert [(cdc("debezium", *bound, name).code, name) for _, name in codes] == codes
    # The bound table had no events; another name may be a misspelled one.
    bound = ("--table", tmp_path / "bound", "--source", customers, "--source-table")
    codes = [(0, "orders"), (8, "order")]
    assert [(cdc("debezium", *bound, name).code, name) for _, name in codes] == codes
    bad = lines_of(tmp_path / "bad.json", ["no cell"])
    cells = ("--mapping", mapping, "--source", bad, "--table", tmp_path / "cells")
    assert [cdc("hbase", *cells, *limit).code for limit in ((), ("--max-dead-letters", "0"))] == [8, 5]
    outcome = cdc("hbase", *cells, "--max-dead-letters", "few")
    assert (outcome.code, "--max-dead-letters" in sentence(outcome)) == (2, True)


def test_local_files_are_looked_for_before_spark_starts(mapping: Path, tmp_path: Path, spark: SparkSession) -> None:
    full, empty, files = lines_of(tmp_path / "full" / "1.json", [{}]).parent, tmp_path / "empty", HadoopFiles.of(spark)
    empty.mkdir()

    def check(mapping: Path, *sources: Path) -> None:
        place = ("--zookeeper", "127.0.0.1:1", "--table", "t", "--decoder", "hbase", "--mapping", str(mapping))
        parse_arguments([*place, "--source", *map(str, sources)]).check_local_sources(files)

    # One of several folders may be empty.
    check(mapping, full, empty)
    for bad_mapping, sources, words in (
        (tmp_path / "nowhere.json", [full], "mapping .* does not exist"),
        (mapping, [empty], "has no files"),
        (mapping, [full, tmp_path / "nowhere"], "does not exist"),
    ):
        with pytest.raises(SourceError, match=words):
            check(bad_mapping, *sources)


HBASE = ("--mapping", "{mapping}", "--source", "{cells}")
BELOW = ("--source", "{folder}", "--trigger", "available-now", "--checkpoint", "{table}/notes")
BAD: list[tuple[str, tuple[str, ...], int, str]] = [
    ("hbase", ("--source", "{cells}"), 2, "--mapping"),
    ("hbase", (*HBASE, "--keys", "id"), 2, "--keys"),
    ("hbase", (*HBASE, "--source-table", "a"), 2, "--source-table"),
    ("hbase", ("--mapping", "{mapping}"), 2, "--source"),
    ("hbase", ("--mapping", "/nowhere.json", "--source", "{cells}"), 2, "does not exist"),
    ("hbase", ("--mapping", "{cells}", "--source", "{cells}"), 2, "unknown fields: family, row"),
    ("hbase", ("--mapping", "{mapping}", "--source", "/nowhere"), 2, "does not exist"),
    ("hbase-proxy", HBASE, 2, "lines"),
    ("hbase", ("--mapping", "{mapping}", *BELOW), 2, "in the folder of the table"),
    ("hbase", ("--mapping", "{mapping}", "--source", "{corrupt}"), 5, ""),
    ("debezium", ("--source", "{truncate}"), 5, "truncated"),
    ("debezium", ("--source", "{keyless}"), 5, "key"),
    ("debezium", ("--kafka", "localhost:1", "--topic", "t"), 2, "--packages"),
    ("debezium", ("--kafka", "localhost:1", "--topic", "t", "--format", "json"), 2, "--format"),
]


@pytest.mark.parametrize(("decoder", "arguments", "code", "says"), BAD)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    cdc: Callable[..., Any],
    mapping: Path,
    table: Path,
    tmp_path: Path,
    decoder: str,
    arguments: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    files = {
        "folder": tmp_path,
        "table": table,
        "mapping": mapping,
        "cells": lines_of(tmp_path / "cells.json", [{"row": "a", "family": "d"}]),
        "truncate": lines_of(tmp_path / "truncate.json", [{**event("t", 1, None, {"id": 1}), "key": {"id": 1}}]),
        "keyless": lines_of(tmp_path / "keyless.json", [event("c", 1, None, {"id": 1})["value"]]),
    }
    (tmp_path / "corrupt.json.gz").write_bytes(b"\x1f\x8b\x08\x00broken")
    files["corrupt"] = tmp_path / "corrupt.json.gz"
    done = cdc(decoder, *(each.format(**files) for each in arguments))
    assert done.code == code, done.error
    assert says in sentence(done), done.error
    assert not table.exists()
