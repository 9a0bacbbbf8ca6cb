"""Roles and their policies: least privilege, and named principals that may assume a role."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import ResourceValidationArgs

from .documents import Statement, allow_statements
from .rule import resource_rule

ROLE = "aws:iam/role:Role"
POLICY = "aws:iam/policy:Policy"
INLINE = ("aws:iam/rolePolicy:RolePolicy", "aws:iam/groupPolicy:GroupPolicy", "aws:iam/userPolicy:UserPolicy")
ATTACHMENT = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
USER_RESOURCES = (
    "aws:iam/user:User",
    "aws:iam/accessKey:AccessKey",
    "aws:iam/userLoginProfile:UserLoginProfile",
    "aws:iam/userPolicyAttachment:UserPolicyAttachment",
)
DOCUMENTS = (POLICY, *INLINE, ROLE)

_DECRYPTION = ("kms:Decrypt", "kms:ReEncryptFrom")
_DATA_SERVICES = ("s3:", "secretsmanager:", "kms:", "iam:", "sts:", "dynamodb:")
#: Services that send no source account or ARN when they assume a role.
_WITHOUT_SOURCE = ("ec2.",)
_SOURCE_KEYS = ("aws:sourceaccount", "aws:sourcearn", "aws:sourceorgid")


def _allow_statements(args: ResourceValidationArgs) -> Iterator[Statement]:
    yield from allow_statements(args.props.get("policy"))
    for inline in args.props.get("inlinePolicies") or ():
        yield from allow_statements(inline.get("policy"))


@resource_rule(*DOCUMENTS, controls=("IAM.1",))
def no_administrators(args: ResourceValidationArgs) -> Iterator[str]:
    """No policy allows every action on every resource."""
    if any("*" in statement.actions and "*" in statement.resources for statement in _allow_statements(args)):
        yield "A statement allows every action on every resource: name the actions and resources that are needed."


@resource_rule(*DOCUMENTS, controls=("IAM.21",))
def actions_are_named(args: ResourceValidationArgs) -> Iterator[str]:
    """No policy allows all actions of a service."""
    for statement in _allow_statements(args):
        for action in statement.actions:
            if action == "*" or action.endswith(":*"):
                yield f"A statement allows {action}: name the actions that are needed."


@resource_rule(*DOCUMENTS)
def no_inverted_elements(args: ResourceValidationArgs) -> Iterator[str]:
    """No Allow statement has NotAction, NotResource or NotPrincipal, which allow everything else."""
    for statement in _allow_statements(args):
        if statement.inverted:
            yield f"A statement allows everything except the values of {', '.join(statement.inverted)}."


@resource_rule(*DOCUMENTS, controls=("KMS.1", "KMS.2"))
def keys_are_named(args: ResourceValidationArgs) -> Iterator[str]:
    """No policy allows decryption with every key."""
    for statement in _allow_statements(args):
        every_key = any(arn == "*" or arn.endswith((":key/*", ":alias/*")) for arn in statement.resources)
        if every_key and any(statement.covers_action(action) for action in _DECRYPTION):
            yield "A statement allows decryption with every key: name the key."


@resource_rule(*DOCUMENTS)
def data_resources_are_named(args: ResourceValidationArgs) -> Iterator[str]:
    """Statements that allow access to data, secrets, keys or roles name the resources."""
    for statement in _allow_statements(args):
        for action in statement.actions:
            if action.lower().startswith(_DATA_SERVICES) and "*" in statement.resources:
                yield f"A statement allows {action} on every resource: name the resources."


@resource_rule(ROLE)
def trust_is_named(args: ResourceValidationArgs) -> Iterator[str]:
    """Only named principals may assume a role, and services only for this account or organization."""
    for statement in allow_statements(args.props.get("assumeRolePolicy")):
        if statement.is_for_everybody or statement.inverted:
            yield "Any principal may assume the role: name the principals."
        for kind, principal in statement.principals:
            has_source_condition = any(key in _SOURCE_KEYS for _, key in statement.conditions)
            if kind == "Service" and not principal.startswith(_WITHOUT_SOURCE) and not has_source_condition:
                yield f"{principal} may assume the role for any account: add a condition on aws:SourceAccount."


@resource_rule(ROLE, ATTACHMENT)
def no_aws_managed_policies(args: ResourceValidationArgs) -> Iterator[str]:
    """Roles have no policies that AWS manages."""
    for arn in (args.props.get("policyArn"), *(args.props.get("managedPolicyArns") or ())):
        if arn and ":iam::aws:policy/" in arn:
            yield f"{arn} is managed by AWS, which can change it: use a policy of this stack with fewer permissions."


@resource_rule(*USER_RESOURCES, controls=("IAM.2", "IAM.3"))
def roles_only(args: ResourceValidationArgs) -> Iterator[str]:
    """The stack has neither users nor access keys."""
    yield f"{args.resource_type.rpartition(':')[2]} is for users or permanent keys: use roles."
