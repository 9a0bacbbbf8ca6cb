"""Evaluate policies as IAM does. Elements and operators that our policies do not use raise an error.

Within one account, an explicit Deny wins, then one Allow suffices, and the default is Deny. Sources: "Policy
evaluation logic" and "IAM JSON policy elements: Condition operators" (IAM User Guide). If the request lacks a key, a
positive operator does not match, and a negated operator matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Statement = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """A request to AWS.

    Attributes:
        principal: ARN of the role or user.
        action: Action, such as ``s3:PutObject``.
        resource: ARN of the resource.
        context: Values of the condition keys that the request has.

    """

    principal: str
    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)


def is_allowed(request: Request, statements: Sequence[Statement]) -> bool:
    """Return whether the statements of all applicable policies allow the request."""
    effects = [statement["Effect"] for statement in statements if _applies(request, statement)]
    return "Deny" not in effects and "Allow" in effects


def _applies(request: Request, statement: Statement) -> bool:
    unsupported_elements = set(statement) - {"Sid", "Effect", "Principal", "Action", "Resource", "Condition"}
    assert not unsupported_elements, f"this evaluator does not support {sorted(unsupported_elements)}"
    return (
        _is_principal(request.principal, statement.get("Principal", "*"))
        and any(_matches(action.lower(), request.action.lower()) for action in _as_list(statement["Action"]))
        and any(_matches(resource, request.resource) for resource in _as_list(statement["Resource"]))
        and _conditions_hold(statement.get("Condition", {}), {**request.context, "aws:PrincipalArn": request.principal})
    )


def _is_principal(principal: str, element: Any) -> bool:
    return element == "*" or principal in _as_list(element["AWS"])


def _conditions_hold(conditions: Mapping[str, Mapping[str, Any]], context: Mapping[str, str]) -> bool:
    # Key names are case-insensitive.
    lower_context = {key.lower(): value for key, value in context.items()}
    for operator, keys in conditions.items():
        for key, values in keys.items():
            if not _OPERATORS[operator](lower_context.get(key.lower()), [str(value) for value in _as_list(values)]):
                return False
    return True


def _string_like(value: str | None, patterns: list[str]) -> bool:
    return value is not None and any(_matches(pattern, value) for pattern in patterns)


_OPERATORS: Mapping[str, Callable[[str | None, list[str]], bool]] = {
    "Null": lambda value, expected: expected == ["true" if value is None else "false"],
    "Bool": lambda value, expected: value is not None and value.lower() in [text.lower() for text in expected],
    "StringEquals": lambda value, expected: value is not None and value in expected,
    "StringLike": _string_like,
    "ArnEquals": _string_like,
    "ArnNotEquals": lambda value, patterns: not _string_like(value, patterns),
}


def _matches(pattern: str, value: str) -> bool:
    expression = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern)
    return re.fullmatch(expression, value, re.DOTALL) is not None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# -- requests to S3: "Enforce conditional writes on Amazon S3 buckets" (S3 User Guide)


def s3_put(principal: str, resource: str, *, conditional: bool, creates: bool = True) -> Request:
    """Return a PutObject, or a request of a multipart upload.

    Args:
        principal: ARN of the role or user.
        resource: ARN of the object.
        conditional: Whether the request has ``If-None-Match: *``.
        creates: False for requests of a multipart upload before its completion.

    """
    context = {"s3:ObjectCreationOperation": "true" if creates else "false", "aws:SecureTransport": "true"}
    if conditional:
        context["s3:if-none-match"] = "*"
    return Request(principal, "s3:PutObject", resource, context)


def s3(principal: str, action: str, resource: str, **context: str) -> Request:
    """Return a request for an action of S3, sent over TLS."""
    return Request(principal, f"s3:{action}", resource, {"aws:SecureTransport": "true", **context})
