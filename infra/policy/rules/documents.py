"""Policy documents of AWS, as the rules read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

ALLOW, DENY = "Allow", "Deny"


@dataclass(frozen=True)
class Statement:
    """One statement, whose elements are lists wherever AWS takes one or many.

    Attributes:
        effect: ``Allow`` or ``Deny``.
        principals: kind and value, such as ``("Service", "ec2.amazonaws.com")``; ``("*", "*")`` for everybody.
        conditions: values by operator and key, both in lower case, as AWS reads them.
        inverted: names of the elements that say what is left out, such as ``NotAction``.

    """

    effect: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    principals: tuple[tuple[str, str], ...]
    conditions: Mapping[tuple[str, str], tuple[str, ...]]
    inverted: tuple[str, ...]

    def names_action(self, action: str) -> bool:
        """Return whether the statement is about this action."""
        return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in self.actions)

    @property
    def is_for_everybody(self) -> bool:
        """Whether its principal is anybody at all."""
        return any(value == "*" for _, value in self.principals)


def statements(document: Any) -> list[Statement]:
    """Return the statements of a document, which is JSON text or what it parses to; none when there is none."""
    if document is None:
        return []
    parsed = json.loads(document) if isinstance(document, str) else document
    found = parsed["Statement"]
    return [_statement(each) for each in ([found] if isinstance(found, Mapping) else found)]


def allowed(document: Any) -> list[Statement]:
    """Return the statements that allow something."""
    return [each for each in statements(document) if each.effect == ALLOW]


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
        inverted=tuple(each for each in raw if each.startswith("Not")),
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
    return tuple(str(each) for each in raw)
