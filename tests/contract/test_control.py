"""Negative control of the contract: a coordinator that violates one of its rules fails the test of that rule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from lock_manager import LockTimeoutError
from tests.contract import test_contract as contract
from tests.contract.conftest import LockedTable
from tests.support.memory_coordinator import MemoryCoordinator, Violation

FAILING_TESTS: dict[Violation, Callable[[LockedTable], None]] = {
    Violation.LAST_COME_FIRST_SERVED: contract.test_the_queue_is_fifo_and_tokens_increase,
    Violation.OVERTAKING: contract.test_a_shared_request_waits_behind_an_exclusive_request,
    Violation.CONSTANT_TOKENS: contract.test_the_queue_is_fifo_and_tokens_increase,
    Violation.NO_SHARING: contract.test_shared_holds_coexist_but_exclude_an_exclusive_hold,
    Violation.NO_EXCLUSION: contract.test_shared_holds_coexist_but_exclude_an_exclusive_hold,
    Violation.DEADLINE_RESTARTS: contract.test_the_deadline_covers_the_whole_wait,
    Violation.CONTENDER_REMAINS: contract.test_a_timed_out_or_cancelled_request_leaves_the_queue,
    Violation.CHECK_PASSES: contract.test_a_lost_hold_fails_its_check_and_calls_on_loss,
    Violation.NO_CALLBACK: contract.test_a_lost_hold_fails_its_check_and_calls_on_loss,
    Violation.INTENT_AFTER_LOSS: contract.test_a_lost_hold_fails_its_check_and_calls_on_loss,
    Violation.INTENT_ENDS_WITH_RELEASE: contract.test_the_next_holder_gets_unfinished_intents_only,
    Violation.INTENT_ENDS_WITH_LOSS: contract.test_the_next_holder_gets_unfinished_intents_only,
    Violation.SETTLED_INTENT_REMAINS: contract.test_the_next_holder_gets_unfinished_intents_only,
    Violation.SILENT_RELEASE: contract.test_a_hold_is_released_once_and_the_release_reports_a_loss,
    Violation.SECOND_RELEASE: contract.test_a_hold_is_released_once_and_the_release_reports_a_loss,
    Violation.ID_PER_MANAGER: contract.test_holds_carry_the_id_of_their_ensemble,
    Violation.OFFERS_OVERTAKE: contract.test_a_holder_reads_the_offers_directly_behind_it,
    Violation.ABSENT_MEMBER: contract.test_an_intent_names_only_members_that_wait,
    Violation.FORGOTTEN_OFFER: contract.test_an_offer_may_be_committed_while_an_intent_names_it,
    Violation.DISMISSED_REQUEST_WAITS: contract.test_a_dismissed_request_leaves_the_queue,
}


def test_every_test_of_the_contract_has_a_control() -> None:
    tests = {test for name, test in vars(contract).items() if name.startswith("test_")}
    assert set(FAILING_TESTS.values()) == tests


@pytest.mark.parametrize("violation", Violation, ids=lambda violation: violation.name.lower())
def test_negative_control_a_violated_rule_fails_its_test(violation: Violation) -> None:
    with (
        closing(MemoryCoordinator(violation)) as memory,
        pytest.raises((AssertionError, pytest.fail.Exception, LockTimeoutError)),
    ):
        FAILING_TESTS[violation](LockedTable(memory, patience=2))
