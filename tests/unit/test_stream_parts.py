"""What streams are told, and what they say, without Spark."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import Row

from writer_jobs.errors import ArgumentsError
from writer_jobs.job.output import JobOutput
from writer_jobs.job.stream_arguments import StreamArguments
from writer_jobs.job.upsert.arguments import parse_arguments
from writer_jobs.late_rows.options import with_defaults
from writer_jobs.late_rows.row_models import FirstRows
from writer_jobs.merge.result import moment_of
from writer_jobs.merge.scd1 import NewestRows

LEAST = [
    "--zookeeper", "zk1:2181", "--table", "s3a://lake/t", "--source", "s3a://landing/", "--keys", "id",
    "--sequence-by", "at",
]  # fmt: skip
STREAM = ["--trigger", "10 seconds", "--checkpoint", "s3a://lake/c"]


def test_a_stream_has_a_trigger_and_a_checkpoint_and_no_end() -> None:
    found = parse_arguments([*LEAST, *STREAM, "--max-files-per-batch", "3"])
    found.check()
    assert (found.stream, found.commits) == (StreamArguments("10 seconds", "s3a://lake/c"), None)
    assert (parse_arguments(LEAST).stream, parse_arguments(LEAST).commits) == (None, 1)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (STREAM[:2], "belong together"),
        (STREAM[2:], "belong together"),
        (["--trigger", "10", *STREAM[2:]], "neither available-now nor an interval"),
        ([*STREAM, "--max-files-per-batch", "0"], "not a whole number"),
        (["--max-files-per-batch", "1"], "give --trigger with it"),
        ([*STREAM, "--run-id", "monday"], "not both"),
        ([*STREAM, "--source", "s3a://other/"], "one folder"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(more: list[str], says: str) -> None:
    with pytest.raises(ArgumentsError, match=says):
        parse_arguments([*LEAST, *more]).check()


def test_a_sequence_is_a_moment_if_it_is_one_or_a_day_s_begin() -> None:
    now = datetime.now()  # noqa: DTZ005 (so Spark has them)
    assert moment_of(now) == pytest.approx(time.time(), abs=5)
    assert moment_of(Row(committed_at=now, position=7)) == moment_of(now)
    assert 0 <= time.time() - (moment_of(now.date()) or 0) < 90_000
    others: list[Any] = [None, 7, "2026-11-01", Row(position=7), ()]
    assert [moment_of(each) for each in others] == [None] * 5


def test_only_changes_are_remembered_beside_the_table() -> None:
    of_changes = {"side_table", "side_rows"}
    assert of_changes <= set(dir(NewestRows))
    assert not of_changes & set(dir(FirstRows))


def test_row_options_get_defaults_and_other_names_are_refused() -> None:
    options = with_defaults({"keys": ["id"], "event_time": "at", "watermark_delay": timedelta(hours=1)})
    assert (options["watermark_delay"], options["allowed_lateness"]) == (timedelta(hours=1), None)
    assert with_defaults(options) == options
    with pytest.raises(TypeError, match="unexpected keyword argument 'watermark'"):
        with_defaults({**options, "watermark": timedelta(0)})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match="missing keyword argument 'event_time'"):
        with_defaults({"keys": ["id"]})  # type: ignore[typeddict-item]


def test_of_a_stream_the_report_has_the_last_commits_and_totals(capsys: pytest.CaptureFixture[str]) -> None:
    output = JobOutput(None)
    for number in range(1, 101):
        output.commit(number, None, batch=number - 1, changes=2, newest_sequence=number)
    assert [line["batch"] for line in output.report_fields["commits"]] == list(range(80, 100))
    assert output.report_fields["totals"] == {"commits": 100, "changes": 200}
    assert output.committed_suffix() == " (commits 1 to 100 are in the table)"
    assert [json.loads(line)["commits"] for line in capsys.readouterr().out.splitlines()] == [None] * 100
