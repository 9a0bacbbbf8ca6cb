"""A stack of the program with one change that violates a rule of the policy pack."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.graph import Graph, Resource

#: Names of two members.
NODE, NODE_2 = "zookeeper-1", "zookeeper-2"
#: Inputs of an added resource, such as an address, that satisfy all rules except the tested one.
ADDRESS = {"domain": "vpc", "tags": {"Project": "sluice", "Stack": "test"}}
STATEMENT = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::lake/*"}


@dataclass(frozen=True)
class Break:
    """A change of a stack that a rule must report.

    Attributes:
        rule: Name of the rule.
        kind: Kind of the resource that the rule must report.
        name: Name of this resource.
        inputs: Changed inputs of this resource. A function returns the new value for the old one; None removes an
            input.
        options: Changed options of this resource.
        type: If set, a resource of this type is added, with ``kind``, ``name``, ``inputs`` and ``options``. No rule
            reads its kind, so any value does, such as ``X``.
        without: Kind and name of a resource that is removed.
        also: Name of another resource of this kind whose inputs are changed in the same way.
        late: Whether the rule cannot report the violation in a preview.
        stack: Name of the configuration of the stack.

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
    stack: str = "defaults"

    def __str__(self) -> str:
        return f"{self.rule}: {self.name}: {', '.join([*self.inputs, *self.options, *(self.without or ())])}"

    def of(self, graph: Graph) -> tuple[list[Resource], Resource]:
        """Return the resources of the changed stack, and the resource that the rule must report."""
        if self.type is not None:
            added_resource = Resource(self.kind, self.type, self.name, dict(self.inputs), dict(self.options))
            return [*graph.resources, added_resource], added_resource
        original = graph.one(self.kind, self.name)
        changed_resource = replace(
            original, options=original.options | self.options, inputs=self._changed_inputs(original)
        )
        resources = []
        for resource in graph.resources:
            if resource is original:
                resources.append(changed_resource)
            elif (resource.kind, resource.name) == (self.kind, self.also):
                resources.append(replace(resource, inputs=self._changed_inputs(resource)))
            elif (resource.kind, resource.name) != self.without:
                resources.append(resource)
        assert changed_resource != original or len(resources) < len(graph.resources), (
            f"{self} changes nothing in the stack"
        )
        return resources, changed_resource

    def _changed_inputs(self, resource: Resource) -> dict[str, Any]:
        inputs = dict(resource.inputs)
        for key, change in self.inputs.items():
            inputs[key] = change(inputs[key]) if callable(change) else change
        return {key: value for key, value in inputs.items() if value is not None}


def added_statement(**changes: Any) -> dict[str, Callable[[str], str]]:
    """Return changed inputs that add a statement to a policy."""

    def add(text: str) -> str:
        document = json.loads(text)
        document["Statement"].append({**STATEMENT, **changes})
        return json.dumps(document)

    return {"policy": add}


def changed_statement(sid: str, **changes: Any) -> dict[str, Callable[[str], str]]:
    """Return changed inputs that replace elements in a statement of a policy; None removes an element."""

    def change(text: str) -> str:
        document = json.loads(text)
        statements = document["Statement"]
        (index,) = [index for index, entry in enumerate(statements) if entry.get("Sid") == sid]
        elements = {**statements[index], **changes}
        statements[index] = {key: value for key, value in elements.items() if value is not None}
        return json.dumps(document)

    return {"policy": change}


def trust(**changes: Any) -> str:
    """Return a trust policy with one statement."""
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", **changes}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})
