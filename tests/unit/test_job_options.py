"""Options of all jobs: fields, parameters of the library, and the recorded identity of a run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from writer_jobs import apply_changes, apply_events
from writer_jobs.job.append.arguments import parse_arguments as parse_append
from writer_jobs.job.arguments import JobArguments
from writer_jobs.job.cdc.arguments import parse_arguments as parse_cdc
from writer_jobs.job.maintain.arguments import parse_arguments as parse_maintain
from writer_jobs.job.overwrite import parse_arguments as parse_overwrite
from writer_jobs.job.snapshot import parse_arguments as parse_snapshot
from writer_jobs.job.stream.arguments import parse_arguments as parse_stream
from writer_jobs.job.upsert import parse_arguments as parse_upsert
from writer_jobs.late_rows.options import RowOptions

Parser = Callable[[Sequence[str]], JobArguments]

FILES = ["--table", "s3a://lake/t", "--source", "a.csv"]
UPSERT = [*FILES, "--keys", "country,id", "--sequence-by", "updated_at"]
CDC = [*FILES, "--decoder", "debezium"]
ROWS = [*FILES, "--keys", "id", "--event-time", "at", "--trigger", "available-now", "--checkpoint", "s3a://lake/c"]
MINIMAL_ARGUMENTS = [
    (parse_append, FILES),
    (parse_overwrite, FILES),
    (parse_upsert, UPSERT),
    (parse_cdc, CDC),
    (parse_stream, ROWS),
    (parse_snapshot, ["--table", "s3a://lake/t", "--pin", "p"]),
    (parse_maintain, ["--table", "s3a://lake/t"]),
]


@pytest.mark.parametrize(("parse", "argv"), MINIMAL_ARGUMENTS)
def test_parsed_options_contain_no_lists(parse: Parser, argv: list[str]) -> None:
    assert not [name for name, value in vars(parse(argv)).items() if isinstance(value, list)]


@pytest.mark.parametrize(
    ("parse", "argv", "parameters"),
    [
        (parse_upsert, UPSERT, inspect.signature(apply_changes).parameters),
        (parse_cdc, CDC, inspect.signature(apply_events).parameters),
        (parse_stream, ROWS, RowOptions.__annotations__),
    ],
)
def test_apply_options_are_parameters_of_the_function(
    parse: Parser, argv: list[str], parameters: Mapping[str, Any]
) -> None:
    assert parse(argv).apply_options.keys() <= parameters.keys()


@pytest.mark.parametrize(
    ("parse", "argv", "identity_json"),
    [
        (parse_append, FILES, "{}"),
        (parse_overwrite, [*FILES, "--dynamic"], '{"replace-where": null, "dynamic": true, "overwrite-schema": false}'),
        (parse_upsert, UPSERT, '{"keys": "country,id", "sequence-by": "updated_at", "scd-type": "1"}'),
        (parse_cdc, CDC, '{"decoder": "debezium", "keys": "", "sequence-by": "", "scd-type": "1"}'),
        (
            parse_cdc,
            [*CDC, "--source-table", "b", "--source-table", "a", "--keys", "id"],
            '{"decoder": "debezium", "keys": "id", "sequence-by": "", "source-tables": "a,b", "scd-type": "1"}',
        ),
    ],
)
def test_a_recorded_identity_keeps_its_format(parse: Parser, argv: list[str], identity_json: str) -> None:
    assert json.dumps(parse(argv).identity) == identity_json
