"""``upsert.py`` as a stream under spark-submit: killed in a batch, started again, stopped between two."""

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
from tests.support.deliveries import delivered
from tests.support.submitted_job import SubmittedJob
from writer_jobs import upsert as upsert_module

pytestmark = pytest.mark.spark

UPSERT = Path(upsert_module.__file__)
SEED, FILES, CHANGES, KEYS = 20261123, 3, 40, 12


@pytest.mark.full
def test_a_stream_that_is_killed_goes_on_and_ends_when_it_is_told_to(
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
    # Late ones come in a later file.
    chance.shuffle(numbers)

    def put(number: int) -> None:
        rows = []
        for at in numbers[number * CHANGES : (number + 1) * CHANGES]:
            change = (chance.randrange(KEYS), at, chance.choice("uuud"))
            model[change[0]] = max(model.get(change[0], change), change, key=lambda each: each[1])
            rows.append(change)
        then = 1_700_000_000 + number
        path = csv_file(f"coming/{number}.csv", "id,at,op", rows)
        os.utime(path, (then, then))
        path.rename(landing / path.name)

    def start() -> SubmittedJob:
        return submit(
            UPSERT, "--table", table, "--source", landing, "--keys", "id", "--sequence-by", "at",
            "--apply-as-deletes", "op = 'd'", "--except-columns", "op", "--trigger", "1 second",
            "--checkpoint", tmp_path / "checkpoint", "--max-files-per-batch", 1, "--lock-timeout", 60,
        )  # fmt: skip

    for number in range(FILES - 1):
        put(number)
    first = start()
    # Behind its commit, and before Spark has noted that the batch is done, most likely.
    last = f"{FILES:020d}.json"
    eventually(lambda: last in versions(table), within=240, what="the commit of the second batch")
    first.kill()

    second = start()
    put(FILES - 1)
    eventually(
        lambda: FILES - 1 in [line["batch"] for line in second.commits], within=240, what="the file that came later"
    )
    os.kill(second.python, signal.SIGTERM)
    assert second.wait() == 143, second.error
    (sentence,) = second.sentences
    assert sentence.startswith("upsert.py: stopped by SIGTERM")
    assert "Traceback" not in second.error

    assert batches_in(table) == list(range(FILES))
    assert [line["batch"] for line in second.commits if not line["already_committed"]] == [FILES - 1]
    assert rows_of(table, "id", "at") == sorted(((key, at) for key, at, op in model.values() if op != "d"), key=repr)
    assert manager.queue(f"file:{table}") == []


@pytest.mark.soak
def test_a_stream_that_is_killed_at_any_moment_under_its_lock_is_exactly_once(
    submit: Callable[..., SubmittedJob],
    csv_file: Callable[..., Path],
    tmp_path: Path,
    eventually: Callable[..., None],
) -> None:
    """Killed between any two of its commits and notes; with history, each change that comes twice would be seen."""
    chance = random.Random(SEED)
    table, landing, kills = tmp_path / "table", tmp_path / "landing", 12
    landing.mkdir()
    changes = [(chance.randrange(KEYS), at, chance.choice("uuud")) for at in range(kills * CHANGES)]
    batches = delivered(SEED, changes, kills)
    for number, batch in enumerate(batches):
        csv_file(f"coming/{number}.csv", "id,at,op", batch).rename(landing / f"{number}.csv")

    def start(trigger: str) -> SubmittedJob:
        return submit(
            UPSERT, "--table", table, "--source", landing, "--keys", "id", "--sequence-by", "at", "--scd-type", 2,
            "--apply-as-deletes", "op = 'd'", "--except-columns", "op", "--trigger", trigger,
            "--checkpoint", tmp_path / "checkpoint", "--max-files-per-batch", 1, "--lock-timeout", 60,
        )  # fmt: skip

    for _ in range(kills):
        job = start("1 second")
        eventually(lambda job=job: any(event["event"] == "holding" for event in job.events), within=240, what="a lock")
        time.sleep(chance.random() * 3)
        job.kill()
    last = start("available-now")
    assert last.wait() == 0, last.error
    assert sorted(batches_in(table)) == list(range(kills))
    assert history_of(table) == history_model(changes)


@pytest.mark.soak
def test_eight_jobs_at_once_leave_one_current_row_a_key(
    submit: Callable[..., SubmittedJob], csv_file: Callable[..., Path], tmp_path: Path
) -> None:
    """What dbt-core 4661, dbt-adapters 1759 and mack 85 report of snapshots that run at the same time."""
    chance = random.Random(SEED)
    table, jobs = tmp_path / "table", 8
    changes = [(chance.randrange(KEYS), at, chance.choice("uuud")) for at in range(jobs * CHANGES)]
    started = [
        submit(
            UPSERT, "--table", table, "--source", csv_file(f"{number}.csv", "id,at,op", changes[number::jobs]),
            "--keys", "id", "--sequence-by", "at", "--scd-type", 2, "--apply-as-deletes", "op = 'd'",
            "--except-columns", "op", "--lock-timeout", 500,
        )
        for number in range(jobs)
    ]  # fmt: skip
    assert [job.wait(590) for job in started] == [0] * jobs, [job.sentences for job in started]
    found = history_of(table)
    assert found == history_model(changes)
    current = [key for key, _, end in found if end is None]
    assert len(current) == len(set(current))


def history_of(table: Path) -> list[tuple[int, int, int | None]]:
    rows = DeltaTable(table).to_pyarrow_table(columns=["id", "__START_AT", "__END_AT"]).to_pylist()
    return sorted((row["id"], row["__START_AT"], row["__END_AT"]) for row in rows)


def history_model(changes: list[tuple[int, int, str]]) -> list[tuple[int, int, int | None]]:
    found: list[tuple[int, int, int | None]] = []
    for key in {key for key, _, _ in changes}:
        own = sorted((at, op) for each, at, op in changes if each == key)
        ends = [*(at for at, _ in own[1:]), None]
        found += [(key, at, end) for (at, op), end in zip(own, ends, strict=True) if op != "d"]
    return sorted(found)
