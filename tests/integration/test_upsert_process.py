"""``upsert.py`` as a stream under spark-submit: killed within a batch, restarted, and stopped between batches."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lock_manager import ZookeeperLockManager
from tests.support.change_commits import batches_in
from tests.support.deliveries import shuffled_batches
from tests.support.submitted_job import SubmittedJob
from writer_jobs import upsert as upsert_module

pytestmark = pytest.mark.spark

UPSERT = Path(upsert_module.__file__)
SEED, FILES, CHANGES, KEYS = 20261123, 3, 40, 12
COLUMNS = "id,at,op"
OPTIONS = ("--keys", "id", "--sequence-by", "at", "--apply-as-deletes", "op = 'd'", "--except-columns", "op")
STREAM = ("--trigger", "1 second", "--max-files-per-batch", 1, "--lock-timeout", 60)


@pytest.mark.soak
def test_a_killed_stream_resumes_and_stops_at_sigterm(
    submit: Callable[..., SubmittedJob],
    csv_file: Callable[..., Path],
    tmp_path: Path,
    rows_of: Callable[..., Any],
    versions: Callable[[Path], list[str]],
    manager: ZookeeperLockManager,
    eventually: Callable[..., None],
) -> None:
    chance = random.Random(SEED)
    model: dict[int, tuple[int, int, str]] = {}
    table, landing = tmp_path / "table", tmp_path / "landing"
    landing.mkdir()
    numbers = list(range(FILES * CHANGES))
    # Some changes are late: they are in a later file.
    chance.shuffle(numbers)

    def put_file(number: int) -> None:
        rows = []
        for at in numbers[number * CHANGES : (number + 1) * CHANGES]:
            change = (chance.randrange(KEYS), at, chance.choice("uuud"))
            model[change[0]] = max(model.get(change[0], change), change, key=lambda candidate: candidate[1])
            rows.append(change)
        path = csv_file(f"coming/{number}.csv", COLUMNS, rows)
        os.utime(path, (1_700_000_000 + number,) * 2)
        path.rename(landing / path.name)

    def start() -> SubmittedJob:
        paths = ("--table", table, "--source", landing, "--checkpoint", tmp_path / "checkpoint")
        return submit(UPSERT, *paths, *OPTIONS, *STREAM)

    for number in range(FILES - 1):
        put_file(number)
    killed_job = start()
    # Most likely the commit appears before Spark records the end of the batch.
    # Versions 0 and 1 create the table and bind it to its feed. Each file is one more version.
    version_file = f"{FILES:020d}.json"
    eventually(lambda: version_file in versions(table), within=240, label="the commit of the second batch")
    killed_job.kill()
    job = start()
    put_file(FILES - 1)
    eventually(lambda: FILES - 1 in [line["batch"] for line in job.commits], within=240, label="the last file")
    os.kill(job.python_pid, signal.SIGTERM)
    assert job.wait() == 143, job.error
    (message,) = job.error_lines
    assert message.startswith("upsert.py: stopped by SIGTERM")
    assert "Traceback" not in job.error
    assert batches_in(table) == list(range(FILES))
    assert [line["batch"] for line in job.commits if not line["already_committed"]] == [FILES - 1]
    assert rows_of(table, "id", "at") == sorted(((key, at) for key, at, op in model.values() if op != "d"), key=repr)
    assert manager.queue(f"file:{table}") == []


@pytest.mark.soak
def test_a_stream_killed_at_random_applies_files_once(
    submit: Callable[..., SubmittedJob], csv_file: Callable[..., Path], tmp_path: Path, eventually: Callable[..., None]
) -> None:
    """Each run is killed at a random time after it has the lock. A history shows each change that is applied twice."""
    chance = random.Random(SEED)
    table, landing, kills = tmp_path / "table", tmp_path / "landing", 12
    landing.mkdir()
    changes = [(chance.randrange(KEYS), at, chance.choice("uuud")) for at in range(kills * CHANGES)]
    batches = shuffled_batches(SEED, changes, kills)
    for number, batch in enumerate(batches):
        csv_file(f"coming/{number}.csv", COLUMNS, batch).rename(landing / f"{number}.csv")

    def start(*arguments: str) -> SubmittedJob:
        paths = ("--table", table, "--source", landing, "--checkpoint", tmp_path / "checkpoint")
        return submit(UPSERT, *paths, *OPTIONS, "--scd-type", 2, *STREAM, *arguments)

    for _ in range(kills):
        job = start()
        eventually(lambda job=job: any(event["event"] == "holding" for event in job.events), within=240, label="a lock")
        time.sleep(chance.random() * 3)
        job.kill()
    job = start("--trigger", "available-now")
    assert job.wait() == 0, job.error
    assert sorted(batches_in(table)) == list(range(kills))
    assert stored_history(table) == expected_history(changes)


@pytest.mark.soak
def test_eight_jobs_at_once_leave_one_current_row_per_key(
    submit: Callable[..., SubmittedJob], csv_file: Callable[..., Path], tmp_path: Path
) -> None:
    """dbt-core 4661, dbt-adapters 1759 and mack 85 report several current rows of snapshots that run together."""
    chance = random.Random(SEED)
    table, job_count = tmp_path / "table", 8
    changes = [(chance.randrange(KEYS), at, chance.choice("uuud")) for at in range(job_count * CHANGES)]
    sources = [csv_file(f"{job}.csv", COLUMNS, changes[job::job_count]) for job in range(job_count)]
    options = (*OPTIONS, "--scd-type", 2, "--lock-timeout", 500)
    jobs = [submit(UPSERT, "--table", table, "--source", source, *options) for source in sources]
    assert [job.wait(590) for job in jobs] == [0] * job_count, [job.error_lines for job in jobs]
    history = stored_history(table)
    current_keys = [key for key, _, end in history if end is None]
    assert len(current_keys) == len(set(current_keys))
    assert history == expected_history(changes)


def stored_history(table: Path) -> list[tuple[int, int, int | None]]:
    rows = DeltaTable(table).to_pyarrow_table(columns=["id", "__START_AT", "__END_AT"]).to_pylist()
    return sorted((row["id"], row["__START_AT"], row["__END_AT"]) for row in rows)


def expected_history(changes: list[tuple[int, int, str]]) -> list[tuple[int, int, int | None]]:
    """Return the history of each key. A row ends where the next change of its key starts."""
    rows: list[tuple[int, int, int | None]] = []
    for row_key in {key for key, _, _ in changes}:
        changes_of_key = sorted((at, op) for key, at, op in changes if key == row_key)
        ends = [*(at for at, _ in changes_of_key[1:]), None]
        rows += [(row_key, at, end) for (at, op), end in zip(changes_of_key, ends, strict=True) if op != "d"]
    return sorted(rows)
