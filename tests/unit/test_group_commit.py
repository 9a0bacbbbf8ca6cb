"""Which offers a holder takes along, and in which order."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from lock_manager.guard.group_commit import GroupTerms, OfferedAppend
from lock_manager.guard.write_attempt import WriteAttempt

STAGED: dict[str, Any] = {
    "state": "s",
    "read_version": 7,
    "lines": ['{"add":{"path":"part-0.parquet"}}'],
    "info": {"operation": "WRITE"},
}
TERMS = {"state": "s", "read_version": 7, "retention_ms": 7_200_000, "transactions": ["taken"]}


def offer(**changes: Any) -> dict[str, Any]:
    """Return an offer as the holder reads it in the queue."""
    data = OfferedAppend.of(STAGED, WriteAttempt.of({}), {"job": "j"}).data()
    return json.loads(json.dumps({**data, **changes}))  # type: ignore[no-any-return]


def add(path: str) -> list[str]:
    return [json.dumps({"add": {"path": path}})]


def txn(application: str) -> list[str]:
    return [json.dumps({"txn": {"appId": application, "version": 1}}), *STAGED["lines"]]


def test_offers_are_taken_in_queue_order() -> None:
    offers = {name: offer() for name in ("b", "a", "c")}
    chosen = GroupTerms.of(TERMS).choose(offers)
    assert list(chosen) == ["b", "a", "c"]
    assert chosen["b"].stamp == {"job": "j", "commit_id": offers["b"]["write_id"]}


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "other metadata"},
        {"lines": txn("taken")},
        # Whether the transaction was committed before the version that the holder has read is not known.
        {"lines": txn("new"), "read_version": 6},
        {"begun_at": time.time() - 3700},
        {"lines": ['{"remove":{"path":"part-0.parquet"}}']},
        {"lines": ['{"add":{"path":"a"},"remove":{"path":"b"}}']},
        {"lines": ["not JSON"]},
        {"lines": add("s3://bucket/part-0.parquet")},
        {"lines": add("/part-0.parquet")},
        {"lines": add("day=1/../../part-0.parquet")},
        {"lines": ["7"]},
        {"lines": 7},
        {"info": None},
        {"stamp": "text"},
        {"read_version": None},
        {"lines": [*STAGED["lines"], *add("x" * 1_000_000)]},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_an_offer_that_does_not_fit_is_left_out(changes: dict[str, Any]) -> None:
    chosen = GroupTerms.of(TERMS).choose({"first": offer(), "second": offer(**changes), "third": offer()})
    assert list(chosen) == ["first", "third"]


@pytest.mark.parametrize(
    "changes",
    [
        {"lines": txn("new")},
        {"lines": txn("new"), "read_version": 8},
        {"read_version": 3},
        {"lines": add("day=2024-01-01/part-0.parquet")},
        {"lines": add("time=2024-01-01%2000%253A00%253A00/..part.parquet")},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_an_offer_that_fits_is_taken(changes: dict[str, Any]) -> None:
    assert GroupTerms.of(TERMS).choose({"only": offer(**changes)})


def test_a_version_has_one_mark_of_an_application_and_each_append_once() -> None:
    first = offer(lines=txn("a"))
    offers = {"first": first, "same append": first, "same application": offer(lines=txn("a")), "last": offer()}
    assert list(GroupTerms.of(TERMS).choose(offers)) == ["first", "last"]


def test_the_size_of_a_group_is_limited() -> None:
    large = offer(lines=add("x" * 300_000))
    offers = {str(number): {**large, "write_id": str(number)} for number in range(5)} | {"small": offer()}
    assert list(GroupTerms.of(TERMS).choose(offers)) == ["0", "1", "2", "small"]
