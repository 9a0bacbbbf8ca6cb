"""The ensemble as a whole: each member is one, they are odd in number, and no zone holds a majority."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pulumi_policy import PolicyConfigSchema, PolicyResource

from .compute import ATTACHMENT, INSTANCE
from .groups import INTERFACE
from .rule import Rule, Stack, identity, stack_rule

_NODE = re.compile(r"^SLUICE_NODE=(\d+)$", re.MULTILINE)
_GROWING = "growing"


def _own_id(instance: PolicyResource, stack: Stack) -> Iterator[str]:
    ids = [_id_of(each) for each in stack.of(INSTANCE)]
    own = _id_of(instance)
    if own is None:
        yield "Its user data does not say which member it is (SLUICE_NODE)."
    elif ids.count(own) > 1:
        yield f"It is member {own}, and so is another: both would vote, and log, as one."
    elif own > len(ids):
        yield f"It is member {own} of {len(ids)}: ids are counted from 1."


def _id_of(instance: PolicyResource) -> int | None:
    found = _NODE.search(str(instance.props.get("userData")))
    return int(found[1]) if found else None


def _own_interface(instance: PolicyResource, stack: Stack) -> Iterator[str]:
    key = "primaryNetworkInterface"
    own = identity(instance, key)
    if sum(identity(each, key) == own for each in stack.of(INSTANCE)) > 1:
        yield "It has the interface of another member."


def _own_volumes(attachment: PolicyResource, stack: Stack) -> Iterator[str]:
    own = identity(attachment, "volumeId")
    if sum(identity(each, "volumeId") == own for each in stack.of(ATTACHMENT)) > 1:
        yield "Its volume is attached to another machine, too."


def _odd(instance: PolicyResource, stack: Stack) -> Iterator[str]:
    members = stack.of(INSTANCE)
    if len(members) % 2 == 0 and instance.urn == max(each.urn for each in members) and not stack.config.get(_GROWING):
        yield (
            f"{len(members)} members survive no more losses than {len(members) - 1}. On the way from 3 to 5, or to 7,"
            f" say so in --policy-pack-config: odd-ensemble has {_GROWING}."
        )


def _spread(interface: PolicyResource, stack: Stack) -> Iterator[str]:
    key = "subnetId"
    own = identity(interface, key)
    every = stack.of(INTERFACE)
    here = [each for each in every if identity(each, key) == own]
    if 2 * len(here) > len(every):
        yield f"{len(here)} of {len(every)} members are in its subnet: with its zone the majority is gone."


RULES: tuple[Rule, ...] = (
    stack_rule("members-have-ids", "Members have ids of their own, counted from 1.", (INSTANCE,), _own_id),
    stack_rule("members-have-interfaces", "Members have interfaces of their own.", (INSTANCE,), _own_interface),
    stack_rule("members-have-volumes", "Members have volumes of their own.", (ATTACHMENT,), _own_volumes),
    stack_rule(
        "odd-ensemble",
        "An ensemble has an odd number of members.",
        (INSTANCE,),
        _odd,
        config_schema=PolicyConfigSchema(
            {_GROWING: {"type": "boolean", "default": False, "description": "4 and 6 are steps on the way."}}
        ),
    ),
    stack_rule("members-are-spread", "No subnet holds a majority of the members.", (INTERFACE,), _spread),
)
