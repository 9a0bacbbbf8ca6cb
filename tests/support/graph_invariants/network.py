"""What holds for the network of every stack."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.graph import Graph
from tests.support.graph_invariants.registry import CLIENT, ELECTION, QUORUM, WORLD, invariant, node_variable

_WAYS = ("cidr", "referenced", "prefix")
_MEMBERS_RULES = ("zookeeper-quorum", "zookeeper-election", "zookeeper-aws", "zookeeper-s3")


@invariant
def nobody_comes_in_from_the_world(graph: Graph) -> Iterator[str]:
    for rule in graph.some("SecurityGroupIngressRule"):
        if {rule.inputs.get("cidrIpv4"), rule.inputs.get("cidrIpv6")} & WORLD:
            yield str(rule)
    for group in graph.some("SecurityGroup", "DefaultSecurityGroup"):
        if group.inputs.get("ingress"):
            yield f"{group}: rules of its own"


@invariant
def only_what_zookeeper_needs_comes_in(graph: Graph) -> Iterator[str]:
    """The client port from groups; quorum and election from the members; HTTPS to the endpoints."""
    members = {each.inputs["securityGroups"][0] for each in graph.some("NetworkInterface")}
    for rule in graph.some("SecurityGroupIngressRule"):
        told = rule.inputs
        ports = (told["fromPort"], told["toPort"])
        among = told.get("referencedSecurityGroupId") in members and told["securityGroupId"] in members
        clients = ports == (CLIENT, CLIENT) and "referencedSecurityGroupId" in told
        quorum = ports in {(QUORUM, QUORUM), (ELECTION, ELECTION)} and among
        https = ports == (443, 443) and told["securityGroupId"] not in members
        if told["ipProtocol"] != "tcp" or not (clients or quorum or https):
            yield f"{rule}: {ports}"


@invariant
def nodes_go_out_to_aws_alone(graph: Graph) -> Iterator[str]:
    """With interface endpoints to these and S3, to no address; else to the world, by HTTPS."""
    endpoints = [each for each in graph.some("VpcEndpoint") if each.inputs["vpcEndpointType"] == "Interface"]
    for rule in graph.some("SecurityGroupEgressRule"):
        if rule.inputs["ipProtocol"] != "tcp" or rule.inputs["fromPort"] not in {CLIENT, QUORUM, ELECTION, 443}:
            yield str(rule)
        if rule.inputs.get("cidrIpv4") and (endpoints or rule.inputs["fromPort"] != 443):
            yield f"{rule}: to {rule.inputs['cidrIpv4']}"


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


@invariant
def a_private_network_has_no_public_address(graph: Graph) -> Iterator[str]:
    for each in graph.some("Subnet"):
        if each.inputs.get("mapPublicIpOnLaunch") is not False:
            yield str(each)
    for each in graph.some("Instance"):
        if each.inputs.get("associatePublicIpAddress") or each.inputs.get("keyName"):
            yield str(each)


@invariant
def the_default_group_of_a_new_network_is_closed(graph: Graph) -> Iterator[str]:
    for each in graph.some("Vpc"):
        [group] = graph.all("DefaultSecurityGroup")
        if group.inputs.get("ingress") != [] or group.inputs.get("egress") != []:
            yield f"{each}: {group}"


@invariant
def a_new_network_logs_its_flows(graph: Graph) -> Iterator[str]:
    logged = {each.inputs["vpcId"] for each in graph.some("FlowLog") if each.inputs["trafficType"] == "ALL"}
    for each in graph.some("Vpc"):
        if f"{each.name}-id" not in logged:
            yield str(each)


@invariant
def endpoints_say_who_may_use_them(graph: Graph) -> Iterator[str]:
    for each in graph.some("VpcEndpoint"):
        if "policy" not in each.inputs:
            yield str(each)
            continue
        for statement in each.document()["Statement"]:
            ours = "aws:PrincipalAccount" in statement.get("Condition", {}).get("StringEquals", {})
            read = statement["Action"] == "s3:GetObject" and statement["Resource"] != "*"
            if not (ours or read):
                yield f"{each}: {statement.get('Sid')}"
