"""What holds data, or an address that clients know, is not deleted by a mistake."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import ResourceValidationArgs

from . import stack_config
from .compute import VOLUME
from .groups import INTERFACE
from .rule import Rule, resource_rule
from .secrets import KEY
from .storage import BUCKET


def _protected(args: ResourceValidationArgs) -> Iterator[str]:
    if stack_config.protected() and not args.opts.protect:
        yield "It is not protected, and the stack's configuration does not say protect: false."


def _not_emptied(args: ResourceValidationArgs) -> Iterator[str]:
    if stack_config.protected() and args.props.get("forceDestroy"):
        yield "forceDestroy is set: it would be emptied when it is deleted."


RULES: tuple[Rule, ...] = (
    resource_rule(
        "protected",
        "Pulumi refuses to delete buckets, volumes, keys and interfaces, unless the stack says protect: false.",
        (BUCKET, VOLUME, KEY, INTERFACE),
        _protected,
        ("KMS.3",),
    ),
    resource_rule(
        "buckets-are-not-emptied",
        "Buckets with something in them are not deleted, unless the stack says protect: false.",
        (BUCKET,),
        _not_emptied,
    ),
)
