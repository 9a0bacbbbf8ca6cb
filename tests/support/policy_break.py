"""A stack that breaks a rule: the program's own, but for one change."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.graph import Graph, Resource

#: Names in the program of two members, and inputs of an address that keep every other rule.
NODE, TWO = "zookeeper-1", "zookeeper-2"
ADDRESS = {"domain": "vpc", "tags": {"Project": "sluice", "Stack": "test"}}
STATEMENT = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::lake/*"}


@dataclass(frozen=True)
class Break:
    """A change that a rule must not let pass.

    Attributes:
        rule: that has to find it.
        kind, name: of the resource that it has to name.
        inputs: of that resource, instead of its own; a function makes one of what it was, None takes it out.
        options: likewise.
        type: of a resource that is added, under that name and with these inputs.
        without: kind and name of another resource, which is left out.
        also: name of another resource of that kind, which has these inputs too.
        late: whether a preview does not show it.
        stack: whose graph it is.

    """

    rule: str
    kind: str
    name: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    type: str | None = None
    without: tuple[str, str] | None = None
    also: str | None = None
    late: bool = False
    stack: str = "as it comes"

    def __str__(self) -> str:
        return f"{self.rule}: {self.name}: {', '.join([*self.inputs, *self.options, *(self.without or ())])}"

    def of(self, graph: Graph) -> tuple[list[Resource], Resource]:
        """Return the resources of the broken stack, and the one that is to be named."""
        if self.type is not None:
            broken = Resource(self.kind, self.type, self.name, dict(self.inputs), [], dict(self.options))
            return [*graph.resources, broken], broken
        whole = graph.one(self.kind, self.name)
        broken = replace(whole, inputs=_changed(whole.inputs, self.inputs), options=whole.options | self.options)
        kept = [each for each in graph.resources if (each.kind, each.name) != self.without]
        assert (broken, kept) != (whole, graph.resources), "nothing is broken"
        both = [
            replace(each, inputs=_changed(each.inputs, self.inputs))
            if (each.kind, each.name) == (self.kind, self.also)
            else each
            for each in kept
        ]
        return [broken if each is whole else each for each in both], broken


def _changed(inputs: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(inputs)
    for key, change in changes.items():
        found[key] = change(found[key]) if callable(change) else change
    return {key: value for key, value in found.items() if value is not None}


def statement(**changes: Any) -> Callable[[str], str]:
    """Return what adds a statement to a policy document."""

    def added(text: str) -> str:
        found = json.loads(text)
        found["Statement"].append({**STATEMENT, **changes})
        return json.dumps(found)

    return added


def denial(sid: str, **changes: Any) -> Callable[[str], str]:
    """Return what changes a statement of a policy document; None takes an element out."""

    def changed(text: str) -> str:
        found = json.loads(text)
        [one] = [each for each in found["Statement"] if each.get("Sid") == sid]
        one.update(changes)
        for key in [key for key, value in one.items() if value is None]:
            del one[key]
        return json.dumps(found)

    return changed


def trust(**changes: Any) -> str:
    """Return a trust policy."""
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", **changes}]}
    )
