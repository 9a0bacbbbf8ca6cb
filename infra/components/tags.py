"""Tags with the project and the stack for every resource that supports tags."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pulumi


def tag_everything(tags: Mapping[str, str]) -> None:
    """Add ``tags`` to every AWS resource of the stack that supports tags. A resource's own tags take precedence."""

    def add_tags(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if not args.type_.startswith("aws:") or not _supports_tags(args.resource):
            return None
        props: dict[str, Any] = dict(args.props)
        props["tags"] = {**tags, **(props.get("tags") or {})}
        if "root_block_device" in props:
            # The root volume of a machine is not a separate resource.
            props["root_block_device"] = {**props["root_block_device"], "tags": dict(tags)}
        return pulumi.ResourceTransformationResult(props, args.opts)

    pulumi.runtime.register_stack_transformation(add_tags)


def _supports_tags(resource: pulumi.Resource) -> bool:
    initializer = getattr(resource, "_internal_init", None)
    return initializer is not None and "tags" in inspect.signature(initializer).parameters
