"""Protection against deletion of data and of addresses that clients use."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import ResourceValidationArgs

from . import stack_config
from .compute import VOLUME
from .groups import INTERFACE
from .rule import resource_rule
from .secrets import KEY
from .storage import BUCKET


@resource_rule(BUCKET, VOLUME, KEY, INTERFACE, controls=("KMS.3",))
def resources_are_protected(args: ResourceValidationArgs) -> Iterator[str]:
    """Pulumi refuses to delete buckets, volumes, keys and interfaces unless the stack has protect: false."""
    if stack_config.requires_protection() and not args.opts.protect:
        yield "The resource is not protected: set protect in its options, or protect: false in the configuration."


@resource_rule(BUCKET)
def buckets_are_not_emptied(args: ResourceValidationArgs) -> Iterator[str]:
    """Pulumi empties no bucket in order to delete it, unless the stack has protect: false."""
    if stack_config.requires_protection() and args.props.get("forceDestroy"):
        yield "forceDestroy is set: a deletion would delete all objects of the bucket."
