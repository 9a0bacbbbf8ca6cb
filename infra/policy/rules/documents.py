"""A parser for AWS policy documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

ALLOW, DENY = "Allow", "Deny"


@dataclass(frozen=True)
class Statement:
    """A statement of a policy document. An element that can have one value or several in AWS is a tuple here.

    Attributes:
        effect: ``Allow`` or ``Deny``.
        principals: Kind and value, such as ``("Service", "ec2.amazonaws.com")``; ``("*", "*")`` for everybody.
        conditions: Values by operator and key. Both are in lower case, because AWS ignores case.
        inverted: Names of the elements that match everything except their values, such as ``NotAction``.

    """

    effect: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    principals: tuple[tuple[str, str], ...]
    conditions: Mapping[tuple[str, str], tuple[str, ...]]
    inverted: tuple[str, ...]

    def covers_action(self, action: str) -> bool:
        """Return whether the statement's ``Action`` covers this action."""
        return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in self.actions)

    @property
    def is_for_everybody(self) -> bool:
        """Whether the statement applies to every principal."""
        return any(value == "*" for _, value in self.principals)


def statements(document: Any) -> list[Statement]:
    """Return the statements of a document, which is JSON text or parsed JSON; an empty list for None."""
    if document is None:
        return []
    parsed = json.loads(document) if isinstance(document, str) else document
    raw = parsed["Statement"]
    return [_statement(element) for element in ([raw] if isinstance(raw, Mapping) else raw)]


def allow_statements(document: Any) -> list[Statement]:
    """Return the statements with the effect ``Allow``."""
    return [statement for statement in statements(document) if statement.effect == ALLOW]


def _statement(raw: Mapping[str, Any]) -> Statement:
    return Statement(
        effect=raw["Effect"],
        actions=_texts(raw.get("Action")),
        resources=_texts(raw.get("Resource")),
        principals=tuple(_principals(raw.get("Principal"))),
        conditions={
            (operator.lower(), key.lower()): _texts(values)
            for operator, tests in (raw.get("Condition") or {}).items()
            for key, values in tests.items()
        },
        inverted=tuple(name for name in raw if name.startswith("Not")),
    )


def _principals(raw: object) -> Iterator[tuple[str, str]]:
    if isinstance(raw, Mapping):
        for kind, values in raw.items():
            for value in _texts(values):
                yield str(kind), value
    elif raw is not None:
        yield "*", str(raw)


def _texts(raw: Any) -> tuple[str, ...]:
    if raw is None:
        return ()
    if isinstance(raw, str | bool | int):
        return (str(raw).lower() if isinstance(raw, bool) else str(raw),)
    return tuple(str(text) for text in raw)
