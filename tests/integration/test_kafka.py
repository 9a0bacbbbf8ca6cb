"""``cdc.py`` and ``stream.py`` read a Kafka topic under spark-submit; kills lose no message and repeat no row."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lock_manager.table_records.commit_stamp import batch_of
from tests.support.avro_messages import running_registry
from tests.support.event_forms import COLUMNS, WIRE_FORMS, ShuffledEvents
from tests.support.kafka import Kafka, kafka_server
from tests.support.lineage import EventFile, names, write_of
from tests.support.locked_jars import locked_jars
from tests.support.releases import SPARK
from tests.support.spark_settings import GENERATED_CODE
from tests.support.submitted_job import SubmittedJob
from writer_jobs import cdc, stream

pytestmark = [
    pytest.mark.spark,
    pytest.mark.full,
    pytest.mark.skipif(SPARK < (4, 2), reason="the tests pin Spark 4.2's source for Kafka"),
]

TOPIC = "customers"
KEYS = 40
#: Changes in each wire form of the soak. Tombstones, heartbeats and markers of transactions come in addition.
EVENTS = int(os.environ.get("SLUICE_TEST_EVENTS", "250000"))
BATCH = EVENTS // 10
#: Each run of the soak is killed when it has printed an event so many times, or after the commit of tombstones.
KILLS = (("begun", 1), ("commit", 1), ("tombstones", 1), ("commit", 2), ("tombstones", 1), ("holding", 2))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka_server(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@dataclass
class TopicJob:
    """A job that reads a topic, and its output over all runs."""

    submit: Callable[..., SubmittedJob]
    eventually: Callable[..., None]
    program: Path
    arguments: Sequence[object]
    table: Path
    conf: dict[str, str] = field(default_factory=dict)
    commits: dict[int, dict[str, Any]] = field(default_factory=dict)

    def start(self, trigger: str) -> SubmittedJob:
        jars = locked_jars("spark-4.2-kafka")
        return self.submit(self.program, *self.arguments, "--trigger", trigger, conf=self.conf, more_jars=jars)

    def kill_at(self, event: str, count: int = 1) -> None:
        """Run the job until it has printed an event several times, and kill it."""
        job = self.start("1 second")
        self.eventually(
            lambda: job.process.poll() is not None or sum(line["event"] == event for line in job.events) >= count,
            within=600 * count,
            label=f"{count} times {event}",
        )
        assert job.process.poll() is None, job.error
        job.kill()
        self._record(job)

    def kill_between_commits(self) -> None:
        """Run the job and kill it when a batch has committed its tombstones, until the table lacks such a batch."""
        while not self._kill_after_tombstones() - batches(self.table):
            pass

    def _kill_after_tombstones(self) -> set[str]:
        """Run the job until a batch has committed its tombstones, and kill it; return the ids of such batches."""
        earlier_batches = batches(self.tombstones)
        job = self.start("1 second")
        self.eventually(
            lambda: job.process.poll() is not None or batches(self.tombstones) > earlier_batches,
            within=1200,
            label="the tombstones",
        )
        assert job.process.poll() is None, job.error
        job.kill()
        self._record(job)
        return batches(self.tombstones) - earlier_batches

    def finish(self, seconds: float = 300) -> None:
        """Run the job to the end of the topic, which it has to reach within a time."""
        job = self.start("available-now")
        assert job.wait(seconds) == 0, job.error
        self._record(job)

    @property
    def tombstones(self) -> Path:
        return Path(f"{self.table}_tombstones")

    def _record(self, job: SubmittedJob) -> None:
        # A batch that is repeated changes no row, so its first line counts.
        self.commits = {line["batch"]: line for line in job.commits} | self.commits


@pytest.fixture
def run_on_topic(
    submit: Callable[..., SubmittedJob], eventually: Callable[..., None], kafka: Kafka, table: Path, tmp_path: Path
) -> Callable[..., TopicJob]:
    def make(program: Path, topic: str, *arguments: object) -> TopicJob:
        source = ("--kafka", kafka.servers, "--topic", topic, "--checkpoint", tmp_path / "checkpoint")
        options = ("--table", table, *source, "--lock-timeout", 60)
        return TopicJob(submit, eventually, program, (*arguments, *options), table)

    return make


def versions(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.json"))


def actions(table: Path) -> Iterator[dict[str, Any]]:
    for file in versions(table):
        yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())


def batches(table: Path) -> set[str]:
    """Return the ids of the batches of changes whose commits are in the log."""
    return {batch for action in actions(table) if (batch := batch_of(action.get("commitInfo", {}))) is not None}


def transactions(table: Path) -> list[tuple[str, int]]:
    """Return the transactions that the log records, in order; each is that of one batch."""
    return [(action["txn"]["appId"], action["txn"]["version"]) for action in actions(table) if "txn" in action]


def change(operation: str, position: int, key: int, name: str | None) -> tuple[bytes, bytes]:
    """Return a message of Debezium's connector for PostgreSQL."""
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "customers", "lsn": position}
    row = None if name is None else {"id": key, "name": name}
    value = {"op": operation, "before": None if row else {"id": key}, "after": row, "source": source, "ts_ms": position}
    return json.dumps({"id": key}).encode(), json.dumps(value).encode()


def test_all_changes_of_a_topic_are_applied_across_kills(
    kafka: Kafka, run_on_topic: Callable[..., TopicJob], table: Path, rows_of: Callable[..., Any]
) -> None:
    job = run_on_topic(Path(cdc.__file__), TOPIC, "--decoder", "debezium", "--option", "maxOffsetsPerTrigger=25")
    kafka.publish(TOPIC, [change("c", key, key, f"name {key}") for key in range(KEYS)])
    job.kill_at("holding")
    kafka.publish(TOPIC, [change("u", KEYS + key, key, f"new name {key}") for key in range(0, KEYS, 2)])
    job.kill_at("commit")
    kafka.publish(TOPIC, [change("d", 2 * KEYS + key, key, None) for key in range(0, KEYS, 4)])
    job.finish()
    assert rows_of(table, "id", "name") == sorted(
        ((key, f"new name {key}" if key % 2 == 0 else f"name {key}") for key in range(KEYS) if key % 4), key=repr
    )
    assert sorted(job.commits) == list(range(len(job.commits)))
    assert sorted(number for _, number in transactions(table)) == sorted(job.commits)


def test_rows_of_a_topic_are_inserted_once_across_kills(
    kafka: Kafka, run_on_topic: Callable[..., TopicJob], table: Path, rows_of: Callable[..., Any]
) -> None:
    def rows(first: int, end: int) -> list[tuple[bytes, bytes]]:
        values = [
            {"flight": f"UA{key}", "at": f"2013-01-01T{key % 24:02}:00:00Z", "seats": key} for key in range(first, end)
        ]
        return [(str(value["seats"]).encode(), json.dumps(value).encode()) for value in values]

    job = run_on_topic(
        Path(stream.__file__), "departures", "--value-schema", "flight string, at timestamp, seats int",
        "--keys", "flight", "--event-time", "at", "--allowed-lateness", "30 days", "--watermark-delay", "1 day",
        "--option", "maxOffsetsPerTrigger=15",
    )  # fmt: skip
    kafka.publish("departures", rows(0, 30))
    job.kill_at("holding")
    # The topic has the rows 20 to 29 and 40 to 44 twice.
    kafka.publish("departures", [*rows(20, 45), *rows(40, 45)])
    job.kill_at("commit")
    job.finish()
    assert rows_of(table, "flight", "seats") == sorted(((f"UA{key}", key) for key in range(45)), key=repr)
    assert sorted(job.commits) == list(range(len(job.commits)))
    assert sorted(number for _, number in transactions(table)) == sorted(job.commits)


def test_lineage_events_name_the_topic(
    kafka: Kafka, submit: Callable[..., SubmittedJob], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and as a stream."""
    kafka.publish("lineage", [change("c", key, key, f"name {key}") for key in range(3)])
    file = EventFile(tmp_path / "events.jsonl")
    for name, value in file.variables.items():
        monkeypatch.setenv(name, value)
    arguments = ("--decoder", "debezium", "--table", table, "--kafka", kafka.servers, "--topic", "lineage")
    stream_arguments = ("--trigger", "available-now", "--checkpoint", tmp_path / "checkpoint")
    for more_arguments in ((), stream_arguments):
        job = submit(Path(cdc.__file__), *arguments, *more_arguments, more_jars=locked_jars("spark-4.2-kafka"))
        assert job.wait(300) == 0, job.error
    ends = file.ends("merge")
    assert len(ends) == 2
    for end in ends:
        assert (f"kafka://{kafka.servers}", "lineage") in names(end["inputs"])
        assert write_of(end)["unknownSources"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("form", WIRE_FORMS)
def test_shuffled_events_equal_the_source_across_kills(
    kafka: Kafka, run_on_topic: Callable[..., TopicJob], table: Path, rows_of: Callable[..., Any], form: str
) -> None:
    with running_registry() as registry:
        wire_form = WIRE_FORMS[form](registry)
        # The delay moves most changes to another batch than that of the change before.
        events = ShuffledEvents(wire_form, EVENTS, delay=BATCH, seed=f"{form}, {EVENTS}")
        kafka.publish(f"shuffled-{form}", events.messages())
        limit = f"maxOffsetsPerTrigger={BATCH}"
        job = run_on_topic(Path(cdc.__file__), f"shuffled-{form}", *wire_form.arguments, "--option", limit)
        job.conf = GENERATED_CODE
        for event, count in KILLS:
            if event == "tombstones":
                job.kill_between_commits()
            else:
                job.kill_at(event, count)
        job.finish(seconds=3600)
    stored_rows, source_rows = rows_of(table, *COLUMNS), sorted(events.rows(), key=repr)
    assert len(stored_rows) == len(source_rows) > EVENTS / 20
    pairs = zip(stored_rows, source_rows, strict=True)
    assert [(stored_row, source_row) for stored_row, source_row in pairs if stored_row != source_row][:5] == []
    # Some values are older than their rows, and none is missing, which a null position would show.
    maps = [dict(row[0]) for row in rows_of(table, "__COLUMN_SEQUENCES") if row[0] is not None]
    positions = [position for positions_by_column in maps for position in positions_by_column.values()]
    assert positions
    assert None not in positions
    # Each batch is one transaction.
    assert sorted(job.commits) == list(range(math.ceil(events.message_count / BATCH)))
    assert sorted(number for _, number in transactions(table)) == sorted(job.commits)
    names = ("changes", "skipped", "filtered", "dead_letters")
    totals = {name: sum(line[name] for line in job.commits.values()) for name in names}
    assert totals == {"changes": events.change_count, "skipped": events.skipped_count, "filtered": 0, "dead_letters": 0}
    assert not Path(f"{table}_dead_letters").exists()
    # The tombstones of a batch were deleted that had not been committed to the table.
    operations = [action["commitInfo"]["operation"] for action in actions(job.tombstones) if "commitInfo" in action]
    assert "DELETE" in operations
