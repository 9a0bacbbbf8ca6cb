"""The result of a transaction on a hold's contenders: hold valid, hold lost, request refused, or operation failed."""

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
from lock_manager.zookeeper.hold_contenders import SESSION_ENDED, CheckResult, HoldContenders
from lock_manager.zookeeper.request import AcquireResult, JoinedQueue, RequestedQueue
from lock_manager.zookeeper.responses import Failure, failure_in
from lock_manager.zookeeper.session import SESSION_GONE, Session
from lock_manager.zookeeper.znodes import Mode, contender_at

HOLD = "a" * 32


def contenders(count: int) -> HoldContenders:
    """Return the contenders of a hold in ``count`` queues. The session does not connect."""
    queues = []
    for number in range(count):
        queue = RequestedQueue(f"key{number}", f"/locks/{number}", Mode.EXCLUSIVE, "s3://lake/t", {})
        path = f"{queue.path}/{HOLD}__lock__0000000000"
        queues.append(JoinedQueue(queue, path, contender_at(path), 7))
    return HoldContenders(Session(LockSettings(zk_hosts="127.0.0.1:1")), AcquireResult(HOLD, tuple(queues), 1, {}))


@pytest.mark.parametrize("outcome", [[True, True], [True, True, "/locks/0/intents/x"], [True, True, True]])
def test_a_hold_is_valid_if_all_checks_succeed(outcome: list[object]) -> None:
    for with_operation in (False, True):
        check = contenders(2).interpret(outcome, with_operation=with_operation)
        assert check == CheckResult()


@pytest.mark.parametrize(
    "outcome",
    [
        [NoNodeError(), RuntimeInconsistency(), RuntimeInconsistency()],
        [RolledBackError(), NoNodeError(), RuntimeInconsistency()],
    ],
)
def test_a_missing_contender_means_that_the_hold_is_lost(outcome: list[object]) -> None:
    for with_operation in (False, True):
        check = contenders(2).interpret(outcome, with_operation=with_operation)
        assert check == CheckResult(lost="its contender was gone: another client removed it, as `sluice break` does")


@pytest.mark.parametrize("error", [NodeExistsError(), NoNodeError(), BadVersionError()], ids=repr)
def test_a_failed_operation_does_not_lose_the_hold(error: Exception) -> None:
    check = contenders(2).interpret([RolledBackError(), RolledBackError(), error], with_operation=True)
    assert check == CheckResult(operation_error=error)


@pytest.mark.parametrize(
    ("outcome", "with_operation"),
    [
        ([NoAuthError(), RuntimeInconsistency()], False),
        ([NoAuthError(), RuntimeInconsistency(), RuntimeInconsistency()], True),
        ([RolledBackError(), NoAuthError(), RuntimeInconsistency()], True),
        ([RolledBackError(), RolledBackError(), NoAuthError()], True),
        # Without an operation, the transaction may also write the contenders' data. Here this write is refused.
        ([RolledBackError(), RolledBackError(), NoAuthError(), RuntimeInconsistency()], False),
    ],
)
def test_a_refusal_names_the_refused_request(outcome: list[object], *, with_operation: bool) -> None:
    check = contenders(2).interpret(outcome, with_operation=with_operation)
    assert check == CheckResult(refusal="NoAuthError")


def test_an_error_without_an_operation_is_a_refusal() -> None:
    check = contenders(1).interpret([RolledBackError(), BadVersionError()])
    assert check == CheckResult(refusal="BadVersionError")


@pytest.mark.parametrize("error", SESSION_GONE)
def test_an_ended_session_means_that_the_hold_is_lost(error: type[Exception]) -> None:
    assert contenders(1).interpret(error(), with_operation=True).lost == SESSION_ENDED


def test_the_failure_is_the_error_that_is_no_rollback() -> None:
    error = NoNodeError()
    assert failure_in([True, "/created", True]) is None
    assert failure_in([RolledBackError(), error, RuntimeInconsistency()]) == Failure(1, error)


def test_a_rollback_without_another_error_is_a_failure() -> None:
    rolled_back = RolledBackError()
    assert failure_in([rolled_back, RuntimeInconsistency()]) == Failure(0, rolled_back)
    assert contenders(2).interpret([rolled_back, RuntimeInconsistency()]).refusal == "RolledBackError"
