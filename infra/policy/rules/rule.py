"""What a rule is: a policy of Pulumi's, and the controls of AWS that it answers.

A rule of resources sees what a resource is to be before it is made. A rule of stacks sees all of them, once the
program has run: in a preview, and again when all is made. In a preview some values are not known yet. A rule passes
over those: what a resource says is looked at again by ``up``, before AWS hears of it, and which resource belongs to
which is told by what Pulumi knows of their dependencies.
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

#: Types that are all of a provider's, when a rule is about them.
EVERYTHING = ("aws:",)


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        policy: what Pulumi calls.
        controls: IDs in AWS Security Hub of what it checks in time.

    """

    policy: ResourceValidationPolicy | StackValidationPolicy
    controls: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it is called in a violation."""
        return self.policy.name

    @property
    def why(self) -> str:
        """What it demands."""
        return self.policy.description


@dataclass(frozen=True)
class Stack:
    """All resources of a stack.

    Attributes:
        resources: with their outputs, as far as they are known.
        config: of the rule, from ``--policy-pack-config``.

    """

    resources: list[PolicyResource]
    config: Mapping[str, Any] = field(default_factory=dict)

    def of(self, *types: str) -> list[PolicyResource]:
        """Return the resources of these types."""
        return [each for each in self.resources if is_of(each.resource_type, types)]

    def about(self, target: PolicyResource, key: str, output: str, *types: str) -> list[PolicyResource]:
        """Return the resources of these types whose input ``key`` is the target's ``output``."""
        return [each for each in self.of(*types) if _refers(each, key, target, output)]


def is_of(resource_type: str, types: tuple[str, ...]) -> bool:
    """Return whether a type is one of these, or of a provider among them."""
    return any(resource_type == each or (each.endswith(":") and resource_type.startswith(each)) for each in types)


def identity(resource: PolicyResource, key: str) -> object:
    """Return what tells whether two resources name the same thing: the resource that it comes from, or the value."""
    makers = resource.property_dependencies.get(key)
    return frozenset(each.urn for each in makers) if makers else resource.props.get(key)


def _refers(resource: PolicyResource, key: str, target: PolicyResource, output: str) -> bool:
    makers = resource.property_dependencies.get(key)
    if makers:
        return any(each.urn == target.urn for each in makers)
    value = resource.props.get(key)
    return value is not None and value == target.props.get(output)


def resource_rule(
    name: str,
    why: str,
    types: tuple[str, ...],
    check: Callable[[ResourceValidationArgs], Iterator[str]],
    controls: tuple[str, ...] = (),
) -> Rule:
    """Return a rule that looks at each resource by itself.

    Args:
        name: of the rule.
        why: what it demands.
        types: of the resources.
        check: yields what is wrong with one.
        controls: see :class:`Rule`.

    """

    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        if is_of(args.resource_type, types):
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
    """Return a rule that looks at each resource in the company of all; the arguments are :func:`resource_rule`'s."""

    def validate(args: StackValidationArgs, report: ReportViolation) -> None:
        stack = Stack(args.resources, args.get_config())
        for subject in stack.of(*types):
            with suppress(UnknownValueError):
                for message in check(subject, stack):
                    report(message, subject.urn)

    return Rule(StackValidationPolicy(name, why, validate, EnforcementLevel.MANDATORY, config_schema), controls)
