"""``stream.py`` in this process reads files of repeated and late rows, and applies each micro-batch once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from tests.support.deliveries import Killed, kill_process
from tests.support.error_line import error_line
from tests.support.metrics_text import values_of
from writer_jobs import CheckpointError, LockedDeltaWriter, stream_into
from writer_jobs.late_rows import stream as arrivals_stream

pytestmark = pytest.mark.spark

KEYS = ("--keys", "flight", "--event-time", "at")
OPTIONS = (*KEYS, "--partition-by", "day")
ONE_FILE = ("--trigger", "available-now", "--max-files-per-batch", "1")


@dataclass
class FlightStream:
    """The job that streams a folder of files with flights into a table."""

    run_job: Callable[..., Any]
    rows_of: Callable[..., Any]
    table: Path
    landing: Path
    checkpoint: Path

    def rows(self, *columns: str, suffix: str = "") -> list[tuple[Any, ...]]:
        """Return the rows of the table, or of the side table with this suffix."""
        return list(self.rows_of(f"{self.table}{suffix}", *columns))

    def put(self, name: str, *rows: tuple[Any, ...]) -> Path:
        """Write a file into the folder. Rows are tuples of flight, day, hour, seats and version."""
        columns = ("flight", "at", "day", "seats", "version")
        lines = [
            dict(zip(columns, (flight, f"2013-01-{day:02}T{hour:02}:00:00Z", day, seats, version), strict=True))
            for flight, day, hour, seats, version in rows
        ]
        self.landing.mkdir(exist_ok=True)
        file = self.landing / f"{name}.json"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.utime(file, (1_700_000_000 + int(name),) * 2)
        return file

    def run(self, *arguments: Any, options: tuple[str, ...] = (*OPTIONS, *ONE_FILE)) -> Any:
        paths = ("--table", self.table, "--source", self.landing, "--checkpoint", self.checkpoint)
        return self.run_job("stream", *paths, *options, *arguments)


@pytest.fixture
def stream(run_job: Callable[..., Any], rows_of: Callable[..., Any], table: Path, tmp_path: Path) -> FlightStream:
    return FlightStream(run_job, rows_of, table, tmp_path / "landing", tmp_path / "checkpoint")


@pytest.mark.full
def test_rows_are_applied_once_and_late_rows_are_separated(stream: FlightStream, tmp_path: Path) -> None:
    lateness_arguments = ("--watermark-delay", "1 day", "--allowed-lateness", "1 week")
    stream.put("1", ("UA1", 1, 8, 100, 1), ("UA1", 1, 8, 100, 1), ("UA2", 3, 8, 90, 1))
    stream.put("2", ("UA3", 1, 9, 80, 1), ("UA1", 1, 8, 100, 1), ("UA4", 12, 9, 70, 1))
    stream.put("3")
    stream.put("4", ("UA5", 2, 9, 60, 1), ("UA2", 3, 8, 95, 2))
    report_file, metrics_file = tmp_path / "report.json", tmp_path / "job.prom"
    outcome = stream.run(
        *lateness_arguments, "--sequence-by", "version", "--report", report_file, "--metrics", metrics_file
    )
    assert (outcome.code, outcome.error) == (0, "")
    newest_time = datetime.fromisoformat("2013-01-12T09:00:00Z").timestamp()
    source = f"file:{stream.landing}"
    assert values_of(metrics_file.read_text(), "sluice_feed_newest_timestamp_seconds", source=source) == [newest_time]
    names = ("batch", "arrived", "repeated", "late", "too_late", "inserted", "updated")
    assert [tuple(line[name] for name in names) for line in outcome.commits] == [
        (0, 3, 1, 0, 0, 2, 0),
        (1, 3, 1, 2, 0, 2, 0),
        (2, 0, 0, 0, 0, 0, 0),
        (3, 2, 0, 0, 2, 0, 0),
    ]
    assert [line["watermark"] for line in outcome.commits[1:]] == ["2013-01-11T09:00:00+00:00"] * 3
    commit_infos = (
        json.loads(file.read_text().splitlines()[0]) for file in sorted(stream.table.glob("_delta_log/*.json"))
    )
    watermark_stamps = [commit_info["commitInfo"]["sluice"].get("watermark") for commit_info in commit_infos]
    watermarks = [stamp for stamp in watermark_stamps if stamp]
    assert [stamp["at"] for stamp in watermarks] == ["2013-01-02T08:00:00+00:00", "2013-01-11T09:00:00+00:00"]
    assert len({stamp["stream"] for stamp in watermarks}) == 1
    assert json.loads(report_file.read_text())["totals"] == {
        "commits": 4, "arrived": 8, "repeated": 2, "late": 2, "too_late": 2, "inserted": 4, "updated": 0,
        "dead_letters": 0, "missing_files": 0,
    }  # fmt: skip
    assert stream.rows("flight", "seats") == [("UA1", 100), ("UA2", 90), ("UA3", 80), ("UA4", 70)]
    newest = datetime.fromisoformat("2013-01-12T09:00:00Z")
    assert stream.rows("flight", "seats", "__NEWEST_EVENT_TIME", suffix="_late") == [
        ("UA2", 95, newest), ("UA5", 60, newest),
    ]  # fmt: skip
    # The next run has the same watermark, and the table gets the newer version of a row.
    stream.put("5", ("UA4", 12, 9, 75, 2), ("UA6", 6, 1, 50, 1))
    (line,) = stream.run(*lateness_arguments, "--sequence-by", "version").commits
    assert (line["late"], line["inserted"], line["updated"]) == (1, 1, 1)


@pytest.mark.full
@pytest.mark.parametrize("killed_at", ["lock", "commit", "finish", "commit, negative control: no transaction"])
def test_a_killed_batch_is_in_both_tables_once(
    stream: FlightStream, versions: Callable[[Path], list[str]], monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    """The second batch is killed before its commit, after it, or after its event time is recorded.

    The job that is killed before a commit restarts with another allowed lateness. The killed batch keeps its lateness.
    A finished batch does not need its file again. Without transactions, late rows are stored twice.
    """
    apply_rows, finish = arrivals_stream.apply_rows, arrivals_stream.StreamProgress.finish
    has_txn = "no transaction" not in killed_at
    is_restarted = is_killed = False

    def apply(*args: Any, **options: Any) -> Any:
        nonlocal is_killed
        is_killed = not is_restarted and options["txn"][1] == 1
        if is_killed and killed_at == "lock":
            options["before_write"] = kill_process
        result = apply_rows(*args, **{**options, "txn": options["txn"] if has_txn else None})
        if is_killed and killed_at != "finish":
            raise Killed
        return result

    def finish_and_end(*args: Any) -> None:
        finish(*args)
        if is_killed:
            raise Killed

    lateness_arguments = ("--allowed-lateness", "1 day")
    stream.put("1", ("UA1", 9, 8, 100, 1))
    second_file = stream.put("2", ("UA2", 1, 8, 90, 1), ("UA3", 12, 8, 80, 1))
    stream.put("3", ("UA4", 2, 8, 70, 1), ("UA5", 11, 9, 60, 1))
    monkeypatch.setattr(arrivals_stream, "apply_rows", apply)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(arrivals_stream.StreamProgress, "finish", finish_and_end)
        stream.run(*lateness_arguments)
    is_restarted = True
    if killed_at == "finish":
        second_file.unlink()
    outcome = stream.run("--allowed-lateness", "20 days") if killed_at == "lock" else stream.run(*lateness_arguments)
    assert (outcome.code, [line["batch"] for line in outcome.commits]) == (0, [1, 2]), outcome.error
    late_rows_in_time = [("UA4", 2)] if killed_at == "lock" else []
    assert stream.rows("flight", "day") == sorted([("UA1", 9), ("UA3", 12), ("UA5", 11), *late_rows_in_time])
    rows_too_late = stream.rows("flight", "day", suffix="_late")
    if has_txn:
        assert outcome.commits[0]["already_committed"] == (killed_at != "lock")
        assert rows_too_late == ([("UA2", 1)] if late_rows_in_time else [("UA2", 1), ("UA4", 2)])
        # One version creates the table, one binds it to its feed, and each batch writes one.
        assert len(versions(stream.table)) == 5
    else:
        assert rows_too_late == [("UA2", 1), ("UA2", 1), ("UA4", 2)]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--keys", "nobody", "--event-time", "at", *ONE_FILE), 5, "no column nobody"),
        (("--keys", "flight", "--event-time", "seats", *ONE_FILE), 5, "must be a timestamp or a date"),
        (("--keys", "at", "--event-time", "flight", *ONE_FILE), 5, "UA1"),
        ((*OPTIONS, *ONE_FILE, "--sequence-by", "nothing"), 5, "nothing"),
        (OPTIONS, 2, "--trigger"),
        ((*OPTIONS, *ONE_FILE, "--watermark-delay", "soon"), 2, "10 minutes"),
        ((*OPTIONS, *ONE_FILE, "--source-table", "t"), 2, "one source"),
        ((*OPTIONS, *ONE_FILE, "--topic", "t"), 2, "belong together"),
        ((*OPTIONS, *ONE_FILE, "--value-schema", "flight string, at timestamp"), 2, "columns value, topic"),
        ((*OPTIONS, *ONE_FILE, "--watermark-delay", "2 days", "--allowed-lateness", "1 day"), 2, "--allowed-lateness"),
        ((*OPTIONS, *ONE_FILE, "--checkpoint", "{table}/notes"), 2, "in the folder of the table"),
    ],
)
def test_bad_input_is_one_error_line_and_writes_nothing(
    stream: FlightStream, options: tuple[str, ...], code: int, message: str
) -> None:
    stream.put("1", ("UA1", 1, 8, 100, 1))
    outcome = stream.run(options=tuple(option.format(table=stream.table) for option in options))
    assert outcome.code == code, outcome.error
    assert message in error_line(outcome), outcome.error
    assert not stream.table.exists()


@pytest.mark.full
def test_a_null_event_time_ends_the_stream_until_it_is_fixed(stream: FlightStream) -> None:
    stream.put("1", ("UA1", 1, 8, 100, 1))
    file = stream.put("2", ("UA2", 2, 8, 100, 1))
    text = file.read_text()
    file.write_text(text.replace('"2013-01-02T08:00:00Z"', "null"))
    outcome = stream.run()
    assert (outcome.code, "flight=UA2" in error_line(outcome)) == (5, True), outcome.error
    file.write_text(text)
    assert stream.run().code == 0
    assert stream.rows("flight") == [("UA1",), ("UA2",)]


def test_an_unknown_checkpoint_format_is_refused(stream: FlightStream, spark: SparkSession) -> None:
    """The setting belongs to Spark. Its default is the known format."""
    stream.put("1", ("UA1", 1, 8, 100, 1))
    spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")
    try:
        outcome = stream.run()
    finally:
        spark.conf.unset("spark.sql.streaming.offsetLog.formatVersion")
    assert (outcome.code, "offsets/0 has the format v2" in error_line(outcome)) == (2, True), outcome.error
    assert not stream.table.exists()


@pytest.mark.full
def test_rows_appended_to_a_source_table_are_streamed(
    stream: FlightStream, spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    source_table = tmp_path / "raw"
    writer = LockedDeltaWriter(spark, manager, str(source_table))

    def append(*flights: str | None) -> None:
        rows = [(flight, "2013-01-01T08:00:00Z" if flight != "UA5" else "soon") for flight in flights]
        writer.append(spark.createDataFrame(rows, "flight string, at string"))

    paths = ("--table", stream.table, "--checkpoint", stream.checkpoint, "--source-table", source_table)
    run = partial(stream.run_job, "stream", *paths, *KEYS, "--trigger", "available-now")
    outcome = run()
    assert (outcome.code, "source table" in error_line(outcome)) == (2, True), outcome.error
    append("UA1", "UA2")
    append("UA2", "UA3")
    outcome = run("--max-files-per-batch", "1")
    assert outcome.code == 0, outcome.error
    assert sum(line["inserted"] for line in outcome.commits) == 3
    # The last two rows become dead letters: rows of a table cannot be fixed there.
    append("UA3", "UA4", "UA5", None)
    (line,) = run().commits
    assert (line["arrived"], line["inserted"], line["dead_letters"]) == (2, 1, 2)
    assert stream.rows("flight") == [("UA1",), ("UA2",), ("UA3",), ("UA4",)]
    origin = source_table.as_uri().replace("///", "/")
    assert stream.rows("reason", "origin", "value", suffix="_dead_letters") == [
        ("null in flight", origin, b'{"flight":null,"at":"2013-01-01T08:00:00Z"}'),
        ("the event time is not a timestamp", origin, b'{"flight":"UA5","at":"soon"}'),
    ]


@pytest.mark.full
def test_messages_with_json_of_the_schema_become_rows(
    stream: FlightStream, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages have the columns of Spark's Kafka source."""
    values = [
        '{"flight": "UA1", "at": "2013-01-01T08:00:00Z", "seats": 100}',
        '{"flight": "UA1", "at": "2013-01-01T08:00:00Z", "seats": 100}], {}',
        '{"flight": "UA1", "at": "soon"}',
        "no",
        None,
        '{"at": "2013-01-01T08:00:00Z", "seats": 100}',
        '{"flight": "UA1", "at": null}',
        '{"flight": "UA1", "at": "+10000-01-01T08:00:00Z"}',
        '{"flight": "UA2", "at": "2013-01-01T08:00:00Z", "fares": [0.123456789012345678901]}',
        '{"flight": "UA3", "at": "2013-01-01T08:00:00Z", "fares": [1, 19.9999999999999999999999]}',
        '{"flight": "UA3", "at": "2013-01-01T08:00:00Z", "fares": [1.00000000000000000000001e0]}',
        '{"flight": "UA3", "at": 1700000000000}',
        '{"flight": "UA3", "at": "2013-01-01T08:00:00Z", "share": 1e400}',
        '{"flight": "UA4", "at": "2013-01-01T08:00:00Z", "note": 12, "raw": "AQID", "tiny": -128, "home": {"zip":"1"}}',
        '{"flight": "UA5", "at": "2013-01-01T08:00:00Z", "note": 1.10}',
        '{"flight": "UA5", "at": "2013-01-01T08:00:00Z", "note": {"b": 1, "a": 2}}',
        '{"flight": "UA5", "at": "2013-01-01T08:00:00Z", "tiny": 200}',
        '{"flight": "UA5", "at": "2013-01-01T08:00:00Z", "home": {"zip": "1", "city": "X"}}',
        '{"flight": "UA5", "at": "2013-01-01T08:00:00Z", "Note": "x"}',
        '{"flight": "UA6", "at": "2013-01-01T08:00:00Z", "not": "a column of the schema"}',
        '{"flight": "UA5", "at": "2013-01-01T08:00:00Z"},0] anything',
        '{"flight": "x 12345678901234567e5 ,y", "at": "2013-01-01T08:00:00Z", "share": 0.5}',
        '{"flight": "UA7", "at": "2013-01-01T08:00:00Z", "share": 1.23456789012345e5}',
        '{"flight": "UA8", "at": "2013-01-01T08:00:00Z", "share": 123456789.0123456789e0}',
        '{"flight": "", "at": "2013-01-01T08:00:00Z"}',
        '{"flight": "UA3", "at": "2013-01-01T08:00:00Z", "fares": [0.012345678901234567890123456789012345678]}',
    ]
    messages = [
        (None, None if value is None else bytearray(value.encode()), "departures", 0, number)
        for number, value in enumerate(values)
    ]
    rows = spark.createDataFrame(messages, "key binary, value binary, topic string, partition int, offset long")
    rows.coalesce(1).write.parquet(str(stream.landing))
    options = (*KEYS, "--trigger", "available-now", "--format", "parquet", "--partition-by", "flight")
    columns = "flight string, at timestamp, seats int, fares array<decimal(30,21)>, share double"
    schema = ("--value-schema", f"{columns}, note string, raw binary, tiny tinyint, home struct<zip: string>")
    dead_letters = Path(f"{stream.table}_dead_letters")
    # A restarted job writes the dead letters of a committed batch once.
    for killed_at in ("write_dead_letters", "StreamProgress.finish"):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(f"writer_jobs.late_rows.stream.{killed_at}", kill_process)
            stream.run(*schema, options=options)
        assert dead_letters.exists() == (killed_at == "StreamProgress.finish")
    outcome = stream.run(*schema, options=options)
    assert (outcome.code, outcome.error) == (0, "")
    (line,) = outcome.commits
    assert (line["already_committed"], line["arrived"], line["dead_letters"]) == (True, 6, 20)
    assert stream.rows("flight", "seats", "fares", "share") == [
        ("UA1", 100, None, None), ("UA2", None, [Decimal("0.123456789012345678901")], None),
        ("UA4", None, None, None), ("UA6", None, None, None),
        ("UA7", None, None, 123456.789012345), ("x 12345678901234567e5 ,y", None, None, 0.5),
    ]  # fmt: skip
    assert ("12", b"\1\2\3", -128, {"zip": "1"}) in stream.rows("note", "raw", "tiny", "home")
    not_text = "column note: the text of its JSON would change; send a JSON string"
    not_exact, decimal = "is not exactly a value of type", "decimal(30,21)"
    reasons = {
        **dict.fromkeys((1, 3, 4, 20), "the value is not a JSON object of --value-schema"),
        2: f"column at: the value 'soon' {not_exact} timestamp",
        5: "null in flight",
        6: "null in at",
        7: "the event time is outside 0001-01-03 to 9999-12-29 (UTC)",
        9: f"column fares[]: the value '19.9999999999999999999999' {not_exact} {decimal}",
        10: f"column fares[]: the value '1.0' {not_exact} {decimal}",
        11: f"column at: the value '1700000000000' {not_exact} timestamp",
        12: f"column share: the value 'Infinity' {not_exact} double",
        **dict.fromkeys((14, 15), not_text),
        16: f"column tiny: the value '200' {not_exact} tinyint",
        17: "field home.city is not in --value-schema",
        18: "field Note is not in --value-schema",
        23: f"column share: the value '1.2345678901234567E8' {not_exact} double",
        24: "the partition column flight has the value '', which Delta stores as null: write null or another text, or "
        "partition by another column",
        25: f"column fares[]: the value '0.012345678901234568' {not_exact} {decimal}",
    }
    assert stream.rows("origin", "reason", suffix="_dead_letters") == sorted(
        ((f"departures/0/{offset}", reason) for offset, reason in reasons.items()), key=repr
    )
    bad_stream = replace(stream, table=tmp_path / "empty", landing=tmp_path / "bad", checkpoint=tmp_path / "another")
    rows.where("offset IN (3, 4)").coalesce(1).write.parquet(str(bad_stream.landing))
    # The second run has no messages.
    assert [bad_stream.run(*schema, options=options).code for _ in range(2)] == [8, 0]
    assert len(bad_stream.rows("reason", suffix="_dead_letters")) == 2
    for columns in ("flight", "flight varchar(3), at timestamp"):
        outcome = stream.run("--value-schema", columns, options=options)
        assert (outcome.code, "--value-schema" in error_line(outcome)) == (2, True), outcome.error
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        outcome = stream.run(*schema, options=options)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert (outcome.code, "spark.sql.ansi.enabled=true" in error_line(outcome)) == (2, True), outcome.error


@pytest.mark.full
def test_a_user_program_runs_a_stream(
    stream: FlightStream, spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    stream.put("1", ("UA1", 1, 8, 100, 1), ("UA1", 1, 8, 100, 1))
    schema = "flight string, at timestamp, day int, seats int, version int"
    rows = spark.readStream.schema(schema).json(str(stream.landing))
    inserted_counts: list[tuple[int, int]] = []
    options: dict[str, Any] = {
        "event_time": "at",
        "checkpoint": str(stream.checkpoint),
        "on_batch": lambda batch, result: inserted_counts.append((batch, result.inserted)),
    }
    writer = LockedDeltaWriter(spark, manager, str(stream.table))
    stream_into(writer, rows, keys=["flight"], **options)
    stream.put("2", ("UA1", 1, 8, 100, 1), ("UA2", 2, 8, 90, 1))
    stream_into(writer, rows, keys=["flight"], **options)
    assert inserted_counts == [(0, 1), (1, 1)]
    assert stream.rows("flight") == [("UA1",), ("UA2",)]
    with pytest.raises(CheckpointError, match="keys"):
        stream_into(writer, rows, keys=["seats"], **options)
    # The event time of a batch is missing, so it is unknown which rows are late.
    records = stream.checkpoint / "_sluice"
    (records / "event_time" / "1.json").unlink()
    stream.put("3", ("UA3", 3, 8, 100, 1))
    with pytest.raises(CheckpointError, match="incomplete"):
        stream_into(writer, rows, keys=["flight"], **options)
    # Without Spark's files in the checkpoint, a new query starts, and the records of the old one are ignored.
    records.rename(tmp_path / "records")
    shutil.rmtree(stream.checkpoint)
    stream.checkpoint.mkdir()
    (tmp_path / "records").rename(records)
    stream_into(writer, rows, keys=["flight"], **options)
    assert inserted_counts[2:] == [(0, 1)]
