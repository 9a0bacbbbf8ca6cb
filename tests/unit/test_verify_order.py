"""`sluice verify` checks the order of commits: tokens at each node, the lock's name, and the ensemble."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from lock_manager.resources import table_key
from lock_manager.table_records.commit_stamp import CommitStamp
from sluice.audit.checks import check_ensembles, check_names, check_tokens
from sluice.audit.log_files import LogCommit

TABLE_NODE, MONTH_1, MONTH_2 = "s3://lake/t", "s3://lake/t?month=1", "s3://lake/t?month=2"


def locked_commit(
    version: int,
    hold: str,
    *,
    ensemble: str = "e",
    adopted_by: str | None = None,
    tokens: Mapping[str, int] = {},
    shared: Mapping[str, int] = {},
) -> LogCommit:
    stamp = CommitStamp(f"c{version}", hold, ensemble, tokens, shared, 0.0)
    return LogCommit(version, stamp=stamp, adopted_by=adopted_by)


def test_holds_of_two_partitions_commit_in_any_order() -> None:
    commits = [
        locked_commit(0, "a", shared={TABLE_NODE: 10}, tokens={MONTH_1: 11}),
        locked_commit(1, "b", shared={TABLE_NODE: 12}, tokens={MONTH_2: 13}),
        locked_commit(2, "a", shared={TABLE_NODE: 10}, tokens={MONTH_1: 11}),
        locked_commit(3, "c", tokens={TABLE_NODE: 20}),
        locked_commit(4, "d", shared={TABLE_NODE: 22}, tokens={MONTH_1: 23}),
    ]
    assert check_tokens(commits) == []


@pytest.mark.parametrize(
    ("hold", "late_tokens", "message"),
    [
        # The table's holder came after the holders of partitions.
        ("a", {"shared": {TABLE_NODE: 10}, "tokens": {MONTH_1: 11}}, "token 10, not above 20 of version 2"),
        # A later hold's token must be above the token of the table's holder.
        ("d", {"tokens": {TABLE_NODE: 12}}, "token 12, not above 20 of version 2"),
        ("d", {"tokens": {TABLE_NODE: 20}}, "token 20, not above 20 of version 2"),
    ],
)
def test_a_commit_of_an_earlier_hold_at_a_node_is_found(hold: str, late_tokens: dict[str, Any], message: str) -> None:
    commits = [
        locked_commit(0, "a", shared={TABLE_NODE: 10}, tokens={MONTH_1: 11}),
        locked_commit(1, "b", shared={TABLE_NODE: 12}, tokens={MONTH_2: 13}),
        locked_commit(2, "c", tokens={TABLE_NODE: 20}),
    ]
    assert check_tokens(commits) == []
    (problem,) = check_tokens([*commits, locked_commit(3, hold, **late_tokens)])
    assert problem.startswith(f"version 3 carries fencing {message}")


@pytest.mark.parametrize(
    "late_tokens", [{"tokens": {TABLE_NODE: 9}}, {"shared": {TABLE_NODE: 8}, "tokens": {MONTH_1: 9}}]
)
def test_a_token_below_version_0_can_belong_to_a_dropped_table(late_tokens: dict[str, Any]) -> None:
    commits = [locked_commit(0, "a", tokens={TABLE_NODE: 10}), locked_commit(1, "a", tokens={TABLE_NODE: 10})]
    assert check_tokens([*commits, locked_commit(2, "b", tokens={TABLE_NODE: 12})]) == []
    (problem,) = check_tokens([*commits, locked_commit(2, "z", **late_tokens)])
    assert re.match(r"version 2 carries fencing token [89], below", problem)
    assert "below 10 of version 0: either it is a late commit to an earlier table" in problem
    # A log without version 0 does not show the reason.
    (problem,) = check_tokens([commits[1], locked_commit(2, "z", **late_tokens)])
    assert "an earlier holder wrote after a later one" in problem


NAME, ALIAS = "s3://lake/t", "s3://lake-alias/t"


def named_commit(*names: str, adopted_name: str | None = None, partition: str = "") -> LogCommit:
    """Return a commit under locks on these names."""
    commit = locked_commit(7, "h", tokens={table_key(name) + partition: 10 for name in names})
    return replace(commit, adopted_name=adopted_name)


UNDER_NAME, UNDER_ALIAS = named_commit(NAME), named_commit(ALIAS)
ADOPTION = named_commit(NAME, adopted_name=NAME)
MOVE = named_commit(NAME, ALIAS, adopted_name=ALIAS)
CLONE = named_commit(ALIAS, adopted_name=NAME)


@pytest.mark.parametrize(
    ("commits", "problem_count"),
    [
        ([UNDER_NAME, UNDER_ALIAS], 0),
        ([UNDER_NAME, ADOPTION, named_commit(NAME, partition="/month=1")], 0),
        ([ADOPTION, UNDER_ALIAS], 1),
        ([ADOPTION, named_commit(ALIAS, partition="/month=1")], 1),
        # The table is moved under both locks.
        ([ADOPTION, MOVE, UNDER_ALIAS], 0),
        ([ADOPTION, MOVE, UNDER_NAME], 1),
        # A clone has its source's name until it is adopted.
        ([CLONE, named_commit(ALIAS, adopted_name=ALIAS), UNDER_ALIAS], 0),
        ([CLONE, UNDER_ALIAS], 1),
        # The adoption is removed.
        ([ADOPTION, named_commit(NAME, adopted_name=""), UNDER_ALIAS], 0),
    ],
)
def test_a_commit_under_another_name_s_lock_is_found(commits: list[LogCommit], problem_count: int) -> None:
    messages = check_names(commits)
    assert len(messages) == problem_count
    ending = "under which the table is adopted: two names could have been locked"
    assert all(message.endswith(ending) for message in messages)


def test_an_adopted_name_counts_after_log_clean_up() -> None:
    assert check_names([UNDER_NAME], adopted_name=NAME) == []
    assert len(check_names([UNDER_ALIAS], adopted_name=NAME)) == 1


def test_a_clone_may_change_the_ensemble_of_its_source() -> None:
    clone_commits = [
        locked_commit(0, "a", ensemble="B", adopted_by="A"),
        locked_commit(1, "a", ensemble="B", adopted_by="B"),
        locked_commit(2, "b", ensemble="B"),
    ]
    assert check_ensembles(clone_commits) == []
    restored_commits = [replace(commit, version=commit.version + 3) for commit in clone_commits]
    assert check_ensembles([*clone_commits, *restored_commits]) == []
    assert len(check_ensembles([clone_commits[0], clone_commits[2]])) == 1


def test_an_exclusive_token_below_a_shared_one_is_found() -> None:
    commits = [
        locked_commit(0, "a", shared={TABLE_NODE: 30}, tokens={MONTH_1: 31}),
        locked_commit(1, "b", tokens={TABLE_NODE: 29}),
    ]
    assert len(check_tokens(commits)) == 1


def test_a_hold_with_two_tokens_at_a_node_is_found() -> None:
    commits = [locked_commit(0, "a", tokens={TABLE_NODE: 30}), locked_commit(1, "a", tokens={TABLE_NODE: 29})]
    assert len(check_tokens(commits)) == 1


def commits_under(*ensembles: str) -> list[LogCommit]:
    """Return one commit under each of these ensembles, in this order."""
    return [locked_commit(number, f"h{number}", ensemble=ensemble) for number, ensemble in enumerate(ensembles)]


@pytest.mark.parametrize(
    ("ensembles", "problem_count"), [("A", 0), ("AAB", 0), ("ABC", 0), ("ABA", 1), ("ABAB", 2), ("AABBA", 1)]
)
def test_a_return_to_an_earlier_ensemble_is_found(ensembles: str, problem_count: int) -> None:
    messages = check_ensembles(commits_under(*ensembles))
    assert len(messages) == problem_count
    assert all("two ensembles could have granted its lock" in message for message in messages)


def test_a_table_may_be_adopted_back_by_an_earlier_ensemble() -> None:
    commits = [
        locked_commit(0, "a", ensemble="A", adopted_by="A"),
        locked_commit(1, "b", ensemble="A"),
        locked_commit(2, "c", ensemble="B", adopted_by="B"),
        locked_commit(3, "d", ensemble="B"),
        locked_commit(4, "e", ensemble="A", adopted_by="A"),
        locked_commit(5, "f", ensemble="A"),
    ]
    assert check_ensembles(commits) == []
    # A commit that changes other metadata repeats the adoption.
    assert check_ensembles([*commits, locked_commit(6, "g", ensemble="A", adopted_by="A")]) == []
    assert check_ensembles([*commits, locked_commit(6, "g", ensemble="B")]) == [
        "version 6 was made under ensemble B, but the table is adopted by A: two ensembles could have granted its lock"
    ]


@pytest.mark.parametrize(
    ("operation", "ensemble", "problem_count"),
    [
        ("CREATE OR REPLACE TABLE AS SELECT", "B", 2),
        ("CREATE OR REPLACE TABLE AS SELECT", "A", 1),
        ("UNSET TBLPROPERTIES", "B", 0),
    ],
)
def test_an_adoption_lost_by_a_replaced_table_is_found(operation: str, ensemble: str, problem_count: int) -> None:
    commits = [
        locked_commit(0, "a", ensemble="A", adopted_by="A"),
        replace(locked_commit(1, "b", ensemble="A", adopted_by=""), operation=operation),
        locked_commit(2, "c", ensemble=ensemble),
    ]
    messages = check_ensembles(commits)
    assert len(messages) == problem_count
    assert all("until version 1 removed the adoption" in message for message in messages)
    # A new adoption ends the problem.
    assert check_ensembles([*commits[:2], locked_commit(2, "c", ensemble="A", adopted_by="A")]) == []
