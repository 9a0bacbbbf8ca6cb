"""A table moves from ZooKeeper to locks on S3 and back while processes with each coordinator write it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import LockSettings
from sluice.adopt import AdoptResult, adopt_table
from sluice.audit.verify import verify_table
from tests.support.lake import S3
from tests.support.looping_writer import Options
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.s3]

ROOT = Path(__file__).parents[2]
CREATE = "CREATE TABLE {t} USING delta AS SELECT id FROM range(3)"
WAIT = 300
"""Seconds to wait for writers, a part of which may still start Spark."""


class Writer:
    """A process of ``tests.support.looping_writer``, and its output so far."""

    def __init__(self, options: Options, errors: Path) -> None:
        self.lock_url = options.lock_url
        self.appended: list[int] = []
        self.refusals: list[str] = []
        self._errors = errors
        command = [sys.executable, "-m", "tests.support.looping_writer", json.dumps(asdict(options))]
        with errors.open("w") as stream:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for answer in map(json.loads, stream):
                if "appended" in answer:
                    self.appended.append(answer["appended"])
                else:
                    self.refusals.append(answer["refused"])

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def finish(self) -> None:
        """Let the writer end after its current append."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(WAIT)
        self._reader.join(WAIT)
        assert code == 0, self._errors.read_text()[-5000:]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        self._reader.join(WAIT)
        self._process.stdin.close()


class Fleet:
    """Writers of one table with two coordinators."""

    def __init__(self, spark: SparkSession, table: Path, zookeeper: str, lease: str, stack: ExitStack) -> None:
        self.table = table
        self.zookeeper, self.lease = f"zookeeper://{zookeeper}", lease
        self.writers: list[Writer] = []
        self._spark = spark
        self._stack = stack

    def start(self, kind: str, lock_url: str, **options: Any) -> Writer:
        number = len(self.writers) + 1
        writer_options = Options(
            kind=kind, lock_url=lock_url, table=str(self.table), first_id=number * 10**6, **options
        )
        writer = Writer(writer_options, self.table.with_name(f"writer-{number}.log"))
        self._stack.callback(writer.close)
        self.writers.append(writer)
        return writer

    def adopt(self, lock_url: str, *, moved_from: str | None = None) -> AdoptResult:
        settings = LockSettings.from_url(lock_url, timeout_seconds=WAIT)
        return adopt_table(self._spark, str(self.table), settings, move=moved_from is not None, old_hosts=moved_from)

    def wait_for_appends(self, lock_url: str) -> None:
        """Wait until each writer with this coordinator has appended twice more, and each other one was refused."""
        counts = [
            (writer.appended if writer.lock_url == lock_url else writer.refusals, writer) for writer in self.writers
        ]
        limits = [len(lines) + 2 for lines, _ in counts]

        def has_gone_on() -> bool:
            ended = [writer for _, writer in counts if writer.has_ended()]
            assert not ended
            return all(len(lines) >= limit for (lines, _), limit in zip(counts, limits, strict=True))

        eventually(has_gone_on, within=WAIT, label=lambda: f"progress: {[len(lines) for lines, _ in counts]} {limits}")

    def finish(self) -> list[int]:
        """End all writers; return the ids of all acknowledged rows and of the first three."""
        for writer in self.writers:
            writer.finish()
        return sorted([0, 1, 2, *(row_id for writer in self.writers for row_id in writer.appended)])


@pytest.fixture
def fleet(spark: SparkSession, zookeeper: Any, s3: S3, tmp_path: Path, copy_of: Callable[..., Path]) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(spark, copy_of(CREATE), zookeeper.hosts, f"s3-lease://{s3.root}/{tmp_path.name}", stack)


@pytest.mark.parametrize(
    ("kinds_with_zookeeper", "kinds_with_lease"),
    [
        pytest.param(["python"], ["python"], id="python"),
        pytest.param(["spark", "spark", "python"], ["spark", "python"], id="spark", marks=pytest.mark.full),
    ],
)
def test_a_move_and_a_move_back_lose_and_repeat_no_append(
    fleet: Fleet, rows_of: Callable[..., list[Any]], kinds_with_zookeeper: list[str], kinds_with_lease: list[str]
) -> None:
    fleet.adopt(fleet.zookeeper)
    for kind in kinds_with_zookeeper:
        fleet.start(kind, fleet.zookeeper)
    for kind in kinds_with_lease:
        fleet.start(kind, fleet.lease)
    fleet.wait_for_appends(fleet.zookeeper)
    moved = fleet.adopt(fleet.lease, moved_from=fleet.zookeeper)
    fleet.wait_for_appends(fleet.lease)
    moved_back = fleet.adopt(fleet.zookeeper, moved_from=fleet.lease)
    fleet.wait_for_appends(fleet.zookeeper)
    acknowledged = fleet.finish()

    assert (moved_back.ensemble, moved_back.moved_from) == (moved.moved_from, moved.ensemble)
    for writer in fleet.writers:
        assert all(moved.ensemble in refusal and str(moved.moved_from) in refusal for refusal in writer.refusals)
    assert sorted(rows_of(fleet.table)) == [(row_id,) for row_id in acknowledged]
    report = verify_table(str(fleet.table))
    assert (report.problems, report.ensemble) == ((), moved_back.ensemble)


def test_negative_control_a_writer_that_does_not_check_the_adoption_is_found(fleet: Fleet) -> None:
    fleet.adopt(fleet.zookeeper)
    writer = fleet.start("python", fleet.zookeeper, checks_adoption=False)
    fleet.wait_for_appends(fleet.zookeeper)
    fleet.adopt(fleet.lease, moved_from=fleet.zookeeper)
    fleet.wait_for_appends(fleet.zookeeper)
    fleet.finish()
    assert writer.refusals == []
    problems = verify_table(str(fleet.table)).problems
    assert any("was made under ensemble" in problem for problem in problems), problems
