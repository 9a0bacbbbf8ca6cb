"""The commit policy: S3 refuses requests that overwrite or delete the version file of a commit.

A bucket counts as a bucket of tables unless ``WITHOUT_TABLES`` names it, so the rules also apply to a renamed bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pulumi_policy import PolicyResource, ResourceValidationArgs

from . import stack_config
from .documents import DENY, Statement, allow_statements, statements
from .identity import POLICY as ROLE_POLICY
from .rule import Stack, resource_rule, stack_rule
from .storage import POLICY, WITHOUT_TABLES

VERSION_FILE = "_delta_log/" + 20 * "?" + ".json"

_UNCONDITIONAL = {("null", "s3:if-none-match"): ("true",), ("bool", "s3:objectcreationoperation"): ("true",)}
#: Condition, as in ``Statement.conditions``, that exempts principals from a Deny statement.
EXEMPTION = ("arnnotequals", "aws:principalarn")


@resource_rule(POLICY)
def commits_are_conditional(args: ResourceValidationArgs) -> Iterator[str]:
    """Buckets of tables refuse unconditional PUTs of version files, for the tables that commitPolicy covers."""
    for file in _undenied_files(args, ("s3:PutObject",), _denies_unconditional):
        yield f"{file} can be overwritten: no statement denies PUTs without If-None-Match."


@resource_rule(POLICY)
def only_maintenance_deletes_versions(args: ResourceValidationArgs) -> Iterator[str]:
    """Only the maintenance role may delete version files of the tables that commitPolicy covers."""
    for file in _undenied_files(args, ("s3:DeleteObject", "s3:DeleteObjectVersion"), _denies_except_maintenance):
        yield f"{file} can be deleted, and then written again, by principals other than the maintenance role."


def _undenied_files(
    args: ResourceValidationArgs, actions: tuple[str, ...], denies: Callable[[Statement], bool]
) -> Iterator[str]:
    """Yield the patterns of version files for which at least one of these actions is not denied.

    ``denies`` returns whether the conditions of a Deny statement are those of the commit policy.
    """
    if args.name in WITHOUT_TABLES or stack_config.commit_policy() == "off":
        return
    denials = [
        statement
        for statement in statements(args.props.get("policy"))
        if statement.effect == DENY and statement.is_for_everybody and not statement.inverted and denies(statement)
    ]
    for file in _version_files(args.props["bucket"]):
        covering = [
            statement for statement in denials if any(arn.endswith(f":::{file}") for arn in statement.resources)
        ]
        if not all(any(statement.covers_action(action) for statement in covering) for action in actions):
            yield file


def _version_files(bucket: str) -> Iterator[str]:
    """Yield the patterns of version files, for tables at the root of the bucket or prefix and for nested tables."""
    prefixes = stack_config.table_prefixes() if stack_config.commit_policy() == "prefixes" else []
    for base in [f"{bucket}/{prefix}" for prefix in prefixes] or [bucket]:
        for folder in ("", "*/"):
            yield f"{base}/{folder}{VERSION_FILE}"


def _denies_unconditional(statement: Statement) -> bool:
    other_conditions = {
        key: values for key, values in statement.conditions.items() if _UNCONDITIONAL.get(key) != values
    }
    exempt = set(other_conditions.pop(EXEMPTION, ()))
    is_complete = all(key in statement.conditions for key in _UNCONDITIONAL)
    return is_complete and not other_conditions and exempt <= set(stack_config.exempt_principals())


def _denies_except_maintenance(statement: Statement) -> bool:
    if set(statement.conditions) != {EXEMPTION}:
        return False
    maintenance_arns = set(statement.conditions[EXEMPTION]) - set(stack_config.exempt_principals())
    return len(maintenance_arns) <= 1 and all(
        ":role/" in arn and "*" not in arn and "?" not in arn for arn in maintenance_arns
    )


@resource_rule(ROLE_POLICY)
def writers_commit_conditionally(args: ResourceValidationArgs) -> Iterator[str]:
    """Policies of roles that write tables deny overwriting a version file, whatever the bucket's policy is."""
    document = args.props.get("policy")
    if any(statement.covers_action("s3:PutObject") for statement in allow_statements(document)):
        denied = [
            resource
            for statement in statements(document)
            if statement.effect == DENY and statement.covers_action("s3:PutObject") and _denies_unconditional(statement)
            for resource in statement.resources
        ]
        for nested in (False, True):
            if not any(resource.endswith("/" + VERSION_FILE) and ("/*/" in resource) is nested for resource in denied):
                location = "in sub-folders" if nested else "at the root"
                yield (
                    f"The policy allows overwriting the version files of tables {location} if the bucket's policy"
                    " does not deny it."
                )


@stack_rule(ROLE_POLICY)
def one_role_deletes_logs(policy: PolicyResource, stack: Stack) -> Iterator[str]:
    """At most one role, the maintenance role, may delete objects of table logs."""
    if _may_delete_logs(policy) and sum(map(_may_delete_logs, stack.of_type(ROLE_POLICY))) > 1:
        yield "More than one policy allows deleting objects of table logs. Only the maintenance policy may."


def _may_delete_logs(policy: PolicyResource) -> bool:
    deletions = [
        statement for statement in statements(policy.props.get("policy")) if statement.covers_action("s3:DeleteObject")
    ]
    return bool(deletions) and not any(
        statement.effect == DENY and any("_delta_log/*" in resource for resource in statement.resources)
        for statement in deletions
    )
