"""`verify_table` on S3, found by storage options and by the environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from arro3.core import Array, DataType, Table
from deltalake import write_deltalake

from sluice.local_s3 import LocalS3
from sluice.log_folder import LogAccessError
from sluice.verify import VerifyError, verify_table

COMMITS = 12


@pytest.fixture(scope="module")
def s3() -> Iterator[LocalS3]:
    with LocalS3() as server:
        server.create_bucket("lake")
        options = server.environment | {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
        for number in range(COMMITS):
            data = Table.from_pydict({"id": Array([number, number + 1], type=DataType.int64())})
            for table in ("s3://lake/raw/flights", "s3://lake"):
                write_deltalake(table, data, mode="append", storage_options=options)
        yield server


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("table", ["s3://lake/raw/flights", "s3a://lake/raw/flights/", "s3n://lake"])
def test_a_table_is_found_by_storage_options(s3: LocalS3, table: str) -> None:
    options = {name.lower(): value for name, value in s3.environment.items() if name != "AWS_ALLOW_HTTP"}
    found = verify_table(table, key=["id"], storage_options=options)
    assert found.problems == (
        f"{COMMITS - 1} duplicate rows by (id), for example (1) 2 times; (2) 2 times; (3) 2 times",
    )
    assert (found.commits, found.rows_found, found.rows_in_log) == (COMMITS, 2 * COMMITS, 2 * COMMITS)


def test_a_table_is_found_by_the_environment(s3: LocalS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    assert verify_table("s3a://lake/raw/flights").ok
    with pytest.raises(VerifyError, match="no Delta table at s3://lake/raw/nothing"):
        verify_table("s3a://lake/raw/nothing")
    with pytest.raises(LogAccessError, match=r"cannot be listed.*NoSuchBucket"):
        verify_table("s3a://nobucket/table")
