"""``stream.py`` in this process: files of rows that are repeated and late, each micro-batch once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from tests.support.deliveries import Killed, end_of_the_process
from writer_jobs import CheckpointError, LockedDeltaWriter, stream_into
from writer_jobs.late_rows import stream as arrivals_stream

pytestmark = pytest.mark.spark

HOW = ("--keys", "flight", "--event-time", "at", "--partition-by", "day")
BEGIN = 1_700_000_000
ONE_BY_ONE = ("--trigger", "available-now", "--max-files-per-batch", "1")


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """Put a file of rows into the folder: ``put("1", (flight, day, hour, …))``."""
    folder = tmp_path / "landing"
    folder.mkdir()

    def write(name: str, *rows: tuple[Any, ...]) -> Path:
        lines = [
            {
                "flight": flight,
                "at": f"2013-01-{day:02}T{hour:02}:00:00Z",
                "day": day,
                "seats": seats,
                "version": version,
            }
            for flight, day, hour, seats, version in rows
        ]
        file = folder / f"{name}.json"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.utime(file, (BEGIN + int(name),) * 2)
        return file

    return write


@pytest.fixture
def stream(run_job: Callable[..., Any], table: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run the job on the table: ``stream("--sequence-by", …)``."""

    def run(*arguments: Any, how: tuple[str, ...] = (*HOW, *ONE_BY_ONE)) -> Any:
        place = ("--table", table, "--source", tmp_path / "landing", "--checkpoint", tmp_path / "checkpoint")
        return run_job("stream", *place, *how, *arguments)

    return run


def sentence(done: Any) -> str:
    (said,) = [line for line in done.error.splitlines() if line.startswith("stream.py: ")]
    return str(said)


@pytest.mark.full
def test_rows_come_once_and_what_is_too_late_is_set_aside(
    stream: Callable[..., Any], put: Callable[..., Path], table: Path, rows_of: Callable[..., Any], tmp_path: Path
) -> None:
    late = ("--watermark-delay", "1 day", "--allowed-lateness", "1 week")
    put("1", ("UA1", 1, 8, 100, 1), ("UA1", 1, 8, 100, 1), ("UA2", 3, 8, 90, 1))
    put("2", ("UA3", 1, 9, 80, 1), ("UA1", 1, 8, 100, 1), ("UA4", 12, 9, 70, 1))
    put("3")
    put("4", ("UA5", 2, 9, 60, 1), ("UA2", 3, 8, 95, 2))
    report = tmp_path / "report.json"
    done = stream(*late, "--sequence-by", "version", "--report", report)
    assert (done.code, done.error) == (0, "")
    names = ("batch", "arrived", "repeated", "late", "too_late", "inserted", "updated")
    assert [tuple(line[name] for name in names) for line in done.commits] == [
        (0, 3, 1, 0, 0, 2, 0),
        (1, 3, 1, 2, 0, 2, 0),
        (2, 0, 0, 0, 0, 0, 0),
        (3, 2, 0, 0, 2, 0, 0),
    ]
    assert [line["watermark"] for line in done.commits[1:]] == ["2013-01-11T09:00:00+00:00"] * 3
    infos = (json.loads(file.read_text().splitlines()[0]) for file in sorted(table.glob("_delta_log/*.json")))
    notes = [info["commitInfo"]["sluice"].get("watermark") for info in infos]
    moments = [note["at"] for note in notes if note]
    assert moments == ["2013-01-02T08:00:00+00:00", "2013-01-11T09:00:00+00:00"]
    assert len({note["stream"] for note in notes if note}) == 1
    assert json.loads(report.read_text())["totals"] == {
        "commits": 4, "arrived": 8, "repeated": 2, "late": 2, "too_late": 2, "inserted": 4, "updated": 0,
        "dead_letters": 0, "missing_files": 0,
    }  # fmt: skip
    assert rows_of(table, "flight", "seats") == [("UA1", 100), ("UA2", 90), ("UA3", 80), ("UA4", 70)]
    aside = DeltaTable(f"{table}_late").to_pyarrow_table().to_pylist()
    assert sorted((each["flight"], each["seats"], each["__NEWEST_EVENT_TIME"]) for each in aside) == [
        (flight, seats, datetime.fromisoformat("2013-01-12T09:00:00Z")) for flight, seats in (("UA2", 95), ("UA5", 60))
    ]
    # The watermark is that of before, and a later version comes into the table.
    put("5", ("UA4", 12, 9, 75, 2), ("UA6", 6, 1, 50, 1))
    (line,) = stream(*late, "--sequence-by", "version").commits
    assert (line["late"], line["inserted"], line["updated"]) == (1, 1, 1)


@pytest.mark.full
@pytest.mark.parametrize("at", ["before", "after", "noted", "after, without its transaction"])
def test_a_batch_that_is_killed_is_once_in_both_tables(
    stream: Callable[..., Any],
    put: Callable[..., Path],
    table: Path,
    rows_of: Callable[..., Any],
    versions: Callable[[Path], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    """Killed before its commit, behind it, and behind the note of the event time.

    A job that is started again with another lateness decides as the one before on the batch that was begun; a batch
    that is done needs its file no more. The control has no transactions: rows of the table are known by their keys,
    those that are too late come twice.
    """
    apply_rows, after = arrivals_stream.apply_rows, arrivals_stream.StreamProgress.finish
    alive, again, marked = [True], [False], ("before", "after", "noted")

    def applied(*of: Any, **how: Any) -> Any:
        alive[0] = how["txn"][1] != 1 or again[0]
        if at == "before" and not alive[0]:
            how["before_write"] = killed
        if at not in marked:
            how["txn"] = None
        done = apply_rows(*of, **how)
        return killed() if at.startswith("after") and not alive[0] else done

    def noted(*of: Any) -> None:
        after(*of)
        if not alive[0]:
            killed()

    def killed(*_: Any) -> Any:
        raise Killed

    late = ("--allowed-lateness", "1 day")
    put("1", ("UA1", 9, 8, 100, 1))
    second = put("2", ("UA2", 1, 8, 90, 1), ("UA3", 12, 8, 80, 1))
    put("3", ("UA4", 2, 8, 70, 1), ("UA5", 11, 9, 60, 1))
    with monkeypatch.context() as patch:
        patch.setattr(arrivals_stream, "apply_rows", applied)
        patch.setattr(arrivals_stream.StreamProgress, "finish", noted)
        with pytest.raises(Killed):
            stream(*late)
        again[0] = True
        patch.setattr(arrivals_stream.StreamProgress, "finish", after)
        if at == "noted":
            second.unlink()
        done = stream("--allowed-lateness", "20 days") if at == "before" else stream(*late)
    assert (done.code, [line["batch"] for line in done.commits]) == (0, [1, 2]), done.error
    wider = [("UA4", 2)] if at == "before" else []
    assert rows_of(table, "flight", "day") == sorted([("UA1", 9), ("UA3", 12), ("UA5", 11), *wider])
    too_late = rows_of(Path(f"{table}_late"), "flight", "day")
    if at in marked:
        assert done.commits[0]["already_committed"] == (at != "before")
        assert too_late == ([("UA2", 1)] if wider else [("UA2", 1), ("UA4", 2)])
        # One that made it, one that bound it to its feed, and one for each batch.
        assert len(versions(table)) == 5
    else:
        assert too_late == [("UA2", 1), ("UA2", 1), ("UA4", 2)]


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        (("--keys", "nobody", "--event-time", "at", *ONE_BY_ONE), 5, "no column nobody"),
        (("--keys", "flight", "--event-time", "seats", *ONE_BY_ONE), 5, "must be a timestamp or a date"),
        (("--keys", "at", "--event-time", "flight", *ONE_BY_ONE), 5, "UA1"),
        ((*HOW, *ONE_BY_ONE, "--sequence-by", "nothing"), 5, "nothing"),
        (HOW, 2, "--trigger"),
        ((*HOW, *ONE_BY_ONE, "--watermark-delay", "soon"), 2, "10 minutes"),
        ((*HOW, *ONE_BY_ONE, "--source-table", "t"), 2, "one source"),
        ((*HOW, *ONE_BY_ONE, "--topic", "t"), 2, "belong together"),
        ((*HOW, *ONE_BY_ONE, "--value-schema", "flight string, at timestamp"), 2, "columns value, topic"),
        ((*HOW, *ONE_BY_ONE, "--watermark-delay", "2 days", "--allowed-lateness", "1 day"), 2, "--allowed-lateness"),
        ((*HOW, *ONE_BY_ONE, "--checkpoint", "{table}/notes"), 2, "in the folder of the table"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    stream: Callable[..., Any], put: Callable[..., Path], table: Path, how: tuple[str, ...], code: int, says: str
) -> None:
    put("1", ("UA1", 1, 8, 100, 1))
    job = stream(how=tuple(argument.format(table=table) for argument in how))
    assert job.code == code, job.error
    assert says in sentence(job), job.error
    assert not table.exists()


@pytest.mark.full
def test_a_null_event_time_ends_the_stream_until_it_is_mended(
    stream: Callable[..., Any], put: Callable[..., Path], table: Path, rows_of: Callable[..., Any]
) -> None:
    put("1", ("UA1", 1, 8, 100, 1))
    bad = put("2", ("UA2", 2, 8, 100, 1))
    good = bad.read_text()
    bad.write_text(good.replace("2013-01-02T08:00:00Z", "").replace('""', "null"))
    done = stream()
    assert (done.code, "flight=UA2" in sentence(done)) == (5, True), done.error
    bad.write_text(good)
    assert stream().code == 0
    assert rows_of(table, "flight") == [("UA1",), ("UA2",)]


def test_a_checkpoint_of_a_format_that_is_not_known_is_one_sentence(
    stream: Callable[..., Any], put: Callable[..., Path], table: Path, spark: SparkSession
) -> None:
    """The setting is Spark's; its default is the format that is known."""
    put("1", ("UA1", 1, 8, 100, 1))
    spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")
    try:
        done = stream()
    finally:
        spark.conf.unset("spark.sql.streaming.offsetLog.formatVersion")
    assert (done.code, "offsets/0 has the format v2" in sentence(done)) == (2, True), done.error
    assert not table.exists()


@pytest.mark.full
def test_the_rows_of_another_table_come_as_they_are_appended_to_it(
    run_job: Callable[..., Any],
    spark: SparkSession,
    manager: ZookeeperLockManager,
    table: Path,
    rows_of: Callable[..., Any],
    tmp_path: Path,
) -> None:
    raw = tmp_path / "raw"
    writer = LockedDeltaWriter(spark, manager, str(raw))

    def append(*flights: str | None) -> None:
        rows = [(flight, "2013-01-01T08:00:00Z" if flight != "UA5" else "soon") for flight in flights]
        writer.append(spark.createDataFrame(rows, "flight string, at string"))

    place = ("--table", table, "--checkpoint", tmp_path / "checkpoint", "--source-table", raw)
    how = (*place, "--trigger", "available-now")
    none = run_job("stream", *how, "--keys", "flight", "--event-time", "at")
    assert (none.code, "source table" in sentence(none)) == (2, True), none.error
    append("UA1", "UA2")
    append("UA2", "UA3")
    done = run_job("stream", *how, "--keys", "flight", "--event-time", "at", "--max-files-per-batch", "1")
    assert done.code == 0, done.error
    assert sum(line["inserted"] for line in done.commits) == 3
    # Nobody can mend the last two where they are.
    append("UA3", "UA4", "UA5", None)
    (line,) = run_job("stream", *how, "--keys", "flight", "--event-time", "at").commits
    assert (line["arrived"], line["inserted"], line["dead_letters"]) == (2, 1, 2)
    assert rows_of(table, "flight") == [("UA1",), ("UA2",), ("UA3",), ("UA4",)]
    assert rows_of(Path(f"{table}_dead_letters"), "reason", "origin", "value") == [
        ("null in flight", raw.as_uri().replace("///", "/"), b'{"flight":null,"at":"2013-01-01T08:00:00Z"}'),
        ("the event time is not a timestamp", raw.as_uri().replace("///", "/"), b'{"flight":"UA5","at":"soon"}'),
    ]


@pytest.mark.full
def test_messages_are_rows_if_their_values_are_json_of_the_schema(
    stream: Callable[..., Any],
    run_job: Callable[..., Any],
    spark: SparkSession,
    table: Path,
    rows_of: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The columns are those of Spark's source for Kafka; Kafka itself is not here."""
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
    ]
    messages = [
        (None, None if value is None else bytearray(value.encode()), "departures", 0, number)
        for number, value in enumerate(values)
    ]
    rows = spark.createDataFrame(messages, "key binary, value binary, topic string, partition int, offset long")
    rows.coalesce(1).write.parquet(str(tmp_path / "landing"))
    how = ("--keys", "flight", "--event-time", "at", "--trigger", "available-now", "--format", "parquet")
    how = (*how, "--partition-by", "flight")
    columns = "flight string, at timestamp, seats int, fares array<decimal(30,21)>, share double"
    schema = ("--value-schema", f"{columns}, note string, raw binary, tiny tinyint, home struct<zip: string>")
    dead = Path(f"{table}_dead_letters")
    # A batch that is in the table gets its dead letters when it is tried again; one that has them does not.
    for killed_at in ("write_dead_letters", "StreamProgress.finish"):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(f"writer_jobs.late_rows.stream.{killed_at}", end_of_the_process)
            stream(*schema, how=how)
        assert dead.exists() == (killed_at == "StreamProgress.finish")
    done = stream(*schema, how=how)
    assert (done.code, done.error) == (0, "")
    (line,) = done.commits
    assert (line["already_committed"], line["arrived"], line["dead_letters"]) == (True, 6, 19)
    assert rows_of(table, "flight", "seats", "fares", "share") == [
        ("UA1", 100, None, None), ("UA2", None, [Decimal("0.123456789012345678901")], None),
        ("UA4", None, None, None), ("UA6", None, None, None),
        ("UA7", None, None, 123456.789012345), ("x 12345678901234567e5 ,y", None, None, 0.5),
    ]  # fmt: skip
    assert ("12", b"\1\2\3", -128, {"zip": "1"}) in rows_of(table, "note", "raw", "tiny", "home")
    rewritten = "column note: the text of its JSON would change; send a JSON string"
    no_value, decimal = "is not exactly a value of type", "decimal(30,21)"
    reasons = {
        **dict.fromkeys((1, 3, 4, 20), "not JSON of the schema"),
        2: f"column at: the value 'soon' {no_value} timestamp",
        5: "null in flight",
        6: "null in at",
        7: "the event time is beyond the years 1 to 9999",
        9: f"column fares[]: the value '19.9999999999999999999999' {no_value} {decimal}",
        10: f"column fares[]: the value '1.0' {no_value} {decimal}",
        11: f"column at: the value '1700000000000' {no_value} timestamp",
        12: f"column share: the value 'Infinity' {no_value} double",
        **dict.fromkeys((14, 15), rewritten),
        16: f"column tiny: the value '200' {no_value} tinyint",
        17: "field home.city is not in --value-schema",
        18: "field Note is not in --value-schema",
        23: f"column share: the value '1.2345678901234567E8' {no_value} double",
        24: "the partition column flight has the value '', which Delta stores as null: write null or another text, or "
        "partition by another column",
    }
    assert dict(rows_of(dead, "origin", "reason")) == {f"departures/0/{at}": reason for at, reason in reasons.items()}
    place = ("--source", tmp_path / "bad", "--checkpoint", tmp_path / "another", "--table", tmp_path / "empty")
    rows.where("offset IN (3, 4)").coalesce(1).write.parquet(str(tmp_path / "bad"))
    # The second one has no messages.
    assert [run_job("stream", *place, *schema, *how).code for _ in range(2)] == [8, 0]
    assert len(rows_of(tmp_path / "empty_dead_letters", "reason")) == 2
    for columns in ("flight", "flight varchar(3), at timestamp"):
        wrong = stream("--value-schema", columns, how=how)
        assert (wrong.code, "--value-schema" in sentence(wrong)) == (2, True), wrong.error
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        lenient = stream(*schema, how=how)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert (lenient.code, "spark.sql.ansi.enabled=true" in sentence(lenient)) == (2, True), lenient.error


@pytest.mark.full
def test_a_program_of_ones_own_runs_a_stream(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    put: Callable[..., Path],
    table: Path,
    rows_of: Callable[..., Any],
    tmp_path: Path,
) -> None:
    put("1", ("UA1", 1, 8, 100, 1), ("UA1", 1, 8, 100, 1))
    schema = "flight string, at timestamp, day int, seats int, version int"
    rows = spark.readStream.schema(schema).json(str(tmp_path / "landing"))
    how: dict[str, Any] = {"keys": ["flight"], "event_time": "at", "checkpoint": str(tmp_path / "checkpoint")}
    told: list[tuple[int, int]] = []
    writer = LockedDeltaWriter(spark, manager, str(table))
    stream_into(writer, rows, **how, on_batch=lambda batch, done: told.append((batch, done.inserted)))
    put("2", ("UA1", 1, 8, 100, 1), ("UA2", 2, 8, 90, 1))
    stream_into(writer, rows, **how, on_batch=lambda batch, done: told.append((batch, done.inserted)))
    assert told == [(0, 1), (1, 1)]
    assert rows_of(table, "flight") == [("UA1",), ("UA2",)]
    with pytest.raises(CheckpointError, match="keys"):
        stream_into(writer, rows, **{**how, "keys": ["seats"]})
    # Nobody knows what is late if a note is gone.
    (tmp_path / "checkpoint" / "_sluice" / "event_time" / "1.json").unlink()
    put("3", ("UA3", 3, 8, 100, 1))
    with pytest.raises(CheckpointError, match="incomplete"):
        stream_into(writer, rows, **how)
    # With Spark's part of a checkpoint gone a query begins anew, and our notes are of another one.
    notes = tmp_path / "checkpoint" / "_sluice"
    notes.rename(tmp_path / "notes")
    shutil.rmtree(tmp_path / "checkpoint")
    notes.parent.mkdir()
    (tmp_path / "notes").rename(notes)
    stream_into(writer, rows, **how, on_batch=lambda batch, done: told.append((batch, done.inserted)))
    assert told[2:] == [(0, 1)]
