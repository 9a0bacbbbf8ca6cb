"""Invariants of roles and of protection that no rule of the policy pack checks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.support.graph import Graph, Resource
from tests.support.graph_invariants.registry import invariant, node_variable


@invariant
def roles_are_for_services_and_for_this_account(graph: Graph) -> Iterator[str]:
    for each in graph.some("Role"):
        for statement in each.document("assumeRolePolicy")["Statement"]:
            principals = statement["Principal"].get("AWS", [])
            for principal in [principals] if isinstance(principals, str) else principals:
                if not principal.startswith("arn:aws:iam::123456789012:"):
                    yield f"{each}: {principal}"


@invariant
def a_node_reads_its_own_secret_alone(graph: Graph) -> Iterator[str]:
    instances = graph.some("Instance")
    for instance in instances:
        node = node_variable(instance, "NODE")
        profile = graph.one("InstanceProfile", f"zookeeper-{node}")
        [policy] = [each for each in graph.all("RolePolicy") if each.inputs["role"].startswith(profile.inputs["role"])]
        allowed = [each for each in policy.document()["Statement"] if each["Sid"] in ("OwnSecret", "OwnConfiguration")]
        if [re.split("[:/]", each["Resource"])[-1] for each in allowed] != [f"zookeeper-{node}", "zoo.cfg"]:
            yield f"{policy}: {allowed}"
        if f"node-{node}/" not in allowed[1]["Resource"]:
            yield f"{policy}: {allowed[1]['Resource']}"


@invariant
def what_holds_data_is_protected(graph: Graph) -> Iterator[str]:
    """Outside of stacks to play with: then S3 itself refuses, too, for a bucket that is not empty is not deleted."""
    buckets = graph.some("Bucket")
    playing = any(each.inputs.get("forceDestroy") for each in buckets)
    parts = [each for each in graph.resources if each.kind.startswith("Bucket") and each.kind != "BucketObject"]
    for each in [*parts, *graph.some("Volume", "NetworkInterface", "Key"), *_nodes_own(graph)]:
        if bool(each.options["protect"]) == playing:
            yield str(each)


def _nodes_own(graph: Graph) -> list[Resource]:
    """Return the parameters whose value the nodes set."""
    return [each for each in graph.some("Parameter") if each.options["ignore_changes"]]
