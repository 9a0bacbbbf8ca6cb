"""The graph of resources that the Pulumi program makes, for tests to ask questions of."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
ADDRESSES = [f"10.100.0.{10 + number}" for number in range(1, 8)]
_SECONDS = 600.0

#: Configurations that differ in what is made; every invariant holds for each.
CONFIGURATIONS: Mapping[str, dict[str, Any]] = {
    "as it comes": {},
    "five nodes": {"nodes": 5},
    "NAT": {"egress": "nat"},
    "KMS and prefixes": {"kms": True, "commitPolicy": "prefixes", "tablePrefixes": ["silver", "/gold/daily/"]},
    "existing network": {"vpcId": "vpc-1", "subnetIds": ["s-1", "s-2", "s-3"], "writerSecurityGroupIds": ["sg-9"]},
    "existing bucket": {"existingBucket": "their-lake"},
    "existing ensemble": {"existingZookeeper": "zk-0.zk:2281,zk-1.zk:2281/sluice"},
    "to play with": {"protect": False, "egress": "nat"},
    "replacing node 2": {"replaceNode": 2},
}


@dataclass(frozen=True)
class Resource:
    """A resource as Pulumi's engine is asked for it.

    Attributes:
        kind: its type's last part, such as ``Bucket``.
        name: in the program.
        inputs: by name in camel case; no unknown is among them.
        secret: names of the inputs that are encrypted in Pulumi's state.
        options: those of ``stack_graph.OPTIONS``.

    """

    kind: str
    type: str
    name: str
    inputs: dict[str, Any]
    secret: list[str]
    options: dict[str, Any]

    def document(self, key: str = "policy") -> dict[str, Any]:
        """Return an input that is JSON text."""
        found: dict[str, Any] = json.loads(self.inputs[key])
        return found

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Graph:
    """All resources of a stack, and its outputs."""

    resources: list[Resource]
    outputs: dict[str, Any]

    def all(self, *kinds: str) -> list[Resource]:
        """Return the resources of these kinds; at least one."""
        found = self.some(*kinds)
        assert found, f"no {' or '.join(kinds)} is made"
        return found

    def some(self, *kinds: str) -> list[Resource]:
        """Return the resources of these kinds, which may be none."""
        return [each for each in self.resources if each.kind in kinds]

    def one(self, kind: str, name: str) -> Resource:
        """Return the resource of this kind and name."""
        [found] = [each for each in self.resources if (each.kind, each.name) == (kind, name)]
        return found

    def policies(self) -> Iterator[tuple[Resource, dict[str, Any]]]:
        """Yield each statement of each policy of IAM, of a bucket, of an endpoint, and of trust."""
        for each in self.resources:
            for key in ("policy", "assumeRolePolicy"):
                if isinstance(each.inputs.get(key), str):
                    for statement in each.document(key)["Statement"]:
                        yield each, statement


class ProgramError(AssertionError):
    """The program refused a configuration; its message is what a user sees."""


def graphs(
    runs: list[tuple[Path, dict[str, Any]]], addresses: list[str] = ADDRESSES, *, preview: bool = False
) -> list[Graph | ProgramError]:
    """Run the program of each folder with each configuration; in a preview nothing that AWS would say is known."""
    told = {"addresses": addresses, "preview": preview}
    asked = [{"infra": str(infra), "config": config, **told} for infra, config in runs]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("stack_graph.py"))],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    return [_parsed(found) for found in json.loads(done.stdout)]


def graph(config: dict[str, Any] | None = None, addresses: list[str] = ADDRESSES) -> Graph:
    """Run the program; see ``Pulumi.yaml`` for the configuration.

    Raises:
        ProgramError: it refuses the configuration.

    """
    [found] = graphs([(INFRA, config or {})], addresses)
    if isinstance(found, ProgramError):
        raise found
    return found


def _parsed(found: dict[str, Any]) -> Graph | ProgramError:
    if "error" in found:
        return ProgramError(found["error"])
    return Graph([Resource(each["type"].split(":")[-1], **each) for each in found["resources"]], found["outputs"])
