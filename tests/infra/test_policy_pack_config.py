"""The policy pack and the stack's configuration: what it permits, and that nothing else does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pulumi
import pytest
from rules import RULES

from tests.support.graph import INFRA, Graph, graphs
from tests.support.policy_breaks import BREAKS
from tests.support.policy_pack import violations

STACKS: dict[str, dict[str, Any]] = {
    "to play with": {"protect": False},
    "replacing": {"replaceNode": 2},
    "growing": {"nodes": 4},
    "below prefixes": {"commitPolicy": "prefixes", "tablePrefixes": ["silver", "/gold/daily/"]},
    "without a commit policy": {"commitPolicy": "off"},
    "with a restore": {"exemptPrincipalArns": ["arn:aws:iam::123456789012:role/restore"]},
}


@pytest.fixture(scope="module")
def stacks() -> dict[str, Graph]:
    found = graphs([(INFRA, config) for config in STACKS.values()])
    return {name: each for name, each in zip(STACKS, found, strict=True) if isinstance(each, Graph)}


@pytest.fixture(autouse=True)
def _configured() -> Iterator[None]:
    yield
    pulumi.runtime.set_all_config({})


def told(config: dict[str, Any]) -> None:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
    pulumi.runtime.set_all_config({f"sluice:{key}": text for key, text in texts.items()})


def broken_rules(stack: Graph, **config: Any) -> set[str]:
    return {each.rule for each in violations(RULES, stack.resources, config=config)}


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("to play with", {"protected", "buckets-are-not-emptied"}),
        ("replacing", {"machines-are-replaced-on-purpose"}),
        ("below prefixes", {"commits-are-conditional", "versions-are-kept"}),
        ("without a commit policy", {"commits-are-conditional", "versions-are-kept"}),
        ("with a restore", {"commits-are-conditional", "versions-are-kept"}),
    ],
)
def test_only_the_configuration_permits_what_it_asks_for(stacks: dict[str, Graph], name: str, rules: set[str]) -> None:
    assert broken_rules(stacks[name]) == rules, "as if the program did so by itself"
    told(STACKS[name])
    assert broken_rules(stacks[name]) == set()


def test_a_policy_for_other_prefixes_than_those_configured_is_refused(stacks: dict[str, Graph]) -> None:
    told(STACKS["below prefixes"] | {"tablePrefixes": ["silver", "gold"]})
    assert broken_rules(stacks["below prefixes"]) == {"commits-are-conditional", "versions-are-kept"}


def test_an_even_ensemble_needs_to_be_on_its_way(stacks: dict[str, Graph]) -> None:
    told(STACKS["growing"])
    assert broken_rules(stacks["growing"]) == {"odd-ensemble"}
    assert broken_rules(stacks["growing"], growing=True) == set()


def test_a_stack_that_is_replaced_wholly_is_refused_although_one_node_may_be(stacks: dict[str, Graph]) -> None:
    told(STACKS["replacing"])
    second = next(each for each in BREAKS if each.rule == "machines-are-replaced-on-purpose")
    stack = stacks["replacing"]
    resources = [
        each if each.kind != second.kind else type(each)(**{**vars(each), "options": {"delete_before_replace": True}})
        for each in stack.resources
    ]
    found = violations(RULES, resources)
    assert {each.rule for each in found} == {"machines-are-replaced-on-purpose"}
    assert len(found) == 3
