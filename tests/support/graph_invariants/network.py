"""Invariants of the network that no rule of the policy pack checks."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.graph import Graph
from tests.support.graph_invariants.registry import CLIENT, ELECTION, QUORUM, invariant, node_variable

_WAYS = ("cidr", "referenced", "prefix")
_MEMBERS_RULES = ("zookeeper-quorum", "zookeeper-election", "zookeeper-aws", "zookeeper-s3")


@invariant
def groups_beside_the_members_admit_https_only(graph: Graph) -> Iterator[str]:
    """The rules check the ports of the members, and allow any other group to open a port for private addresses."""
    members = {interface.inputs["securityGroups"][0] for interface in graph.some("NetworkInterface")}
    for rule in graph.some("SecurityGroupIngressRule"):
        inputs = rule.inputs
        is_https = (inputs["fromPort"], inputs["toPort"]) == (443, 443)
        if inputs["ipProtocol"] != "tcp" or (inputs["securityGroupId"] not in members and not is_https):
            yield f"{rule}: {inputs['ipProtocol']} {inputs['fromPort']} to {inputs['toPort']}"


@invariant
def nodes_go_out_to_aws_alone(graph: Graph) -> Iterator[str]:
    """The rules allow HTTPS to any address. With interface endpoints no rule may lead to an address."""
    endpoints = [each for each in graph.some("VpcEndpoint") if each.inputs["vpcEndpointType"] == "Interface"]
    for rule in graph.some("SecurityGroupEgressRule"):
        if rule.inputs["fromPort"] not in {CLIENT, QUORUM, ELECTION, 443} or (endpoints and "cidrIpv4" in rule.inputs):
            yield str(rule)


@invariant
def writers_reach_zookeeper_and_aws(graph: Graph) -> Iterator[str]:
    for group in graph.some("SecurityGroup"):
        if group.name == "access-writers":
            rules = [each.inputs for each in graph.all("SecurityGroupEgressRule")]
            targets = [each for each in rules if each["securityGroupId"] == f"{group.name}-id"]
            ways = {key for each in targets if each["fromPort"] == 443 for key in each if key.startswith(_WAYS)}
            if CLIENT not in [each["fromPort"] for each in targets]:
                yield "ZooKeeper"
            if ways not in ({"cidrIpv4"}, {"referencedSecurityGroupId", "prefixListId"}):
                yield f"AWS: {sorted(ways)}"


@invariant
def a_machine_comes_after_its_way_to_aws(graph: Graph) -> Iterator[str]:
    """Its user data runs once: rights, rules, routes and endpoints have to be there."""
    first = {
        *map(str, graph.some("VpcEndpoint", "BucketObject")),
        *(str(each) for each in graph.some("RouteTableAssociation") if "private" in each.name),
        *(str(each) for each in graph.some("SecurityGroupIngressRule") if each.name == "network-endpoints"),
        *(str(each) for each in graph.some("Route") if "natGatewayId" in each.inputs),
        *(str(each) for each in graph.some("SecurityGroupEgressRule") if each.name in _MEMBERS_RULES),
    }
    for instance in graph.some("Instance"):
        own = f"zookeeper-{node_variable(instance, 'NODE')}"
        wanted = first | {f"RolePolicy {own}", f"SecretVersion {own}"}
        if missing := wanted - set(instance.options["depends_on"]):
            yield f"{instance}: {sorted(missing)}"
