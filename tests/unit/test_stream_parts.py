"""Parts of streaming jobs that need no Spark: arguments, sequences, options and the report."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta

import pytest
from pyspark.sql import Row

from writer_jobs.errors import ArgumentsError
from writer_jobs.job.output import JobOutput
from writer_jobs.job.stream_arguments import StreamArguments
from writer_jobs.job.upsert import parse_arguments
from writer_jobs.late_rows.options import with_defaults
from writer_jobs.late_rows.row_models import FirstRows
from writer_jobs.merge.result import moment_of
from writer_jobs.merge.scd1 import NewestRows

REQUIRED = [
    "--zookeeper", "zk1:2181", "--table", "s3a://lake/t", "--source", "s3a://landing/", "--keys", "id",
    "--sequence-by", "at",
]  # fmt: skip
STREAM = ["--trigger", "10 seconds", "--checkpoint", "s3a://lake/c"]


def test_a_stream_has_a_trigger_and_a_checkpoint() -> None:
    arguments = parse_arguments([*REQUIRED, *STREAM, "--max-files-per-batch", "3"])
    arguments.check()
    assert (arguments.stream, arguments.commits) == (StreamArguments("10 seconds", "s3a://lake/c"), None)
    assert (parse_arguments(REQUIRED).stream, parse_arguments(REQUIRED).commits) == (None, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (STREAM[:2], "belong together"),
        (STREAM[2:], "belong together"),
        (["--trigger", "10", *STREAM[2:]], "neither available-now nor an interval"),
        ([*STREAM, "--max-files-per-batch", "0"], "not a whole number"),
        (["--max-files-per-batch", "1"], "give --trigger with it"),
        ([*STREAM, "--run-id", "monday"], "not both"),
        ([*STREAM, "--source", "s3a://other/"], "a folder, or a glob in quotes"),
    ],
)
def test_invalid_stream_arguments_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ArgumentsError, match=message):
        parse_arguments([*REQUIRED, *arguments]).check()


def test_timestamps_and_dates_are_moments() -> None:
    now = datetime.now()  # noqa: DTZ005 (Spark returns such values)
    assert moment_of(now) == pytest.approx(time.time(), abs=5)
    assert moment_of(Row(committed_at=now, position=7)) == moment_of(now)
    assert 0 <= time.time() - (moment_of(now.date()) or 0) < 90_000
    for value in (None, 7, "2026-11-01", Row(position=7), ()):
        assert moment_of(value) is None


def test_first_rows_have_no_side_table() -> None:
    side_table = {"side_table", "side_rows"}
    assert side_table <= set(dir(NewestRows))
    assert not side_table & set(dir(FirstRows))


def test_row_options_have_defaults_and_unknown_ones_are_refused() -> None:
    options = with_defaults({"keys": ["id"], "event_time": "at", "watermark_delay": timedelta(hours=1)})
    assert (options["watermark_delay"], options["allowed_lateness"]) == (timedelta(hours=1), None)
    assert with_defaults(options) == options
    with pytest.raises(TypeError, match="unexpected keyword argument 'watermark'"):
        with_defaults({**options, "watermark": timedelta(0)})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match="missing keyword argument 'event_time'"):
        with_defaults({"keys": ["id"]})  # type: ignore[typeddict-item]


def test_the_report_of_a_stream_has_last_commits_and_totals(capsys: pytest.CaptureFixture[str]) -> None:
    output = JobOutput(None)
    for number in range(1, 101):
        output.commit(number, None, batch=number - 1, changes=2, newest_sequence=number)
    assert [line["batch"] for line in output.report_fields["commits"]] == list(range(80, 100))
    assert output.report_fields["totals"] == {"commits": 100, "changes": 200}
    assert output.committed_suffix() == " (commits 1 to 100 are in the table)"
    assert [json.loads(line)["commits"] for line in capsys.readouterr().out.splitlines()] == [None] * 100
