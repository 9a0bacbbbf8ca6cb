"""Invariants of the network that no rule of the policy pack checks."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.graph import Graph
from tests.support.graph_invariants.registry import CLIENT_PORT, ELECTION_PORT, QUORUM_PORT, invariant, node_variable

_TARGETS = ("cidr", "referenced", "prefix")
_MEMBERS_RULES = ("zookeeper-quorum", "zookeeper-election", "zookeeper-aws", "zookeeper-s3")


@invariant
def other_groups_admit_only_https(graph: Graph) -> Iterator[str]:
    """The policy pack checks the members' ports, but lets other groups open most ports to private addresses."""
    members = {interface.inputs["securityGroups"][0] for interface in graph.some("NetworkInterface")}
    for rule in graph.some("SecurityGroupIngressRule"):
        inputs = rule.inputs
        is_https = (inputs["fromPort"], inputs["toPort"]) == (443, 443)
        if inputs["ipProtocol"] != "tcp" or (inputs["securityGroupId"] not in members and not is_https):
            yield f"{rule} admits {inputs['ipProtocol']} {inputs['fromPort']} to {inputs['toPort']}"


@invariant
def nodes_reach_only_aws(graph: Graph) -> Iterator[str]:
    """The policy pack allows HTTPS to any address. With interface endpoints no egress rule may name an address."""
    endpoints = [item for item in graph.some("VpcEndpoint") if item.inputs["vpcEndpointType"] == "Interface"]
    ports = {CLIENT_PORT, QUORUM_PORT, ELECTION_PORT, 443}
    for rule in graph.some("SecurityGroupEgressRule"):
        if rule.inputs["fromPort"] not in ports or (endpoints and "cidrIpv4" in rule.inputs):
            yield f"{rule} allows port {rule.inputs['fromPort']} to {rule.inputs.get('cidrIpv4', 'its target')}"


@invariant
def writers_reach_zookeeper_and_aws(graph: Graph) -> Iterator[str]:
    for group in graph.some("SecurityGroup"):
        if group.name == "access-writers":
            rules = [rule.inputs for rule in graph.all("SecurityGroupEgressRule")]
            rules = [rule for rule in rules if rule["securityGroupId"] == f"{group.name}-id"]
            targets = {key for rule in rules if rule["fromPort"] == 443 for key in rule if key.startswith(_TARGETS)}
            if CLIENT_PORT not in [rule["fromPort"] for rule in rules]:
                yield f"{group} has no egress rule for ZooKeeper's port {CLIENT_PORT}"
            if targets not in ({"cidrIpv4"}, {"referencedSecurityGroupId", "prefixListId"}):
                yield f"{group} has egress rules for HTTPS to {sorted(targets)} only"


@invariant
def a_machine_is_created_after_its_route_to_aws(graph: Graph) -> Iterator[str]:
    """The user data of a machine runs once. It needs permissions, security group rules, routes and endpoints."""
    prerequisites = {
        *map(str, graph.some("VpcEndpoint", "BucketObject")),
        *(str(item) for item in graph.some("RouteTableAssociation") if "private" in item.name),
        *(str(rule) for rule in graph.some("SecurityGroupIngressRule") if rule.name == "network-endpoints"),
        *(str(route) for route in graph.some("Route") if "natGatewayId" in route.inputs),
        *(str(rule) for rule in graph.some("SecurityGroupEgressRule") if rule.name in _MEMBERS_RULES),
    }
    for instance in graph.some("Instance"):
        name = f"zookeeper-{node_variable(instance, 'NODE')}"
        node_prerequisites = prerequisites | {f"RolePolicy {name}", f"SecretVersion {name}"}
        if missing_dependencies := node_prerequisites - set(instance.options["depends_on"]):
            yield f"{instance} does not depend on {sorted(missing_dependencies)}"
