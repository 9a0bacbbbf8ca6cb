"""What the ensemble's answer to a question about our contenders says, and why a transaction was not done."""

from __future__ import annotations

import pytest
from kazoo.exceptions import (
    BadVersionError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)

from lock_manager.settings import LockSettings
from lock_manager.zookeeper.hold_contenders import SESSION_ENDED, HoldContenders
from lock_manager.zookeeper.request import AcquireResult, JoinedQueue, RequestedQueue
from lock_manager.zookeeper.responses import Failure, failure_in
from lock_manager.zookeeper.session import SESSION_GONE, Session
from lock_manager.zookeeper.znodes import Mode, contender_at

HOLD = "a" * 32


def contenders(count: int) -> HoldContenders:
    """Return those of a hold that stands in so many queues; nothing connects."""
    entries = []
    for number in range(count):
        node = RequestedQueue(f"key{number}", f"/locks/{number}", Mode.EXCLUSIVE, "s3://lake/t", {})
        path = f"{node.path}/{HOLD}__lock__0000000000"
        entries.append(JoinedQueue(node, path, contender_at(path), 7))
    return HoldContenders(Session(LockSettings(zk_hosts="127.0.0.1:1")), AcquireResult(HOLD, tuple(entries), 1, {}))


@pytest.mark.parametrize("outcome", [[True, True], [True, True, "/locks/0/intents/x"], [True, True, True]])
def test_all_well_means_that_the_hold_stands(outcome: list[object]) -> None:
    for with_operation in (False, True):
        answer = contenders(2).read(outcome, with_operation=with_operation)
        assert (answer.lost, answer.refusal, answer.operation_error) == (None, None, None)


@pytest.mark.parametrize(
    "outcome",
    [
        [NoNodeError(), RuntimeInconsistency(), RuntimeInconsistency()],
        [RolledBackError(), NoNodeError(), RuntimeInconsistency()],
    ],
)
def test_a_contender_that_is_not_there_means_that_the_hold_is_lost(outcome: list[object]) -> None:
    """Also with an operation, which was not done for that reason alone."""
    for with_operation in (False, True):
        answer = contenders(2).read(outcome, with_operation=with_operation)
        assert (answer.lost, answer.refusal, answer.operation_error) == (
            "its contender was gone: another client removed it, as `sluice break` does",
            None,
            None,
        )


@pytest.mark.parametrize("problem", [NodeExistsError(), NoNodeError(), BadVersionError()], ids=repr)
def test_an_operation_that_does_not_fit_leaves_the_hold_as_it_is(problem: Exception) -> None:
    answer = contenders(2).read([RolledBackError(), RolledBackError(), problem], with_operation=True)
    assert (answer.lost, answer.refusal, answer.operation_error) == (None, None, problem)


@pytest.mark.parametrize(
    ("outcome", "with_operation"),
    [
        ([NoAuthError(), RuntimeInconsistency()], False),
        ([NoAuthError(), RuntimeInconsistency(), RuntimeInconsistency()], True),
        ([RolledBackError(), NoAuthError(), RuntimeInconsistency()], True),
        ([RolledBackError(), RolledBackError(), NoAuthError()], True),
        # What each says of itself from now on may be refused, too.
        ([RolledBackError(), RolledBackError(), NoAuthError(), RuntimeInconsistency()], False),
    ],
)
def test_a_refusal_names_what_was_refused_and_not_what_was_rolled_back_for_it(
    outcome: list[object], *, with_operation: bool
) -> None:
    answer = contenders(2).read(outcome, with_operation=with_operation)
    assert (answer.lost, answer.refusal, answer.operation_error) == (None, "NoAuthError", None)


def test_what_does_not_fit_where_there_was_no_operation_is_a_refusal() -> None:
    answer = contenders(1).read([RolledBackError(), BadVersionError()])
    assert (answer.lost, answer.refusal, answer.operation_error) == (None, "BadVersionError", None)


@pytest.mark.parametrize("gone", SESSION_GONE)
def test_a_session_that_is_gone_means_that_the_hold_is_lost(gone: type[Exception]) -> None:
    assert contenders(1).read(gone(), with_operation=True).lost == SESSION_ENDED


def test_a_transaction_failed_for_what_is_no_rolling_back() -> None:
    problem = NoNodeError()
    assert failure_in([True, "/made", True]) is None
    assert failure_in([RolledBackError(), problem, RuntimeInconsistency()]) == Failure(1, problem)


def test_a_transaction_that_was_rolled_back_for_no_known_reason_was_not_done() -> None:
    rolled_back = RolledBackError()
    assert failure_in([rolled_back, RuntimeInconsistency()]) == Failure(0, rolled_back)
    assert contenders(2).read([rolled_back, RuntimeInconsistency()]).refusal == "RolledBackError"
