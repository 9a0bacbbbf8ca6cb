"""Invariants of roles and of protection that no rule of the policy pack checks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.support.graph import Graph
from tests.support.graph_invariants.registry import invariant, node_variable


@invariant
def roles_trust_only_services_and_this_account(graph: Graph) -> Iterator[str]:
    for role in graph.some("Role"):
        for statement in role.document("assumeRolePolicy")["Statement"]:
            principals = statement["Principal"].get("AWS", [])
            for principal in [principals] if isinstance(principals, str) else principals:
                if not principal.startswith("arn:aws:iam::123456789012:"):
                    yield f"{role} trusts {principal}"


@invariant
def a_node_reads_only_its_own_secret(graph: Graph) -> Iterator[str]:
    for instance in graph.some("Instance"):
        node = node_variable(instance, "NODE")
        role = graph.one("InstanceProfile", f"zookeeper-{node}").inputs["role"]
        (policy,) = [policy for policy in graph.all("RolePolicy") if policy.inputs["role"].startswith(role)]
        statements = policy.document()["Statement"]
        own_statements = [entry for entry in statements if re.search("secretsmanager:|zoo[.]cfg", str(entry))]
        if [re.split("[:/]", entry["Resource"])[-1] for entry in own_statements] != [f"zookeeper-{node}", "zoo.cfg"]:
            yield f"{policy} allows other resources than the secret and zoo.cfg of node {node}: {own_statements}"
        if f"node-{node}/" not in own_statements[1]["Resource"]:
            yield f"{policy} allows the zoo.cfg of another node: {own_statements[1]['Resource']}"


@invariant
def resources_with_data_are_protected(graph: Graph) -> Iterator[str]:
    """A disposable stack protects no resource. In other stacks, S3 also refuses to delete a bucket with objects."""
    is_disposable = any(bucket.inputs.get("forceDestroy") for bucket in graph.some("Bucket"))
    for resource in graph.resources:
        kind = resource.kind
        holds_data = (
            kind in ("Volume", "NetworkInterface", "Key")
            or (kind.startswith("Bucket") and kind != "BucketObject")
            # The nodes set the value of a parameter whose changes the program ignores.
            or (kind == "Parameter" and resource.options["ignore_changes"])
        )
        if holds_data and bool(resource.options["protect"]) == is_disposable:
            yield f"{resource} is {'protected' if is_disposable else 'not protected'}"
