"""The commit policy: S3 itself refuses a commit that could overwrite another, or vacate a version's name.

A bucket is one of tables unless it is known to be something else, so that a new name does not part it from its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pulumi_policy import PolicyResource, ResourceValidationArgs

from . import stack_config
from .documents import DENY, Statement, allowed, statements
from .identity import POLICY as ROLE_POLICY
from .rule import Rule, Stack, resource_rule, stack_rule
from .storage import POLICY, WITHOUT_TABLES

VERSION_FILE = "_delta_log/" + 20 * "?" + ".json"

_UNCONDITIONAL = {("null", "s3:if-none-match"): ("true",), ("bool", "s3:objectcreationoperation"): ("true",)}
_BUT_FOR = ("arnnotequals", "aws:principalarn")


def _conditional(args: ResourceValidationArgs) -> Iterator[str]:
    for missing in _uncovered(args, ("s3:PutObject",), _denies_unconditional):
        yield f"{missing} can be overwritten: no statement denies PUTs without If-None-Match."


def _kept(args: ResourceValidationArgs) -> Iterator[str]:
    for missing in _uncovered(args, ("s3:DeleteObject", "s3:DeleteObjectVersion"), _denies_but_maintenance):
        yield f"{missing} can be deleted, and then be put anew, by others than the maintenance role."


def _uncovered(
    args: ResourceValidationArgs, actions: tuple[str, ...], denies: Callable[[Statement], bool]
) -> Iterator[str]:
    """Yield the version files about which no statement denies all these actions."""
    if args.name in WITHOUT_TABLES or stack_config.commit_policy() == "off":
        return
    found = [
        each
        for each in statements(args.props.get("policy"))
        if each.effect == DENY and each.is_for_everybody and not each.inverted and denies(each)
    ]
    for file in _version_files(args.props["bucket"]):
        for action in actions:
            if not any(each.names_action(action) and _covers(each, file) for each in found):
                yield file
                break


def _version_files(bucket: str) -> Iterator[str]:
    """Yield the names of version files, of tables at the root of the bucket or of a prefix too."""
    prefixes = stack_config.table_prefixes() if stack_config.commit_policy() == "prefixes" else []
    for base in [f"{bucket}/{prefix}" for prefix in prefixes] or [bucket]:
        for between in ("", "*/"):
            yield f"{base}/{between}{VERSION_FILE}"


def _covers(statement: Statement, file: str) -> bool:
    return any(resource.endswith(f":::{file}") for resource in statement.resources)


def _denies_unconditional(statement: Statement) -> bool:
    others = {key: values for key, values in statement.conditions.items() if _UNCONDITIONAL.get(key) != values}
    exempt = set(others.pop(_BUT_FOR, ()))
    kept = all(key in statement.conditions for key in _UNCONDITIONAL)
    return kept and not others and exempt <= set(stack_config.exempt_principals())


def _denies_but_maintenance(statement: Statement) -> bool:
    if set(statement.conditions) != {_BUT_FOR}:
        return False
    others = set(statement.conditions[_BUT_FOR]) - set(stack_config.exempt_principals())
    return len(others) <= 1 and all(":role/" in each and "*" not in each and "?" not in each for each in others)


def _bound(args: ResourceValidationArgs) -> Iterator[str]:
    document = args.props.get("policy")
    if any(each.names_action("s3:PutObject") for each in allowed(document)):
        denied = [
            resource
            for each in statements(document)
            if each.effect == DENY and each.names_action("s3:PutObject") and _denies_unconditional(each)
            for resource in each.resources
        ]
        for nested in (False, True):
            if not any(each.endswith("/" + VERSION_FILE) and ("/*/" in each) is nested for each in denied):
                where = "below another folder" if nested else "at the root"
                yield f"It may overwrite the version files of tables {where}, in a bucket whose own policy lets it."


def _removes_logs(policy: PolicyResource, stack: Stack) -> Iterator[str]:
    if len([each for each in stack.of(ROLE_POLICY) if _may_remove_logs(each)]) > 1 and _may_remove_logs(policy):
        yield "It may delete what is in a table's log, and another policy may, too: only who maintains it does."


def _may_remove_logs(policy: PolicyResource) -> bool:
    found = [each for each in statements(policy.props.get("policy")) if each.names_action("s3:DeleteObject")]
    kept = [each for each in found if each.effect == DENY and any("_delta_log/*" in one for one in each.resources)]
    return bool(found) and not kept


RULES: tuple[Rule, ...] = (
    resource_rule(
        "commits-are-conditional",
        "The bucket of the tables refuses version files whose PUT would overwrite, where commitPolicy says so.",
        (POLICY,),
        _conditional,
    ),
    resource_rule(
        "versions-are-kept",
        "The bucket of the tables lets nobody but the maintenance role delete version files.",
        (POLICY,),
        _kept,
    ),
    resource_rule(
        "writers-commit-conditionally",
        "Roles that write tables are denied what would overwrite a version, whatever the bucket says.",
        (ROLE_POLICY,),
        _bound,
    ),
    stack_rule(
        "one-role-removes-logs",
        "No more than one role, which maintains, may delete what is in a table's log.",
        (ROLE_POLICY,),
        _removes_logs,
    ),
)
