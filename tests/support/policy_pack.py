"""The program's graph, as Pulumi shows it to a policy pack."""

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

#: Inputs that name another resource, and of which kind it is.
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
#: Inputs that are made of ARNs, and so are not known in the preview of what is new.
LATE = ("policy", "userData")


@dataclass(frozen=True)
class Violation:
    """What a rule says is wrong, and of which resource."""

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
    """Return what the rules find, in what is made, or in the preview of a stack that is not there yet.

    Args:
        rules: that look.
        resources: of the stack.
        preview: whether what AWS will say is still unknown.
        config: of the rules.

    """
    found: list[Violation] = []
    stack = [_in_stack(each, resources, preview=preview) for each in resources]
    seen = [(each, _props(each, resources) if preview else each.inputs) for each in resources]
    for rule in rules:
        if isinstance(rule.policy, ResourceValidationPolicy):
            for each, props in seen:
                urn = urn_of(each)
                args = ResourceValidationArgs(
                    each.type, unknown_checking_proxy(props), urn, each.name, _options(each), None, config
                )
                rule.policy.validate(
                    args, lambda text, _, rule=rule, urn=urn: found.append(Violation(rule.name, urn, text))
                )
        else:
            rule.policy.validate(
                StackValidationArgs(stack, config),
                lambda text, urn, rule=rule: found.append(Violation(rule.name, str(urn), text)),
            )
    return found


def dependencies(resource: Resource, resources: list[Resource]) -> dict[str, list[Resource]]:
    """Return the resources that each of its inputs is made of, as Pulumi's engine knows it."""
    found = {}
    for key, kinds in REFERENCES.items():
        named = str(resource.inputs.get(key))
        makers = [each for each in resources if each.kind in kinds and _is_named(each, named, resource)]
        if key in resource.inputs and makers:
            found[key] = makers
    return found


def _is_named(target: Resource, value: str, by: Resource) -> bool:
    if target.kind == "Bucket":
        return target.name == value
    if target.kind == "Volume":
        return target.name == by.name
    return f"{target.name}-id'" in f"{value}'"


def outputs(resource: Resource) -> dict[str, str]:
    """Return what AWS says of it, beside its inputs."""
    return {"id": f"{resource.name}-id"} | ({"bucket": resource.name} if resource.kind == "Bucket" else {})


def _in_stack(resource: Resource, resources: list[Resource], *, preview: bool) -> PolicyResource:
    props = _props(resource, resources) if preview else resource.inputs | outputs(resource)
    made = _resource(resource, props)
    if preview:
        for key, makers in dependencies(resource, resources).items():
            made.property_dependencies[key] = [_resource(each, {}) for each in makers]
    return made


def _props(resource: Resource, resources: list[Resource]) -> dict[str, Any]:
    """Return its inputs as they are in a preview: what others will be called is not known."""
    late = {*dependencies(resource, resources), *LATE} & resource.inputs.keys()
    return resource.inputs | dict.fromkeys(late | outputs(resource).keys(), UNKNOWN_STRING_VALUE)


def _resource(resource: Resource, props: dict[str, Any]) -> PolicyResource:
    checked = unknown_checking_proxy(props)
    return PolicyResource(
        resource.type, checked, urn_of(resource), resource.name, _options(resource), None, None, [], {}
    )


def ignored(resource: Resource) -> list[str]:
    """Return the inputs whose changes it ignores, by the names that Pulumi's engine gets."""
    return [_camel(each) for each in resource.options.get("ignore_changes") or ()]


def _options(resource: Resource) -> PolicyResourceOptions:
    return PolicyResourceOptions(
        protect=bool(resource.options.get("protect")),
        ignore_changes=ignored(resource),
        delete_before_replace=resource.options.get("delete_before_replace"),
        aliases=[],
        custom_timeouts=PolicyCustomTimeouts(0, 0, 0),
        additional_secret_outputs=[],
    )


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
