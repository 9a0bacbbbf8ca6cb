"""A rule: a policy of Pulumi, and the Security Hub controls that it checks.

A resource rule checks the inputs of one resource before Pulumi creates it. A stack rule checks all resources after the
program has run: in a preview, and again after all resources exist. A preview does not know some values, and rules skip
these. ``up`` checks the inputs again before it sends a request to AWS. References between resources are known in a
preview through Pulumi's property dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    PolicyConfigSchema,
    PolicyResource,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.proxy import UnknownValueError

#: Matches all resource types of the AWS provider.
EVERYTHING = ("aws:",)


@dataclass(frozen=True)
class Rule:
    """A rule of the policy pack.

    Attributes:
        policy: Policy that Pulumi calls.
        controls: Ids of the AWS Security Hub controls that the rule checks before deployment.

    """

    policy: ResourceValidationPolicy | StackValidationPolicy
    controls: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name in violations."""
        return self.policy.name

    @property
    def why(self) -> str:
        """Requirement in one sentence."""
        return self.policy.description


@dataclass(frozen=True)
class Stack:
    """All resources of a stack.

    Attributes:
        resources: Resources with their known outputs.
        config: Configuration of the rule from ``--policy-pack-config``.

    """

    resources: list[PolicyResource]
    config: Mapping[str, Any] = field(default_factory=dict)

    def of(self, *types: str) -> list[PolicyResource]:
        """Return the resources of these types."""
        return [resource for resource in self.resources if matches(resource.resource_type, types)]

    def referring_to(self, target: PolicyResource, key: str, output: str, *types: str) -> list[PolicyResource]:
        """Return the resources of these types whose input ``key`` is the target's ``output``."""
        return [resource for resource in self.of(*types) if _refers(resource, key, target, output)]


def matches(resource_type: str, types: tuple[str, ...]) -> bool:
    """Return whether a type is one of these, or belongs to a provider among them (``aws:``)."""
    return any(resource_type == name or (name.endswith(":") and resource_type.startswith(name)) for name in types)


def identity(resource: PolicyResource, key: str) -> object:
    """Return a comparable form of an input: the URNs of the resources that it depends on, else its value."""
    dependencies = resource.property_dependencies.get(key)
    return frozenset(dependency.urn for dependency in dependencies) if dependencies else resource.props.get(key)


def _refers(resource: PolicyResource, key: str, target: PolicyResource, output: str) -> bool:
    dependencies = resource.property_dependencies.get(key)
    if dependencies:
        return any(dependency.urn == target.urn for dependency in dependencies)
    value = resource.props.get(key)
    return value is not None and value == target.props.get(output)


def resource_rule(
    name: str,
    why: str,
    types: tuple[str, ...],
    check: Callable[[ResourceValidationArgs], Iterator[str]],
    controls: tuple[str, ...] = (),
) -> Rule:
    """Return a rule that checks each resource by itself.

    Args:
        name: Name of the rule.
        why: Requirement in one sentence.
        types: Types of the resources to check.
        check: Yields one message for each violation of a resource.
        controls: Ids of the AWS Security Hub controls that the rule checks.

    """

    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        if matches(args.resource_type, types):
            with suppress(UnknownValueError):
                for message in check(args):
                    report(message, None)

    return Rule(ResourceValidationPolicy(name, why, validate, EnforcementLevel.MANDATORY), controls)


def stack_rule(
    name: str,
    why: str,
    types: tuple[str, ...],
    check: Callable[[PolicyResource, Stack], Iterator[str]],
    controls: tuple[str, ...] = (),
    config_schema: PolicyConfigSchema | None = None,
) -> Rule:
    """Return a rule that checks each resource together with all others.

    Args:
        name: Name of the rule.
        why: Requirement in one sentence.
        types: Types of the resources to check.
        check: Yields one message for each violation of a resource.
        controls: Ids of the AWS Security Hub controls that the rule checks.
        config_schema: Options that ``--policy-pack-config`` accepts for the rule.

    """

    def validate(args: StackValidationArgs, report: ReportViolation) -> None:
        stack = Stack(args.resources, args.get_config())
        for subject in stack.of(*types):
            with suppress(UnknownValueError):
                for message in check(subject, stack):
                    report(message, subject.urn)

    return Rule(StackValidationPolicy(name, why, validate, EnforcementLevel.MANDATORY, config_schema), controls)
