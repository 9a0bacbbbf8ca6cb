"""`verify_table` on S3, found by storage options and by the environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from arro3.core import Array, DataType, Table
from deltalake import write_deltalake

from sluice.audit.verify import verify_table
from sluice.errors import LogAccessError, VerifyError
from tests.support.lake import S3, lake

COMMITS = 12
pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with lake() as server:
        options = server.environment | {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
        for number in range(COMMITS):
            data = Table.from_pydict({"id": Array([number, number + 1], type=DataType.int64())})
            for table in (f"s3://{server.root}/raw/flights", f"s3://{server.root}"):
                write_deltalake(table, data, mode="append", storage_options=options)
        yield server


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("table", ["s3://{root}/raw/flights", "s3a://{root}/raw/flights/", "s3n://{root}"])
def test_a_table_is_found_by_storage_options(s3: S3, table: str) -> None:
    options = {name.lower(): value for name, value in s3.environment.items() if name != "AWS_ALLOW_HTTP"}
    found = verify_table(table.format(root=s3.root), key=["id"], storage_options=options)
    assert found.problems == (
        f"{COMMITS - 1} duplicate rows by (id), for example (1) 2 times; (2) 2 times; (3) 2 times",
    )
    assert (found.commits, found.rows_found, found.rows_in_log) == (COMMITS, 2 * COMMITS, 2 * COMMITS)


def test_a_table_is_found_by_the_environment(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    assert verify_table(f"s3a://{s3.root}/raw/flights").ok
    with pytest.raises(VerifyError, match=f"no Delta table at s3://{s3.root}/raw/nothing"):
        verify_table(f"s3a://{s3.root}/raw/nothing")
    with pytest.raises(LogAccessError, match=r"cannot be listed.*NoSuchBucket"):
        verify_table("s3a://nobucket/table")
