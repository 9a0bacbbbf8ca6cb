"""Run rules of the policy pack on a graph, with the data that Pulumi would pass to them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_policy import (
    PolicyCustomTimeouts,
    PolicyResource,
    PolicyResourceOptions,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
)
from pulumi_policy.proxy import UNKNOWN_STRING_VALUE, unknown_checking_proxy
from rules.rule import Rule

from tests.support.graph import Resource

#: Inputs that name another resource, and the possible kinds of that resource.
REFERENCES = {
    "bucket": ("Bucket",),
    "primaryNetworkInterface": ("NetworkInterface",),
    "referencedSecurityGroupId": ("SecurityGroup", "DefaultSecurityGroup"),
    "securityGroupId": ("SecurityGroup", "DefaultSecurityGroup"),
    "securityGroups": ("SecurityGroup",),
    "subnetId": ("Subnet",),
    "volumeId": ("Volume",),
    "vpcId": ("Vpc",),
}
#: Inputs that contain ARNs. ARNs are unknown in the preview of a new stack.
INPUTS_WITH_ARNS = ("policy", "userData")


@dataclass(frozen=True)
class Violation:
    """A violation that a rule reports for a resource."""

    rule: str
    urn: str
    message: str


def urn_of(resource: Resource) -> str:
    return f"urn:pulumi:test::sluice::{resource.type}::{resource.name}"


def configure(config: dict[str, Any]) -> None:
    """Pass the stack's configuration to the rules, as Pulumi does."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
    pulumi.runtime.set_all_config({f"sluice:{key}": text for key, text in texts.items()})


def violations(
    rules: Iterable[Rule], resources: list[Resource], *, preview: bool = False, config: dict[str, Any] | None = None
) -> list[Violation]:
    """Return the violations in an existing stack, or in the preview of a new stack. A preview knows no ids and ARNs."""
    reported_violations: list[Violation] = []
    stack = [_in_stack(resource, resources, preview=preview) for resource in resources]
    props_of = [(resource, _props(resource, resources) if preview else resource.inputs) for resource in resources]
    for rule in rules:
        if isinstance(rule.policy, ResourceValidationPolicy):
            for resource, props in props_of:
                urn = urn_of(resource)
                args = ResourceValidationArgs(
                    resource.type, unknown_checking_proxy(props), urn, resource.name, _options(resource), None, config
                )
                rule.policy.validate(
                    args,
                    lambda text, _, rule=rule, urn=urn: reported_violations.append(Violation(rule.name, urn, text)),
                )
        else:
            rule.policy.validate(
                StackValidationArgs(stack, config),
                lambda text, urn, rule=rule: reported_violations.append(Violation(rule.name, str(urn), text)),
            )
    return reported_violations


def dependencies(resource: Resource, resources: list[Resource]) -> dict[str, list[Resource]]:
    """Return the resources on which each input depends, as Pulumi's engine records them."""
    targets_by_key = {}
    for key, kinds in REFERENCES.items():
        value = str(resource.inputs.get(key))
        targets = [target for target in resources if target.kind in kinds and _is_named(target, value, resource)]
        if key in resource.inputs and targets:
            targets_by_key[key] = targets
    return targets_by_key


def _is_named(target: Resource, value: str, source: Resource) -> bool:
    if target.kind == "Bucket":
        return target.name == value
    if target.kind == "Volume":
        return target.name == source.name
    return f"{target.name}-id'" in f"{value}'"


def outputs(resource: Resource) -> dict[str, str]:
    """Return the outputs that AWS adds to the inputs."""
    return {"id": f"{resource.name}-id"} | ({"bucket": resource.name} if resource.kind == "Bucket" else {})


def _in_stack(resource: Resource, resources: list[Resource], *, preview: bool) -> PolicyResource:
    props = _props(resource, resources) if preview else resource.inputs | outputs(resource)
    policy_resource = _resource(resource, props)
    if preview:
        for key, targets in dependencies(resource, resources).items():
            policy_resource.property_dependencies[key] = [_resource(target, {}) for target in targets]
    return policy_resource


def _props(resource: Resource, resources: list[Resource]) -> dict[str, Any]:
    """Return the inputs in a preview. A preview does not know ids and ARNs of other resources."""
    unknown_inputs = {*dependencies(resource, resources), *INPUTS_WITH_ARNS} & resource.inputs.keys()
    return resource.inputs | dict.fromkeys(unknown_inputs | outputs(resource).keys(), UNKNOWN_STRING_VALUE)


def _resource(resource: Resource, props: dict[str, Any]) -> PolicyResource:
    proxy, urn = unknown_checking_proxy(props), urn_of(resource)
    return PolicyResource(resource.type, proxy, urn, resource.name, _options(resource), None, None, [], {})


def ignored_inputs(resource: Resource) -> list[str]:
    """Return the inputs whose changes a resource ignores, by their names in Pulumi's engine."""
    return [_camel(name) for name in resource.options.get("ignore_changes") or ()]


def _options(resource: Resource) -> PolicyResourceOptions:
    return PolicyResourceOptions(
        protect=bool(resource.options.get("protect")),
        ignore_changes=ignored_inputs(resource),
        delete_before_replace=resource.options.get("delete_before_replace"),
        aliases=[],
        custom_timeouts=PolicyCustomTimeouts(0, 0, 0),
        additional_secret_outputs=[],
    )


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
