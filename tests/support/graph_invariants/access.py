"""What holds for roles, tags and logs of every stack."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.support.graph import Graph, Resource
from tests.support.graph_invariants.registry import invariant, node_variable


@invariant
def nobody_may_do_everything(graph: Graph) -> Iterator[str]:
    for each, statement in graph.policies():
        actions = statement.get("Action", [])
        actions = [actions] if isinstance(actions, str) else actions
        if statement["Effect"] != "Allow" or each.kind == "VpcEndpoint":
            continue
        if "NotAction" in statement or any(action == "*" or action.endswith(":*") for action in actions):
            yield f"{each}: {statement.get('Sid')}"
        if statement.get("Principal") in ("*", {"AWS": "*"}):
            yield f"{each}: anybody"


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


@invariant
def everything_is_tagged(graph: Graph) -> Iterator[str]:
    for each in graph.resources:
        if each.kind in TAGGABLE and not {"Project", "Stack", "ManagedBy"} <= set(each.inputs.get("tags") or ()):
            yield str(each)


TAGGABLE = {
    "Vpc", "Subnet", "RouteTable", "SecurityGroup", "DefaultSecurityGroup", "VpcEndpoint", "FlowLog", "LogGroup",
    "Role", "Policy", "InstanceProfile", "Bucket", "BucketObject", "Key", "NetworkInterface", "Volume", "Instance",
    "Secret",
    "Parameter", "MetricAlarm", "Eip", "NatGateway", "InternetGateway", "SecurityGroupIngressRule",
    "SecurityGroupEgressRule",
}  # fmt: skip


@invariant
def logs_do_not_grow_for_ever(graph: Graph) -> Iterator[str]:
    for each in graph.some("LogGroup"):
        if not each.inputs.get("retentionInDays"):
            yield str(each)


def _nodes_own(graph: Graph) -> list[Resource]:
    """Return the parameters whose value the nodes set."""
    return [each for each in graph.some("Parameter") if each.options["ignore_changes"]]
