"""Negative control of the contract: a coordinator that breaks one of its rules fails the test of that rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import closing
from functools import partial

import pytest

from lock_manager import LockTimeoutError
from tests.contract import test_contract as contract
from tests.support.memory_coordinator import Break, Memory
from tests.support.waiting import eventually

FAILS: dict[Break, Callable[..., None]] = {
    Break.ORDER: contract.test_first_come_is_first_served_and_later_tokens_are_larger,
    Break.OVERTAKING: contract.test_shared_requests_do_not_overtake_an_exclusive_one_that_waits,
    Break.TOKENS: contract.test_first_come_is_first_served_and_later_tokens_are_larger,
    Break.SHARING: contract.test_shared_holders_hold_together_and_never_beside_an_exclusive_one,
    Break.EXCLUSION: contract.test_shared_holders_hold_together_and_never_beside_an_exclusive_one,
    Break.DEADLINE: contract.test_one_deadline_counts_over_all_that_is_ahead,
    Break.LEAVING: contract.test_whoever_gives_up_leaves_nothing_behind,
    Break.CHECK: contract.test_a_hold_that_was_taken_away_is_noticed_and_told,
    Break.TELLING: contract.test_a_hold_that_was_taken_away_is_noticed_and_told,
    Break.INTENDING: contract.test_a_hold_that_was_taken_away_is_noticed_and_told,
    Break.HANDING_ON: contract.test_an_unfinished_intent_is_handed_to_the_next_holder_and_a_settled_one_is_not,
    Break.HANDING_ON_LOST: contract.test_an_unfinished_intent_is_handed_to_the_next_holder_and_a_settled_one_is_not,
    Break.SETTLING: contract.test_an_unfinished_intent_is_handed_to_the_next_holder_and_a_settled_one_is_not,
    Break.RELEASE: contract.test_a_release_tells_whether_the_hold_was_lost_and_comes_once,
    Break.TWICE: contract.test_a_release_tells_whether_the_hold_was_lost_and_comes_once,
    Break.IDENTITY: contract.test_holds_of_one_coordinator_have_its_id,
}


def test_each_test_of_the_contract_has_a_control() -> None:
    tests = {test for name, test in vars(contract).items() if name.startswith("test_")}
    assert set(FAILS.values()) == tests


@pytest.mark.parametrize("broken", Break, ids=lambda broken: broken.name.lower())
def test_a_coordinator_that_breaks_a_rule_is_found(broken: Break, table: str) -> None:
    test = FAILS[broken]
    given = {"eventually": partial(eventually, within=5)} if "eventually" in inspect.signature(test).parameters else {}
    with (
        closing(Memory(broken)) as memory,
        pytest.raises((AssertionError, pytest.fail.Exception, LockTimeoutError)),
    ):
        test(memory, table, **given)
