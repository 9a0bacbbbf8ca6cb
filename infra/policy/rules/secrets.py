"""Secrets, KMS keys and parameters: keys only in Secrets Manager, recoverable deletions, parameters below one path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pulumi_policy import ResourceValidationArgs

from .documents import allow_statements
from .rule import EVERYTHING, resource_rule

SECRET = "aws:secretsmanager/secret:Secret"  # noqa: S105
SECRET_VERSION = "aws:secretsmanager/secretVersion:SecretVersion"  # noqa: S105
SECRET_POLICY = "aws:secretsmanager/secretPolicy:SecretPolicy"  # noqa: S105
KEY = "aws:kms/key:Key"
PARAMETER = "aws:ssm/parameter:Parameter"

_KEY_PATTERN = re.compile(r"PRIVATE KEY-----|\b(AKIA|ASIA)[A-Z0-9]{16}\b")
_PARAMETER_NAME = re.compile(r"/sluice-[\w.-]+/zookeeper/\S+")
_RECOVERY_DAYS = 7
_WINDOW_DAYS = 30


@resource_rule(EVERYTHING)
def keys_are_in_secrets(args: ResourceValidationArgs) -> Iterator[str]:
    """Private keys and access keys are only in Secrets Manager, not in user data, parameters or tags."""
    if args.resource_type != SECRET_VERSION:
        for key in args.props:
            if any(_KEY_PATTERN.search(text) for text in _texts(args.props[key])):
                yield f"{key} contains a private key or an access key: store keys in Secrets Manager."


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key in value:
            yield from _texts(value[key])
    elif isinstance(value, Sequence):
        for element in value:
            yield from _texts(element)


@resource_rule(SECRET)
def deleted_secrets_are_recoverable(args: ResourceValidationArgs) -> Iterator[str]:
    """Deleted secrets can be restored for a week."""
    days = args.props.get("recoveryWindowInDays")
    if days is not None and days < _RECOVERY_DAYS:
        yield f"A deleted secret is recoverable for {days:.0f} days only: set recoveryWindowInDays to {_RECOVERY_DAYS}."


@resource_rule(SECRET, SECRET_POLICY, KEY, controls=("KMS.5",))
def policies_name_principals(args: ResourceValidationArgs) -> Iterator[str]:
    """Policies of secrets and keys name the principals that they allow."""
    if any(
        statement.is_for_everybody or statement.inverted for statement in allow_statements(args.props.get("policy"))
    ):
        yield "A statement allows every principal, or has NotPrincipal, NotAction or NotResource: name the principals."


@resource_rule(KEY, controls=("KMS.4",))
def keys_are_rotated(args: ResourceValidationArgs) -> Iterator[str]:
    """KMS rotates its keys."""
    if args.props.get("enableKeyRotation") is not True:
        yield "The key is not rotated: set enableKeyRotation."


@resource_rule(KEY, controls=("KMS.3",))
def deleted_keys_are_recoverable(args: ResourceValidationArgs) -> Iterator[str]:
    """Deleted keys can be restored for a month."""
    days = args.props.get("deletionWindowInDays")
    if days is not None and days < _WINDOW_DAYS:
        yield f"AWS deletes the key {days:.0f} days after a request: set deletionWindowInDays to {_WINDOW_DAYS}."


@resource_rule(PARAMETER)
def parameter_names_belong_to_the_stack(args: ResourceValidationArgs) -> Iterator[str]:
    """Parameter names are below /sluice-STACK/zookeeper/."""
    name = args.props.get("name")
    if not isinstance(name, str) or not _PARAMETER_NAME.fullmatch(name):
        yield f"The name {name!r} is not below /sluice-STACK/zookeeper/: IAM policies of roles allow only that path."
