"""The definition of a rule: a policy of Pulumi, and the Security Hub controls that it checks.

A resource rule checks the inputs of one resource, and a stack rule checks all resources of the stack. Both run in a
preview, which does not know some values: a check ends where it needs one. ``up`` repeats each check with all values: a
resource rule before the request to AWS, a stack rule after all resources exist. In a preview, Pulumi's property
dependencies contain the references between resources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
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
EVERYTHING = "aws:"


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


@dataclass(frozen=True)
class Stack:
    """All resources of a stack.

    Attributes:
        resources: Resources with their known outputs.
        config: Configuration of the rule from ``--policy-pack-config``.

    """

    resources: list[PolicyResource]
    config: Mapping[str, Any]

    def of_type(self, *types: str) -> list[PolicyResource]:
        """Return the resources of these types."""
        return [resource for resource in self.resources if matches(resource.resource_type, types)]

    def referring_to(self, target: PolicyResource, key: str, output: str, resource_type: str) -> list[PolicyResource]:
        """Return the resources of a type whose input ``key`` is the target's ``output``."""
        return [resource for resource in self.of_type(resource_type) if _refers(resource, key, target, output)]


def matches(resource_type: str, types: tuple[str, ...]) -> bool:
    """Return whether a type is one of ``types``, or starts with one that ends in a colon (``aws:``)."""
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
    *types: str, controls: tuple[str, ...] = ()
) -> Callable[[Callable[[ResourceValidationArgs], Iterator[str]]], Rule]:
    """Turn a function that checks one resource of these types into a rule.

    The function yields a message for each violation. Its name is the name of the rule, with hyphens, and its docstring
    is the requirement in one sentence. ``controls`` are the Security Hub controls that it checks.
    """

    def rule(check: Callable[[ResourceValidationArgs], Iterator[str]]) -> Rule:
        def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
            if matches(args.resource_type, types):
                with suppress(UnknownValueError):
                    for message in check(args):
                        report(message, None)

        return Rule(
            ResourceValidationPolicy(*_name_and_requirement(check), validate, EnforcementLevel.MANDATORY), controls
        )

    return rule


def stack_rule(
    *types: str, controls: tuple[str, ...] = (), config_schema: PolicyConfigSchema | None = None
) -> Callable[[Callable[[PolicyResource, Stack], Iterator[str]]], Rule]:
    """Turn a function that checks one resource of these types together with all others into a rule.

    The function yields messages, and its name and docstring are used, as in :func:`resource_rule`.
    ``--policy-pack-config`` accepts the options of ``config_schema``.
    """

    def rule(check: Callable[[PolicyResource, Stack], Iterator[str]]) -> Rule:
        def validate(args: StackValidationArgs, report: ReportViolation) -> None:
            stack = Stack(args.resources, args.get_config())
            for subject in stack.of_type(*types):
                with suppress(UnknownValueError):
                    for message in check(subject, stack):
                        report(message, subject.urn)

        policy = StackValidationPolicy(
            *_name_and_requirement(check), validate, EnforcementLevel.MANDATORY, config_schema
        )
        return Rule(policy, controls)

    return rule


def _name_and_requirement(check: Callable[..., Iterator[str]]) -> tuple[str, str]:
    """Return the name and the requirement of the rule with this check."""
    return check.__name__.replace("_", "-"), check.__doc__ or ""
