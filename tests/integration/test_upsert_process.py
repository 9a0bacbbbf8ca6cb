"""``upsert.py`` as a stream under spark-submit: killed in a batch, started again, stopped between two."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lock_manager import ZookeeperLockManager
from tests.support.change_commits import batches_in
from tests.support.submitted_job import SubmittedJob
from writer_jobs import upsert as upsert_module

pytestmark = pytest.mark.spark

UPSERT = Path(upsert_module.__file__)
SEED, FILES, CHANGES, KEYS = 20261123, 3, 40, 12


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
    last = f"{FILES - 1:020d}.json"
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
