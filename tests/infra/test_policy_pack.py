"""The policy pack: the program's stacks pass, and each rule finds what breaks it and says where."""

from __future__ import annotations

import importlib
import pkgutil
import runpy
from collections.abc import Iterator
from typing import Any

import pulumi
import pulumi_policy
import pytest
import rules
from pulumi_policy import EnforcementLevel, StackValidationPolicy
from rules import RULES

from tests.support.graph import CONFIGURATIONS, INFRA, Graph, graphs
from tests.support.policy_break import Break
from tests.support.policy_breaks import BREAKS
from tests.support.policy_pack import configure, urn_of, violations

#: Of two resources that do not go together, either may be the wrong one.
AMONG_EQUALS = ("members-have-ids", "members-have-interfaces", "members-are-spread", "one-role-removes-logs")
STACK_RULES = {each.name for each in RULES if isinstance(each.policy, StackValidationPolicy)}


#: Beside those of which every invariant holds.
MORE: dict[str, dict[str, Any]] = {
    "four nodes": {"nodes": 4},
    "without a commit policy": {"commitPolicy": "off"},
    "with a restore": {"exemptPrincipalArns": ["arn:aws:iam::123456789012:role/restore"]},
}
STACKS = {**CONFIGURATIONS, **MORE}


@pytest.fixture(scope="module")
def stacks() -> dict[str, Graph]:
    found = graphs([(INFRA, config) for config in STACKS.values()])
    made = {name: each for name, each in zip(STACKS, found, strict=True) if isinstance(each, Graph)}
    assert made.keys() == STACKS.keys()
    return made


@pytest.fixture(autouse=True)
def _configured() -> Iterator[None]:
    """What a stack's configuration says is of one test only."""
    yield
    pulumi.runtime.set_all_config({})


def broken_rules(stack: Graph, **config: Any) -> set[str]:
    return {each.rule for each in violations(RULES, stack.resources, config=config)}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_stack_of_the_program_keeps_every_rule(stacks: dict[str, Graph], name: str) -> None:
    configure(CONFIGURATIONS[name])
    assert violations(RULES, stacks[name].resources) == []


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_rule_is_broken_in_a_preview_in_which_little_is_known(stacks: dict[str, Graph], name: str) -> None:
    configure(CONFIGURATIONS[name])
    assert violations(RULES, stacks[name].resources, preview=True) == []


@pytest.mark.parametrize("each", BREAKS, ids=str)
def test_a_rule_finds_what_breaks_it(stacks: dict[str, Graph], each: Break) -> None:
    configure(CONFIGURATIONS[each.stack])
    resources, broken = each.of(stacks[each.stack])
    found = violations([rule for rule in RULES if rule.name == each.rule], resources)
    assert urn_of(broken) in {one.urn for one in found}
    assert all(one.message.endswith(".") for one in found)


@pytest.mark.parametrize("each", [one for one in BREAKS if one.rule in STACK_RULES and not one.late], ids=str)
def test_a_preview_shows_which_resources_do_not_belong_together(stacks: dict[str, Graph], each: Break) -> None:
    resources, broken = each.of(stacks[each.stack])
    found = violations([rule for rule in RULES if rule.name == each.rule], resources, preview=True)
    assert urn_of(broken) in {one.urn for one in found}


@pytest.mark.parametrize("each", [one for one in BREAKS if one.type is None], ids=str)
def test_a_break_is_found_in_nothing_else(stacks: dict[str, Graph], each: Break) -> None:
    """So that what a rule says leads to what is to be mended."""
    configure(CONFIGURATIONS[each.stack])
    resources, broken = each.of(stacks[each.stack])
    found = violations([rule for rule in RULES if rule.name == each.rule], resources)
    twin = {urn_of(one) for one in resources if (one.kind, one.name) == (broken.kind, each.also)}
    elsewhere = {one.urn for one in found} - {urn_of(broken)} - twin
    assert elsewhere == set() or each.rule in AMONG_EQUALS


def test_each_rule_has_a_stack_that_breaks_it() -> None:
    assert {each.rule for each in BREAKS} == {each.name for each in RULES}


def test_names_of_rules_are_their_own() -> None:
    names = [each.name for each in RULES]
    assert len(set(names)) == len(names)


def test_all_modules_with_rules_are_in_the_pack() -> None:
    modules = [importlib.import_module(f"rules.{each.name}") for each in pkgutil.iter_modules(rules.__path__)]
    assert {rule.name for module in modules for rule in getattr(module, "RULES", ())} == {each.name for each in RULES}


def test_the_pack_has_all_rules_and_all_are_mandatory(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(pulumi_policy, "PolicyPack", lambda name, policies, **_: made.append((name, policies)))
    runpy.run_path(str(INFRA / "policy" / "__main__.py"), run_name="__main__")
    assert made == [("sluice", [each.policy for each in RULES])]
    assert {each.policy.enforcement_level for each in RULES} == {EnforcementLevel.MANDATORY}


COMMITS = {"commits-are-conditional", "versions-are-kept"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("to play with", {"protected", "buckets-are-not-emptied"}),
        ("replacing node 2", {"machines-are-replaced-on-purpose"}),
        ("KMS and prefixes", COMMITS),
        ("without a commit policy", COMMITS),
        ("with a restore", COMMITS),
    ],
)
def test_only_the_configuration_permits_what_it_asks_for(
    stacks: dict[str, Graph], name: str, expected: set[str]
) -> None:
    assert broken_rules(stacks[name]) == expected, "as if the program did so by itself"
    configure(STACKS[name])
    assert broken_rules(stacks[name]) == set()


def test_a_policy_for_other_prefixes_than_those_configured_is_refused(stacks: dict[str, Graph]) -> None:
    configure(STACKS["KMS and prefixes"] | {"tablePrefixes": ["silver", "gold"]})
    assert broken_rules(stacks["KMS and prefixes"]) == COMMITS


def test_an_even_ensemble_needs_to_be_on_its_way(stacks: dict[str, Graph]) -> None:
    assert broken_rules(stacks["four nodes"]) == {"odd-ensemble"}
    assert broken_rules(stacks["four nodes"], growing=True) == set()


def test_two_machines_are_not_replaced_at_once_although_one_may_be(stacks: dict[str, Graph]) -> None:
    configure(STACKS["replacing node 2"])
    another = Break("machines-are-replaced-on-purpose", "Instance", "zookeeper-1", options={"ignore_changes": None})
    resources, _ = another.of(stacks["replacing node 2"])
    found = {(each.rule, each.urn.rpartition(":")[2]) for each in violations(RULES, resources)}
    assert found == {("machines-are-replaced-on-purpose", f"zookeeper-{node}") for node in (1, 2)}
