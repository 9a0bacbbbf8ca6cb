"""The policy pack: stacks of the program pass, and each rule reports the resource that breaks it."""

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
from rules.rule import Rule

from tests.support.graph import CONFIGURATIONS, INFRA, Graph, Resource, graphs
from tests.support.policy_break import Break
from tests.support.policy_breaks import BREAKS
from tests.support.policy_pack import Violation, configure, urn_of, violations

#: Rules about two resources in conflict, which may report either of them.
RULES_ABOUT_PAIRS = ("members-have-ids", "members-have-interfaces", "members-are-spread", "one-role-deletes-logs")
STACK_RULES = {rule.name for rule in RULES if isinstance(rule.policy, StackValidationPolicy)}
STACKS: dict[str, dict[str, Any]] = {
    **CONFIGURATIONS,
    # Some invariants of CONFIGURATIONS do not hold for the following stacks.
    "four nodes": {"nodes": 4},
    "without a commit policy": {"commitPolicy": "off"},
    "with a restore": {"exemptPrincipalArns": ["arn:aws:iam::123456789012:role/restore"]},
    "locks on S3 with a restore": {
        "coordinator": "s3-lease",
        "exemptPrincipalArns": ["arn:aws:iam::123456789012:role/restore"],
    },
}
COMMIT_RULES = {"commits-are-conditional", "only-maintenance-deletes-versions"}
QUEUE_RULES = {"queues-are-changed-conditionally", "queues-are-not-deleted"}


@pytest.fixture(scope="module")
def stacks() -> dict[str, Graph]:
    results = graphs([(INFRA, config) for config in STACKS.values()])
    stacks = {name: result for name, result in zip(STACKS, results, strict=True) if isinstance(result, Graph)}
    assert stacks.keys() == STACKS.keys()
    return stacks


@pytest.fixture(autouse=True)
def _reset_stack_configuration() -> Iterator[None]:
    yield
    pulumi.runtime.set_all_config({})


def broken_rules(stack: Graph, **config: Any) -> set[str]:
    return {violation.rule for violation in violations(RULES, stack.resources, config=config)}


def broken_stack(stacks: dict[str, Graph], change: Break) -> tuple[list[Resource], Resource, list[Violation]]:
    """Return the resources of a stack with a change, the changed resource, and the violations of the change's rule."""
    configure(CONFIGURATIONS[change.stack])
    resources, broken = change.of(stacks[change.stack])
    return resources, broken, violations([rule for rule in RULES if rule.name == change.rule], resources)


@pytest.mark.parametrize("preview", [False, True], ids=["update", "preview"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_stack_of_the_program_keeps_every_rule(stacks: dict[str, Graph], name: str, *, preview: bool) -> None:
    configure(CONFIGURATIONS[name])
    assert violations(RULES, stacks[name].resources, preview=preview) == []


@pytest.mark.parametrize("change", BREAKS, ids=str)
def test_a_rule_reports_the_resource_that_breaks_it(stacks: dict[str, Graph], change: Break) -> None:
    resources, broken, reported = broken_stack(stacks, change)
    assert urn_of(broken) in {violation.urn for violation in reported}
    assert all(violation.message.endswith(".") for violation in reported)
    if change.type is None and change.rule not in RULES_ABOUT_PAIRS:
        # Nothing else is reported, so the message leads to the resource that needs a correction.
        twin = {
            urn_of(resource) for resource in resources if (resource.kind, resource.name) == (broken.kind, change.also)
        }
        assert {violation.urn for violation in reported} <= {urn_of(broken)} | twin


@pytest.mark.parametrize(
    "change", [change for change in BREAKS if change.rule in STACK_RULES and not change.late], ids=str
)
def test_a_preview_reports_violations_of_stack_rules(stacks: dict[str, Graph], change: Break) -> None:
    resources, broken = change.of(stacks[change.stack])
    reported = violations([rule for rule in RULES if rule.name == change.rule], resources, preview=True)
    assert urn_of(broken) in {violation.urn for violation in reported}


def test_each_rule_has_a_stack_that_breaks_it() -> None:
    assert {change.rule for change in BREAKS} == {rule.name for rule in RULES}


def test_names_of_rules_are_unique() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)


def test_the_pack_contains_all_modules_with_rules() -> None:
    modules = [importlib.import_module(f"rules.{module.name}") for module in pkgutil.iter_modules(rules.__path__)]
    assert {rule for module in modules for rule in vars(module).values() if isinstance(rule, Rule)} == set(RULES)


def test_the_pack_has_all_rules_and_all_are_mandatory(monkeypatch: pytest.MonkeyPatch) -> None:
    packs = []
    monkeypatch.setattr(pulumi_policy, "PolicyPack", lambda name, policies, **_: packs.append((name, policies)))
    runpy.run_path(str(INFRA / "policy" / "__main__.py"), run_name="__main__")
    assert packs == [("sluice", [rule.policy for rule in RULES])]
    assert {rule.policy.enforcement_level for rule in RULES} == {EnforcementLevel.MANDATORY}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("disposable", {"resources-are-protected", "buckets-are-not-emptied"}),
        ("replacing node 2", {"machines-are-replaced-on-purpose"}),
        ("KMS and prefixes", COMMIT_RULES),
        ("without a commit policy", COMMIT_RULES),
        ("with a restore", COMMIT_RULES),
        ("locks on S3 with a restore", COMMIT_RULES | QUEUE_RULES),
    ],
)
def test_only_the_configuration_permits_an_exception(stacks: dict[str, Graph], name: str, expected: set[str]) -> None:
    assert broken_rules(stacks[name]) == expected, "the rules permit it without the configuration"
    configure(STACKS[name])
    assert broken_rules(stacks[name]) == set()


def test_a_policy_for_prefixes_must_match_the_configuration(stacks: dict[str, Graph]) -> None:
    configure(STACKS["KMS and prefixes"] | {"tablePrefixes": ["silver", "gold"]})
    assert broken_rules(stacks["KMS and prefixes"]) == COMMIT_RULES


def test_an_even_ensemble_is_permitted_only_while_it_grows(stacks: dict[str, Graph]) -> None:
    assert broken_rules(stacks["four nodes"]) == {"odd-ensemble"}
    assert broken_rules(stacks["four nodes"], growing=True) == set()


def test_two_machines_are_not_replaced_at_the_same_time(stacks: dict[str, Graph]) -> None:
    configure(STACKS["replacing node 2"])
    second_replacement = Break(
        "machines-are-replaced-on-purpose", "Instance", "zookeeper-1", options={"ignore_changes": None}
    )
    resources, _ = second_replacement.of(stacks["replacing node 2"])
    reported = {(violation.rule, violation.urn.rpartition(":")[2]) for violation in violations(RULES, resources)}
    assert reported == {("machines-are-replaced-on-purpose", f"zookeeper-{node}") for node in (1, 2)}
