"""The ensemble as a whole: an odd number of members, distinct ids and resources, and no majority in one subnet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pulumi_policy import PolicyConfigSchema, PolicyResource

from .compute import ATTACHMENT, INSTANCE
from .groups import INTERFACE
from .rule import Stack, identity, stack_rule

_NODE = re.compile(r"^SLUICE_NODE=(\d+)$", re.MULTILINE)
_GROWING = "growing"


@stack_rule(INSTANCE)
def members_have_ids(instance: PolicyResource, stack: Stack) -> Iterator[str]:
    """Members have distinct ids, counted from 1."""
    ids = [_member_id(member) for member in stack.of_type(INSTANCE)]
    member_id = _member_id(instance)
    if member_id is None:
        yield "The user data does not set the member's id (SLUICE_NODE)."
    elif ids.count(member_id) > 1:
        yield f"Two machines have the member id {member_id}: both would vote and log as one member."
    elif member_id > len(ids):
        yield f"The member id is {member_id}, and there are {len(ids)} members: ids are counted from 1."


def _member_id(instance: PolicyResource) -> int | None:
    match = _NODE.search(str(instance.props.get("userData")))
    return int(match[1]) if match else None


@stack_rule(INSTANCE)
def members_have_interfaces(instance: PolicyResource, stack: Stack) -> Iterator[str]:
    """Members have distinct interfaces."""
    if len(_sharing(instance, "primaryNetworkInterface", stack.of_type(INSTANCE))) > 1:
        yield "The machine has the interface of another member."


@stack_rule(ATTACHMENT)
def members_have_volumes(attachment: PolicyResource, stack: Stack) -> Iterator[str]:
    """Members have distinct volumes."""
    if len(_sharing(attachment, "volumeId", stack.of_type(ATTACHMENT))) > 1:
        yield "The volume is also attached to another machine."


def _sharing(resource: PolicyResource, key: str, resources: list[PolicyResource]) -> list[PolicyResource]:
    """Return the resources whose input ``key`` refers to the same resource or value."""
    target = identity(resource, key)
    return [candidate for candidate in resources if identity(candidate, key) == target]


@stack_rule(
    INSTANCE,
    config_schema=PolicyConfigSchema(
        {_GROWING: {"type": "boolean", "default": False, "description": "Allow 4 and 6 members."}}
    ),
)
def odd_ensemble(instance: PolicyResource, stack: Stack) -> Iterator[str]:
    """An ensemble has an odd number of members."""
    members = stack.of_type(INSTANCE)
    # One violation for the whole ensemble, reported for its last machine.
    is_last = instance.urn == max(member.urn for member in members)
    if len(members) % 2 == 0 and is_last and not stack.config.get(_GROWING):
        yield (
            f"{len(members)} members survive no more losses than {len(members) - 1} members. While the ensemble"
            f" grows to 5 or 7 members, set {_GROWING} of odd-ensemble in --policy-pack-config."
        )


@stack_rule(INTERFACE)
def members_are_spread(interface: PolicyResource, stack: Stack) -> Iterator[str]:
    """No subnet holds a majority of the members."""
    interfaces = stack.of_type(INTERFACE)
    neighbours = _sharing(interface, "subnetId", interfaces)
    if 2 * len(neighbours) > len(interfaces):
        yield f"{len(neighbours)} of {len(interfaces)} members are in one subnet: losing its zone loses the majority."
