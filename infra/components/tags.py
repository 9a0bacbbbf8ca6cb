"""Every resource that can carry tags carries these: whose it is, and of which stack."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pulumi


def tag_everything(tags: Mapping[str, str]) -> None:
    """Have every AWS resource of the stack that can be tagged carry ``tags``, beside those that it has."""

    def tagged(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if not args.type_.startswith("aws:") or not _takes_tags(args.resource):
            return None
        props: dict[str, Any] = dict(args.props)
        props["tags"] = {**tags, **(props.get("tags") or {})}
        if "root_block_device" in props:
            # A volume that comes and goes with its machine has no resource of its own.
            props["root_block_device"] = {**props["root_block_device"], "tags": dict(tags)}
        return pulumi.ResourceTransformationResult(props, args.opts)

    pulumi.runtime.register_stack_transformation(tagged)


def _takes_tags(resource: pulumi.Resource) -> bool:
    found = getattr(resource, "_internal_init", None)
    return found is not None and "tags" in inspect.signature(found).parameters
