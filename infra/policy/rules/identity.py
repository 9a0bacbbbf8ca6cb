"""Roles and their policies: no more than is needed, and assumed by those who are named."""

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
#: Services whose call to assume a role says nothing about a source.
_WITHOUT_SOURCE = ("ec2.",)
_SOURCES = ("aws:sourceaccount", "aws:sourcearn", "aws:sourceorgid")


def _allowed(args: ResourceValidationArgs) -> Iterator[Statement]:
    yield from allowed(args.props.get("policy"))
    for each in args.props.get("inlinePolicies") or ():
        yield from allowed(each.get("policy"))


def _not_everything(args: ResourceValidationArgs) -> Iterator[str]:
    if any("*" in each.actions and "*" in each.resources for each in _allowed(args)):
        yield "A statement allows everything on everything."


def _no_wildcards(args: ResourceValidationArgs) -> Iterator[str]:
    for each in _allowed(args):
        for action in each.actions:
            if action == "*" or action.endswith(":*"):
                yield f"A statement allows {action}: name what is needed."


def _says_what(args: ResourceValidationArgs) -> Iterator[str]:
    for each in _allowed(args):
        if each.inverted:
            yield f"A statement allows all but what it names ({', '.join(each.inverted)})."


def _own_keys(args: ResourceValidationArgs) -> Iterator[str]:
    for each in _allowed(args):
        if any(each.names_action(action) for action in _DECRYPTION) and _is_every_key(each):
            yield "A statement allows to decrypt with every key there is."


def _is_every_key(statement: Statement) -> bool:
    return any(each == "*" or each.endswith((":key/*", ":alias/*")) for each in statement.resources)


def _own_data(args: ResourceValidationArgs) -> Iterator[str]:
    for each in _allowed(args):
        for action in each.actions:
            if action.lower().startswith(_DATA) and "*" in each.resources:
                yield f"A statement allows {action} on every resource: name them."


def _trusts(args: ResourceValidationArgs) -> Iterator[str]:
    for each in allowed(args.props.get("assumeRolePolicy")):
        if each.is_for_everybody or each.inverted:
            yield "Anybody may assume it."
        for kind, service in each.principals:
            named = any(key in _SOURCES for _, key in each.conditions)
            if kind == "Service" and not service.startswith(_WITHOUT_SOURCE) and not named:
                yield f"{service} may assume it for anybody: it has no condition on aws:SourceAccount."


def _own_policies(args: ResourceValidationArgs) -> Iterator[str]:
    for arn in (args.props.get("policyArn"), *(args.props.get("managedPolicyArns") or ())):
        if arn and ":iam::aws:policy/" in arn:
            yield f"{arn} is AWS's to change, and broader than what is needed."


def _nobody(args: ResourceValidationArgs) -> Iterator[str]:
    yield f"{args.resource_type.rpartition(':')[2]} is for people, or for keys that do not end: use roles."


RULES: tuple[Rule, ...] = (
    resource_rule("no-administrators", "No policy allows everything.", DOCUMENTS, _not_everything, ("IAM.1",)),
    resource_rule("actions-are-named", "No policy allows all of a service.", DOCUMENTS, _no_wildcards, ("IAM.21",)),
    resource_rule("nothing-by-omission", "No policy allows all but what it names.", DOCUMENTS, _says_what),
    resource_rule(
        "keys-are-named",
        "No policy allows to decrypt with every key.",
        DOCUMENTS,
        _own_keys,
        ("KMS.1", "KMS.2"),
    ),
    resource_rule("data-is-named", "What is about data, keys and roles names them.", DOCUMENTS, _own_data),
    resource_rule(
        "trust-is-named",
        "Roles are assumed by those whom they name, and by services for this account alone.",
        (ROLE,),
        _trusts,
    ),
    resource_rule("own-policies", "Roles have policies of this stack.", (ROLE, ATTACHMENT), _own_policies),
    resource_rule(
        "roles-only", "There are roles, and neither users nor access keys.", PEOPLE, _nobody, ("IAM.2", "IAM.3")
    ),
)
