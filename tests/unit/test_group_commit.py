"""Which offers a holder takes along, and in which order."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from lock_manager.guard.group_commit import GroupTerms, OfferedAppend, members_of
from lock_manager.guard.write_attempt import WriteAttempt

STAGED: dict[str, Any] = {
    "state": "s",
    "read_version": 7,
    "lines": ['{"add":{"path":"part-0.parquet"}}'],
    "info": {"operation": "WRITE"},
}
TERMS = {
    "state": "s",
    "read_version": 7,
    "retention_ms": 7_200_000,
    "transactions": ["taken"],
    "committed": ["committed"],
}


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
    assert chosen["b"].stamp == {"job": "j"}


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "other metadata"},
        # An earlier holder has committed it.
        {"write_id": "committed"},
        {"lines": txn("taken")},
        # Whether the transaction was committed before the version that the holder has read is not known.
        {"lines": txn("new"), "read_version": 6},
        {"begun_at": time.time() - 3700},
        {"lines": ['{"remove":{"path":"part-0.parquet"}}']},
        {"lines": ['{"add":{"path":"a"},"remove":{"path":"b"}}']},
        {"lines": ['{"add":"a"}']},
        {"lines": add("s3://bucket/part-0.parquet")},
        {"lines": add("s3:part-0.parquet")},
        {"lines": add("/part-0.parquet")},
        {"lines": add("%2Fpart-0.parquet")},
        {"lines": add("..")},
        {"lines": add("day=1/../../part-0.parquet")},
        {"lines": add("day=1/%2e%2e/part-0.parquet")},
        {"lines": [*STAGED["lines"], *add("x" * 1_000_000)]},
    ],
)
def test_an_offer_that_does_not_fit_is_left_out(changes: dict[str, Any]) -> None:
    chosen = GroupTerms.of(TERMS).choose({"first": offer(), "second": offer(**changes), "third": offer()})
    assert list(chosen) == ["first", "third"]


@pytest.mark.parametrize(
    "changes",
    [
        {"lines": ["not JSON"]},
        {"lines": ["7"]},
        {"lines": 7},
        {"info": None},
        {"stamp": "text"},
        {"read_version": None},
    ],
)
def test_an_offer_that_cannot_be_parsed_ends_the_group(changes: dict[str, Any]) -> None:
    """The marks of its applications are not known."""
    chosen = GroupTerms.of(TERMS).choose({"first": offer(), "second": offer(**changes), "third": offer()})
    assert list(chosen) == ["first"]


def test_no_append_overtakes_an_earlier_one_of_its_application() -> None:
    offers = {"left out": offer(lines=txn("a"), read_version=6), "later": offer(lines=txn("a")), "last": offer()}
    assert list(GroupTerms.of(TERMS).choose(offers)) == ["last"]


def test_a_member_is_recorded_under_its_write_id() -> None:
    data = offer(stamp={"commit_id": "another", "job": "j"})
    (member,) = members_of(GroupTerms.of(TERMS).choose({"only": data}).values())
    assert member["stamp"] == {"commit_id": data["write_id"], "job": "j"}


@pytest.mark.parametrize(
    "changes",
    [
        {"lines": txn("new")},
        {"lines": txn("new"), "read_version": 8},
        {"read_version": 3},
        {"lines": add("day=2024-01-01/part-0.parquet")},
        {"lines": add("time=2024-01-01%2000%253A00%253A00/..part.parquet")},
        # The clock of the member's machine may be ahead.
        {"begun_at": time.time() + 60},
    ],
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
