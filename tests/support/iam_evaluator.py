"""Decides on a request as IAM does, for the operators that our policies use; anything else is an error.

Within one account: an explicit Deny of any policy wins, else one Allow is enough, else it is denied. Sources: "Policy
evaluation logic" and "IAM JSON policy elements: Condition operators" (IAM User Guide). A positive operator does not
match a key that the request lacks, a negated one does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Statement = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """What is asked of AWS.

    Attributes:
        principal: ARN of the role or user.
        action: such as ``s3:PutObject``.
        resource: ARN.
        context: condition keys and their values; a key that the request does not have is missing.

    """

    principal: str
    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)


def allowed(request: Request, statements: Sequence[Statement]) -> bool:
    """Tell whether the request is let pass by these statements, of all policies that apply."""
    effects = [each["Effect"] for each in statements if _applies(request, each)]
    return "Deny" not in effects and "Allow" in effects


def _applies(request: Request, statement: Statement) -> bool:
    known = {"Sid", "Effect", "Principal", "Action", "Resource", "Condition"}
    assert set(statement) <= known, f"{sorted(set(statement) - known)} is not known here"
    return (
        _is_principal(request.principal, statement.get("Principal", "*"))
        and any(_like(each.lower(), request.action.lower()) for each in _many(statement["Action"]))
        and any(_like(each, request.resource) for each in _many(statement["Resource"]))
        and _conditions(statement.get("Condition", {}), {**request.context, "aws:PrincipalArn": request.principal})
    )


def _is_principal(principal: str, told: Any) -> bool:
    return told == "*" or principal in _many(told["AWS"])


def _conditions(conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, str]) -> bool:
    # Names of keys have no case.
    found = {key.lower(): value for key, value in context.items()}
    for operator, keys in conditions.items():
        for key, wanted in keys.items():
            if not _OPERATORS[operator](found.get(key.lower()), [str(each) for each in _many(wanted)]):
                return False
    return True


def _null(value: str | None, wanted: list[str]) -> bool:
    return wanted == ["true" if value is None else "false"]


def _bool(value: str | None, wanted: list[str]) -> bool:
    return value is not None and value.lower() in [each.lower() for each in wanted]


def _string_like(value: str | None, wanted: list[str]) -> bool:
    return value is not None and any(_like(each, value) for each in wanted)


_OPERATORS: Mapping[str, Callable[[str | None, list[str]], bool]] = {
    "Null": _null,
    "Bool": _bool,
    "StringEquals": lambda value, wanted: value is not None and value in wanted,
    "StringLike": _string_like,
    "ArnEquals": _string_like,
    "ArnNotEquals": lambda value, wanted: not _string_like(value, wanted),
}


def _like(pattern: str, value: str) -> bool:
    expression = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern)
    return re.fullmatch(expression, value, re.DOTALL) is not None


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# -- what S3 asks IAM for, by request: "Enforce conditional writes on Amazon S3 buckets" (S3 User Guide)


def s3_put(principal: str, resource: str, *, conditional: bool, creates: bool = True) -> Request:
    """PutObject, or a request of a multipart upload.

    Args:
        principal: ARN.
        resource: ARN of the object.
        conditional: whether it has ``If-None-Match: *``.
        creates: false for CreateMultipartUpload, UploadPart and UploadPartCopy; true for PutObject, CopyObject and
            CompleteMultipartUpload.

    """
    context = {"s3:ObjectCreationOperation": "true" if creates else "false", "aws:SecureTransport": "true"}
    if conditional:
        context["s3:if-none-match"] = "*"
    return Request(principal, "s3:PutObject", resource, context)


def s3(principal: str, action: str, resource: str, **context: str) -> Request:
    """Any other request, over TLS."""
    return Request(principal, f"s3:{action}", resource, {"aws:SecureTransport": "true", **context})
