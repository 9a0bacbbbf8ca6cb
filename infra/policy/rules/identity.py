"""Roles and their policies: least privilege, and named principals that may assume a role."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import ResourceValidationArgs

from .documents import Statement, allowed
from .rule import Rule, resource_rule

ROLE = "aws:iam/role:Role"
POLICY = "aws:iam/policy:Policy"
INLINE = ("aws:iam/rolePolicy:RolePolicy", "aws:iam/groupPolicy:GroupPolicy", "aws:iam/userPolicy:UserPolicy")
ATTACHMENT = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
PEOPLE = (
    "aws:iam/user:User",
    "aws:iam/accessKey:AccessKey",
    "aws:iam/userLoginProfile:UserLoginProfile",
    "aws:iam/userPolicyAttachment:UserPolicyAttachment",
)
DOCUMENTS = (POLICY, *INLINE, ROLE)

_DECRYPTION = ("kms:Decrypt", "kms:ReEncryptFrom")
_DATA = ("s3:", "secretsmanager:", "kms:", "iam:", "sts:", "dynamodb:")
#: Services that send no source account or ARN when they assume a role.
_WITHOUT_SOURCE = ("ec2.",)
_SOURCES = ("aws:sourceaccount", "aws:sourcearn", "aws:sourceorgid")


def _allowed(args: ResourceValidationArgs) -> Iterator[Statement]:
    yield from allowed(args.props.get("policy"))
    for inline in args.props.get("inlinePolicies") or ():
        yield from allowed(inline.get("policy"))


def _check_administration(args: ResourceValidationArgs) -> Iterator[str]:
    if any("*" in statement.actions and "*" in statement.resources for statement in _allowed(args)):
        yield "A statement allows everything on everything."


def _check_actions(args: ResourceValidationArgs) -> Iterator[str]:
    for statement in _allowed(args):
        for action in statement.actions:
            if action == "*" or action.endswith(":*"):
                yield f"A statement allows {action}: name the actions that are needed."


def _check_inversion(args: ResourceValidationArgs) -> Iterator[str]:
    for statement in _allowed(args):
        if statement.inverted:
            yield f"A statement allows everything except the elements that it names ({', '.join(statement.inverted)})."


def _check_decryption(args: ResourceValidationArgs) -> Iterator[str]:
    for statement in _allowed(args):
        if any(statement.names_action(action) for action in _DECRYPTION) and _is_every_key(statement):
            yield "A statement allows decryption with every key."


def _is_every_key(statement: Statement) -> bool:
    return any(arn == "*" or arn.endswith((":key/*", ":alias/*")) for arn in statement.resources)


def _check_resources(args: ResourceValidationArgs) -> Iterator[str]:
    for statement in _allowed(args):
        for action in statement.actions:
            if action.lower().startswith(_DATA) and "*" in statement.resources:
                yield f"A statement allows {action} on every resource: name the resources."


def _check_trust(args: ResourceValidationArgs) -> Iterator[str]:
    for statement in allowed(args.props.get("assumeRolePolicy")):
        if statement.is_for_everybody or statement.inverted:
            yield "Any principal may assume the role."
        for kind, service in statement.principals:
            has_source = any(key in _SOURCES for _, key in statement.conditions)
            if kind == "Service" and not service.startswith(_WITHOUT_SOURCE) and not has_source:
                yield f"{service} may assume the role for any account: add a condition on aws:SourceAccount."


def _check_policy_owner(args: ResourceValidationArgs) -> Iterator[str]:
    for arn in (args.props.get("policyArn"), *(args.props.get("managedPolicyArns") or ())):
        if arn and ":iam::aws:policy/" in arn:
            yield f"{arn} is a policy of AWS: AWS can change it, and it allows more than is needed."


def _refuse(args: ResourceValidationArgs) -> Iterator[str]:
    yield f"{args.resource_type.rpartition(':')[2]} is for users or permanent keys: use roles."


RULES: tuple[Rule, ...] = (
    resource_rule("no-administrators", "No policy allows everything.", DOCUMENTS, _check_administration, ("IAM.1",)),
    resource_rule(
        "actions-are-named", "No policy allows all actions of a service.", DOCUMENTS, _check_actions, ("IAM.21",)
    ),
    resource_rule(
        "nothing-by-omission", "No policy allows everything except what it names.", DOCUMENTS, _check_inversion
    ),
    resource_rule(
        "keys-are-named",
        "No policy allows decryption with every key.",
        DOCUMENTS,
        _check_decryption,
        ("KMS.1", "KMS.2"),
    ),
    resource_rule("data-is-named", "Statements about data, keys and roles name them.", DOCUMENTS, _check_resources),
    resource_rule(
        "trust-is-named",
        "Named principals may assume a role, and services only for this account.",
        (ROLE,),
        _check_trust,
    ),
    resource_rule("own-policies", "Roles have only policies of this stack.", (ROLE, ATTACHMENT), _check_policy_owner),
    resource_rule("roles-only", "The stack has neither users nor access keys.", PEOPLE, _refuse, ("IAM.2", "IAM.3")),
)
