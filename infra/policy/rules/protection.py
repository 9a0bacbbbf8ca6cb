"""Protection against deletion of data and of addresses that clients use."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import ResourceValidationArgs

from . import stack_config
from .compute import VOLUME
from .groups import INTERFACE
from .rule import Rule, resource_rule
from .secrets import KEY
from .storage import BUCKET


def _check_protection(args: ResourceValidationArgs) -> Iterator[str]:
    if stack_config.protected() and not args.opts.protect:
        yield "The resource is not protected, and the stack's configuration does not have protect: false."


def _check_force_destroy(args: ResourceValidationArgs) -> Iterator[str]:
    if stack_config.protected() and args.props.get("forceDestroy"):
        yield "forceDestroy is set: a deletion would delete all objects of the bucket."


RULES: tuple[Rule, ...] = (
    resource_rule(
        "protected",
        "Pulumi refuses to delete buckets, volumes, keys and interfaces unless the stack has protect: false.",
        (BUCKET, VOLUME, KEY, INTERFACE),
        _check_protection,
        ("KMS.3",),
    ),
    resource_rule(
        "buckets-are-not-emptied",
        "AWS refuses to delete buckets with objects unless the stack has protect: false.",
        (BUCKET,),
        _check_force_destroy,
    ),
)
