"""Keys and secrets: keys are in Secrets Manager alone, what is encrypted stays readable, parameters are ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pulumi_policy import ResourceValidationArgs

from .documents import allowed
from .rule import EVERYTHING, Rule, resource_rule

SECRET = "aws:secretsmanager/secret:Secret"  # noqa: S105
SECRET_VERSION = "aws:secretsmanager/secretVersion:SecretVersion"  # noqa: S105
SECRET_POLICY = "aws:secretsmanager/secretPolicy:SecretPolicy"  # noqa: S105
KEY = "aws:kms/key:Key"
PARAMETER = "aws:ssm/parameter:Parameter"

_KEY_TEXT = re.compile(r"PRIVATE KEY-----|\b(AKIA|ASIA)[A-Z0-9]{16}\b")
_PARAMETER_NAME = re.compile(r"/sluice-[\w.-]+/zookeeper/\S+")
_DAYS = 7
_LONGEST = 30


def _in_secrets_only(args: ResourceValidationArgs) -> Iterator[str]:
    if args.resource_type != SECRET_VERSION:
        for key in args.props:
            if any(_KEY_TEXT.search(text) for text in _texts(args.props[key])):
                yield f"{key} has a key in it, where more than its owner can read it: keys are in Secrets Manager."


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key in value:
            yield from _texts(value[key])
    elif isinstance(value, Sequence):
        for each in value:
            yield from _texts(each)


def _brought_back(args: ResourceValidationArgs) -> Iterator[str]:
    days = args.props.get("recoveryWindowInDays")
    if days is not None and days < _DAYS:
        yield "It cannot be brought back: recoveryWindowInDays is 0."


def _for_nobody_else(args: ResourceValidationArgs) -> Iterator[str]:
    if any(each.is_for_everybody or each.inverted for each in allowed(args.props.get("policy"))):
        yield "Anybody may use it."


def _rotated(args: ResourceValidationArgs) -> Iterator[str]:
    if args.props.get("enableKeyRotation") is not True:
        yield "It is not rotated: set enableKeyRotation."


def _not_deleted(args: ResourceValidationArgs) -> Iterator[str]:
    days = args.props.get("deletionWindowInDays")
    if days is not None and days < _LONGEST:
        yield f"It can be gone after {days:.0f} days, and with it all that it encrypts: {_LONGEST} is what AWS gives."


def _ours(args: ResourceValidationArgs) -> Iterator[str]:
    name = args.props.get("name")
    if not isinstance(name, str) or not _PARAMETER_NAME.fullmatch(name):
        yield f"Its name {name!r} is not below /sluice-STACK/zookeeper/: roles are given parameters by that name."


RULES: tuple[Rule, ...] = (
    resource_rule(
        "keys-are-in-secrets",
        "Private keys and access keys are in Secrets Manager: in no user data, parameter, tag, or anything else.",
        EVERYTHING,
        _in_secrets_only,
    ),
    resource_rule("secrets-come-back", "Secrets can be brought back for a week.", (SECRET,), _brought_back),
    resource_rule(
        "secrets-are-for-somebody",
        "Neither a secret nor a key is for everybody.",
        (SECRET, SECRET_POLICY, KEY),
        _for_nobody_else,
        ("KMS.5",),
    ),
    resource_rule("keys-are-rotated", "KMS rotates its keys.", (KEY,), _rotated, ("KMS.4",)),
    resource_rule("keys-come-back", "A key can be brought back for a month.", (KEY,), _not_deleted, ("KMS.3",)),
    resource_rule("parameters-are-ours", "Parameters have names of this stack.", (PARAMETER,), _ours),
)
