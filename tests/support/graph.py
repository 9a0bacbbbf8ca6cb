"""The graph of resources that the Pulumi program creates."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
ADDRESSES = [f"10.100.0.{10 + number}" for number in range(1, 8)]
_TIMEOUT_SECONDS = 600.0

#: Configurations that create different resources. Every invariant holds for each configuration.
CONFIGURATIONS: Mapping[str, dict[str, Any]] = {
    "defaults": {},
    "five nodes": {"nodes": 5},
    "NAT": {"egress": "nat"},
    "KMS and prefixes": {"kms": True, "commitPolicy": "prefixes", "tablePrefixes": ["silver", "/gold/daily/"]},
    "existing network": {"vpcId": "vpc-1", "subnetIds": ["s-1", "s-2", "s-3"], "writerSecurityGroupIds": ["sg-9"]},
    "existing bucket": {"existingBucket": "their-lake"},
    "existing ensemble": {"existingZookeeper": "zk-0.zk:2281,zk-1.zk:2281/sluice"},
    "disposable": {"protect": False, "egress": "nat"},
    "replacing node 2": {"replaceNode": 2},
    "locks on S3": {"coordinator": "s3-lease"},
    "locks on S3, existing bucket": {
        "coordinator": "s3-lease",
        "existingBucket": "their-lake",
        "tablePrefixes": ["silver"],
    },
}


@dataclass(frozen=True)
class Resource:
    """A resource as the program registers it with Pulumi's engine.

    Attributes:
        kind: The last part of the type, such as ``Bucket``.
        type: The type of Pulumi, such as ``aws:s3/bucket:Bucket``.
        name: The name in the program.
        inputs: Inputs by name in camel case, without unknown values.
        options: The options named in ``stack_graph.OPTIONS``, and ``depends_on``.
        secrets: Names of the inputs that Pulumi encrypts in its state.

    """

    kind: str
    type: str
    name: str
    inputs: dict[str, Any]
    options: dict[str, Any]
    secrets: list[str] = field(default_factory=list)

    def document(self, key: str = "policy") -> dict[str, Any]:
        """Return an input that is JSON text."""
        document: dict[str, Any] = json.loads(self.inputs[key])
        return document

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Graph:
    """All resources of a stack, and its outputs."""

    resources: list[Resource]
    outputs: dict[str, Any]

    def all(self, *kinds: str) -> list[Resource]:
        """Return the resources of these kinds; fail if there are none."""
        resources = self.some(*kinds)
        assert resources, f"no {' or '.join(kinds)} in the stack"
        return resources

    def some(self, *kinds: str) -> list[Resource]:
        """Return the resources of these kinds, possibly none."""
        return [resource for resource in self.resources if resource.kind in kinds]

    def one(self, kind: str, name: str) -> Resource:
        """Return the resource of this kind and name."""
        (match,) = [resource for resource in self.some(kind) if resource.name == name]
        return match


class ProgramError(AssertionError):
    """The program refused a configuration. A user sees the same message."""


def graphs(
    runs: list[tuple[Path, dict[str, Any]]], addresses: list[str] = ADDRESSES, *, preview: bool = False
) -> list[Graph | ProgramError]:
    """Run the program of each folder with its configuration. In a preview, no output of AWS is known."""
    environment = {"addresses": addresses, "preview": preview}
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.stack_graph"],
        cwd=ROOT,
        input=json.dumps([{"infra": str(infra), "config": config, **environment} for infra, config in runs]),
        stdout=subprocess.PIPE,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=True,
    )
    return [_parse_result(result) for result in json.loads(process.stdout)]


def graph(config: dict[str, Any] | None = None, addresses: list[str] = ADDRESSES) -> Graph:
    """Run the program once; raise :class:`ProgramError` if it refuses the configuration."""
    (stack,) = graphs([(INFRA, config or {})], addresses)
    if isinstance(stack, ProgramError):
        raise stack
    return stack


def _parse_result(result: dict[str, Any]) -> Graph | ProgramError:
    if "error" in result:
        return ProgramError(result["error"])
    resources = [Resource(resource["type"].split(":")[-1], **resource) for resource in result["resources"]]
    return Graph(resources, result["outputs"])
