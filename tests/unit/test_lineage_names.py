"""Names of datasets by OpenLineage's rules, and the parts of events that need no Spark."""

from __future__ import annotations

from typing import Any

import pytest

from lock_manager import LockCancelledError
from lock_manager.table_records.commit_stamp import lineage_note, lineage_run_of, note_as_user_metadata
from writer_jobs.job.stop_signals import JobStopped
from writer_jobs.lineage.dataset_names import database_table_name, location_name, topic_name
from writer_jobs.lineage.records import DatasetName, state_of


@pytest.mark.parametrize(
    ("location", "namespace", "name"),
    [
        ("s3a://lake/bronze/flights/", "s3://lake", "bronze/flights"),
        ("s3n://lake", "s3://lake", "/"),
        ("gs://lake/flights", "gs://lake", "flights"),
        ("abfss://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net", "a"),
        ("wasbs://c@account.blob.core.windows.net/a", "abfss://c@account.dfs.core.windows.net", "a"),
        ("hdfs://nn:9000/a/b", "hdfs://nn:9000", "/a/b"),
        ("hdfs://nn:8020/", "hdfs://nn", "/"),
        ("file:///proc/%20/x", "file", "/proc/%20/x"),
        ("ftp://user:secret@host/in/a.csv", "ftp://host", "/in/a.csv"),
        ("s3a://key:secret@lake/flights", "s3://lake", "flights"),
    ],
)
def test_a_location_has_one_name_for_all_spellings(location: str, namespace: str, name: str) -> None:
    assert location_name(location) == DatasetName(namespace, name)


@pytest.mark.parametrize("location", ["s3a:/lake", "http:///x", "file://host/x"])
def test_a_location_without_a_canonical_uri_has_no_name(location: str) -> None:
    assert location_name(location) is None


def test_the_first_server_names_a_topic() -> None:
    assert topic_name("b1:9092,b2:9092", "orders") == DatasetName("kafka://b1:9092", "orders")
    assert topic_name("SASL_SSL://b1:9092", "orders") == DatasetName("kafka://b1:9092", "orders")


@pytest.mark.parametrize(
    ("url", "table", "expected"),
    [
        ("jdbc:postgresql://DB/shop?user=u&password=p", "public.orders", ("postgres://db:5432", "shop.public.orders")),
        ("jdbc:postgresql://u:p@db:5433/shop", "shop.public.orders", ("postgres://db:5433", "shop.public.orders")),
        ("jdbc:postgresql://[::1]/shop", "orders", ("postgres://[::1]:5432", "shop.orders")),
        ("jdbc:mysql://db/shop", "orders", ("mysql://db:3306", "shop.orders")),
        ("jdbc:mysql://db/shop", "crm.people", ("mysql://db:3306", "crm.people")),
        ("jdbc:mysql://db", "crm.people", ("mysql://db:3306", "crm.people")),
        ("jdbc:postgresql://a,b/shop", "orders", None),
        ("jdbc:postgresql:shop", "orders", None),
        ("jdbc:postgresql://db:x/shop", "orders", None),
        ("jdbc:mysql://db/shop", '"Order Lines"', None),
        ("jdbc:sqlserver://db;databaseName=shop", "dbo.orders", None),
        ("jdbc:derby:shop", "orders", None),
    ],
)
def test_only_tables_of_known_databases_have_a_name(url: str, table: str, expected: tuple[str, str] | None) -> None:
    assert database_table_name(url, table) == (None if expected is None else DatasetName(*expected))


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ValueError(), "FAIL"),
        (LockCancelledError(resource="t"), "ABORT"),
        (KeyboardInterrupt(), "ABORT"),
        (JobStopped(15), "ABORT"),
    ],
)
def test_a_stopped_run_is_aborted_and_another_fails(error: BaseException, state: str) -> None:
    assert state_of(error) == state


@pytest.mark.parametrize(
    "info",
    [
        {"userMetadata": note_as_user_metadata(lineage_note("r"))},
        {"sluice": {**lineage_note("r"), "nodes": []}},
    ],
)
def test_a_commit_names_its_run_in_its_note_or_its_stamp(info: dict[str, Any]) -> None:
    assert lineage_run_of(info) == "r"
    assert lineage_run_of({"sluice": {"nodes": []}}) is None
