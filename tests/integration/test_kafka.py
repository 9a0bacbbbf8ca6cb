"""``cdc.py`` and ``stream.py`` read a Kafka topic under spark-submit; kills lose no message and repeat no row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka import Kafka, kafka_jars, kafka_server
from tests.support.releases import SPARK
from tests.support.submitted_job import SubmittedJob
from writer_jobs import cdc, stream

pytestmark = [
    pytest.mark.spark,
    pytest.mark.full,
    pytest.mark.skipif(SPARK < (4, 2), reason="the tests pin Spark 4.2's source for Kafka"),
]

TOPIC = "customers"
KEYS = 40


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
    commits: dict[int, dict[str, Any]] = field(default_factory=dict)

    def start(self, trigger: str) -> SubmittedJob:
        jars = kafka_jars("spark-4.2-kafka.lock")
        return self.submit(self.program, *self.arguments, "--trigger", trigger, more_jars=jars)

    def kill_at(self, event: str) -> None:
        """Run the job until it prints an event, and kill it."""
        job = self.start("1 second")
        self.eventually(
            lambda: job.process.poll() is not None or any(line["event"] == event for line in job.events),
            within=240,
            label=event,
        )
        assert job.process.poll() is None, job.error
        job.kill()
        self._record(job)

    def finish(self) -> None:
        """Run the job to the end of the topic."""
        job = self.start("available-now")
        assert job.wait() == 0, job.error
        self._record(job)

    def _record(self, job: SubmittedJob) -> None:
        self.commits |= {line["batch"]: line for line in job.commits}


@pytest.fixture
def run_on_topic(
    submit: Callable[..., SubmittedJob], eventually: Callable[..., None], kafka: Kafka, table: Path, tmp_path: Path
) -> Callable[..., TopicJob]:
    def make(program: Path, topic: str, *arguments: object) -> TopicJob:
        source = ("--kafka", kafka.servers, "--topic", topic, "--checkpoint", tmp_path / "checkpoint")
        options = ("--table", table, *source, "--lock-timeout", 60)
        return TopicJob(submit, eventually, program, (*arguments, *options))

    return make


def transactions(table: Path) -> list[tuple[str, int]]:
    """Return the transactions that the log records, in order; each is that of one batch."""
    files = sorted((table / "_delta_log").glob("*.json"))
    actions = (json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return [(action["txn"]["appId"], action["txn"]["version"]) for action in actions if "txn" in action]


def change(operation: str, position: int, key: int, name: str | None) -> tuple[str, str]:
    """Return a message of Debezium's connector for PostgreSQL."""
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "customers", "lsn": position}
    row = None if name is None else {"id": key, "name": name}
    value = {"op": operation, "before": None if row else {"id": key}, "after": row, "source": source, "ts_ms": position}
    return json.dumps({"id": key}), json.dumps(value)


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
    def rows(first: int, end: int) -> list[tuple[str, str]]:
        return [
            (str(key), json.dumps({"flight": f"UA{key}", "at": f"2013-01-01T{key % 24:02}:00:00Z", "seats": key}))
            for key in range(first, end)
        ]

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
