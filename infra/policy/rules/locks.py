"""The bucket of the locks on S3: queues are changed conditionally, are not deleted, and have no old versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pulumi_policy import ResourceValidationArgs

from . import stack_config
from .commits import EXEMPTION
from .documents import DENY, statements
from .rule import resource_rule
from .storage import BUCKET, LOCKS, POLICY, VERSIONING

_UNCONDITIONAL = {("null", "s3:if-match"): ("true",), ("null", "s3:if-none-match"): ("true",)}


@resource_rule(POLICY)
def queues_are_changed_conditionally(args: ResourceValidationArgs) -> Iterator[str]:
    """The bucket of the locks refuses unconditional PUTs."""
    if args.name == LOCKS and not _denies(args, ("s3:PutObject",), _UNCONDITIONAL):
        yield "A queue can be overwritten: no statement denies PUTs without If-Match and If-None-Match."


@resource_rule(POLICY)
def queues_are_not_deleted(args: ResourceValidationArgs) -> Iterator[str]:
    """The bucket of the locks refuses deletions."""
    if args.name == LOCKS and not _denies(args, ("s3:DeleteObject", "s3:DeleteObjectVersion"), {}):
        yield "A queue can be deleted, and with it the holds and the unfinished intents of a table."


def _denies(
    args: ResourceValidationArgs, actions: tuple[str, ...], conditions: Mapping[tuple[str, str], tuple[str, ...]]
) -> bool:
    """Return whether a bucket's policy denies actions on all objects, except for exempt principals.

    ``conditions`` are the conditions of such a statement.
    """
    objects = f":::{args.props['bucket']}/*"
    covering = []
    for statement in statements(args.props.get("policy")):
        statement_conditions = dict(statement.conditions)
        exempt = set(statement_conditions.pop(EXEMPTION, ()))
        if (
            statement.effect == DENY
            and statement.is_for_everybody
            and not statement.inverted
            and statement_conditions == conditions
            and exempt <= set(stack_config.exempt_principals())
            and any(arn.endswith(objects) for arn in statement.resources)
        ):
            covering.append(statement)
    return all(any(statement.covers_action(action) for statement in covering) for action in actions)


@resource_rule(VERSIONING, BUCKET)
def queues_have_one_version(args: ResourceValidationArgs) -> Iterator[str]:
    """The bucket of the locks is not versioned."""
    is_enabled = (args.props.get("versioningConfiguration") or {}).get("status") == "Enabled"
    if args.name == LOCKS and (is_enabled or (args.props.get("versioning") or {}).get("enabled")):
        yield "Each change of a lock would keep a version of its queue, and a restored version lacks later holders."
