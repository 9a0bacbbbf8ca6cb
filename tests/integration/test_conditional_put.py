"""The first commit of a driver proves that the store honours ``If-None-Match``; other stores get no commit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.audit.log_folder import s3_client
from soak.s3_faults import RIVAL, S3Fault
from tests.support.append_rows import HEADER
from tests.support.careless_s3 import SCRATCH, WRITER, CarelessS3, careless_table
from tests.support.s3_table import read

pytestmark = pytest.mark.spark

VERSION_FILES = r"_delta_log/\d{20}\.json$"
Append = Callable[..., Any]


@pytest.fixture
def append_row(append: Append, csv_file: Callable[..., Path]) -> Append:
    """Append a row to a table with the append job."""
    return partial(append, "--source", csv_file("rows.csv", HEADER, [(1, "one", 1.0)]), "--table")


def keys(s3: CarelessS3) -> list[str]:
    listing = s3_client(s3.environment).list_objects_v2(Bucket=s3.root)
    return [str(entry["Key"]) for entry in listing.get("Contents", ()) if not entry["Key"].endswith("/")]


def winners(s3: CarelessS3, version: int) -> list[str]:
    """Return the writers whose PUTs of this version the store accepted, in order."""
    return [put.writer for put in s3.faults.puts if put.version == version and put.status == 200]


@pytest.mark.parametrize(("hold", "put"), [("commit", ""), ("write", ""), ("write", "client")])
def test_a_store_that_ignores_the_condition_gets_no_commit(
    spark: SparkSession, append_row: Append, hold: str, put: str
) -> None:
    with careless_table(spark, unconditional_keys=".", put=put) as (s3, table):
        outcome = append_row(table, "--hold", hold)
        assert (outcome.code, outcome.commits) == (5, [])
        assert len(outcome.error.splitlines()) == 1
        assert f"s3a://{s3.root} at {s3.endpoint} in us-east-1 ignores If-None-Match" in outcome.error
        assert f"sluice doctor --table {table}" in outcome.error
        assert s3.faults.puts == []
        assert s3.front.puts[SCRATCH] == 2


def test_negative_control_an_overwritten_version_file_loses_a_commit(spark: SparkSession, append_row: Append) -> None:
    """The store honours the condition for the object of the proof, and ignores it for version files."""
    with careless_table(spark, unconditional_keys=VERSION_FILES) as (s3, table):
        enabled = {"Status": "Enabled"}
        s3_client(s3.environment).put_bucket_versioning(Bucket=s3.root, VersioningConfiguration=enabled)
        assert append_row(table).code == 0
        # The rival's PUT is stored and acknowledged first.
        s3.faults.arm(WRITER, S3Fault(rival=True))
        assert append_row(table).code == 0
        assert winners(s3, 1) == [RIVAL, WRITER]
        verification = read(table)
        assert verification["unlocked_writers"] == {}, "the rival's commit is still in the log"
        (problem,) = verification["problems"]
        assert problem.startswith("version 1 was overwritten: the bucket keeps its first content")
        assert problem.endswith(f"by {RIVAL}")


def test_a_store_that_honours_the_condition_loses_no_commit(spark: SparkSession, append_row: Append) -> None:
    with careless_table(spark) as (s3, table):
        assert append_row(table).code == 0
        s3.faults.arm(WRITER, S3Fault(rival=True))
        assert append_row(table).code == 0
        assert (winners(s3, 1), winners(s3, 2)) == ([RIVAL], [WRITER])
        verification = read(table)
        assert verification["problems"] == []
        assert verification["unlocked_writers"] == {RIVAL: [1]}


@pytest.mark.full
def test_a_driver_proves_a_store_once_with_two_requests(spark: SparkSession, append_row: Append) -> None:
    """One request is enough if another driver has proved the store."""
    with careless_table(spark) as (s3, table):
        assert append_row(table).code == 0
        assert s3.front.puts[SCRATCH] == 2
        assert append_row(table).code == 0
        assert append_row(f"{table}-2").code == 0
        assert s3.front.puts[SCRATCH] == 2
        assert [key for key in keys(s3) if key.endswith(SCRATCH)] == [f"table/_delta_log/{SCRATCH}"]
    with careless_table(spark) as (s3, table):
        s3_client(s3.environment).put_object(Bucket=s3.root, Key=f"table/_delta_log/{SCRATCH}", Body=b"")
        s3.front.puts.clear()
        assert append_row(table).code == 0
        assert s3.front.puts[SCRATCH] == 1


@pytest.mark.full
@pytest.mark.parametrize("status", [403, 500, 503, 409])
def test_a_failed_proof_is_repeated_with_the_next_commit(spark: SparkSession, append_row: Append, status: int) -> None:
    with careless_table(spark) as (s3, table):
        s3.front.errors.extend([status] * 50)
        outcome = append_row(table)
        assert (outcome.code, outcome.commits) == (5, [])
        assert "gave no answer that proves that it honours If-None-Match" in outcome.error
        assert s3.faults.puts == []
        s3.front.errors.clear()
        # After a single failure the proof is repeated at once.
        s3.front.errors.append(status)
        assert append_row(table).code == 0
