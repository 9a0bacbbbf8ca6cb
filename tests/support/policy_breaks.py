"""For each rule of the policy pack, stacks that violate it, as a later change of the program could create them."""

from __future__ import annotations

from collections.abc import Callable

from tests.support import policy_breaks_of_data as data
from tests.support.policy_break import ADDRESS, NODE, NODE_2, Break, added_statement, changed_statement

INGRESS, OLD_RULE, GROUP = "SecurityGroupIngressRule", "aws:ec2/securityGroupRule:SecurityGroupRule", "SecurityGroup"
EGRESS = "SecurityGroupEgressRule"
ANYBODY = {"referencedSecurityGroupId": None, "cidrIpv4": "0.0.0.0/0"}
ALL_PORTS = {"ipProtocol": "-1", "fromPort": None, "toPort": None}
INLINE = [{"protocol": "tcp", "fromPort": 443, "toPort": 443, "cidrBlocks": ["0.0.0.0/0"]}]


def replacing(old: str, new: str) -> Callable[[str], str]:
    """Return a function that replaces a part of a text."""
    return lambda text: text.replace(old, new)


GROUPS = [
    Break("no-public-ingress", INGRESS, "zookeeper-writers", ANYBODY),
    Break("no-public-ingress", INGRESS, "zookeeper-writers", {**ANYBODY, "cidrIpv4": None, "cidrIpv6": "::/0"}),
    Break("no-public-ingress", INGRESS, "zookeeper-writers", {**ANYBODY, "cidrIpv4": "128.0.0.0/1"}),
    Break("no-public-ingress", INGRESS, "zookeeper-writers", {**ANYBODY, "cidrIpv4": "203.0.114.7/32"}),
    Break("no-public-ingress", INGRESS, "network-endpoints", {"cidrIpv4": None, "prefixListId": "pl-9"}),
    Break("no-public-ingress", GROUP, "access-writers", {"ingress": INLINE}),
    Break("no-public-ingress", "X", "old", {"type": "ingress", **INLINE[0]}, type=OLD_RULE),
    Break("no-remote-shell-ports", INGRESS, "zookeeper-writers", {"fromPort": 22, "toPort": 22}),
    Break("no-remote-shell-ports", INGRESS, "zookeeper-writers", {"fromPort": 3000, "toPort": 4000}),
    Break("no-remote-shell-ports", INGRESS, "network-endpoints", ALL_PORTS),
    Break("egress-rules-open-one-port", EGRESS, "zookeeper-aws", ALL_PORTS),
    Break("egress-rules-open-one-port", EGRESS, "zookeeper-s3", {"fromPort": 80, "toPort": 80}),
    Break("group-rules-are-resources", GROUP, "zookeeper-members", {"egress": INLINE}),
    Break("group-rules-are-resources", "X", "old", {"type": "egress"}, type=OLD_RULE),
    Break("default-group-has-no-rules", "DefaultSecurityGroup", "network-closed", {"egress": INLINE}),
    Break("default-group-gets-no-rules", INGRESS, "zookeeper-writers", {"securityGroupId": "network-closed-id"}),
    Break("default-group-gets-no-rules", EGRESS, "zookeeper-aws", {"securityGroupId": "network-closed-id"}),
    Break("ensemble-ports", INGRESS, "zookeeper-quorum", {"referencedSecurityGroupId": "access-writers-id"}),
    Break("ensemble-ports", INGRESS, "zookeeper-writers", {"fromPort": 3888, "toPort": 3888}),
    Break("ensemble-ports", INGRESS, "zookeeper-writers", {**ANYBODY, "cidrIpv4": "10.100.0.0/16"}),
    Break("ensemble-ports", INGRESS, "zookeeper-writers", {"fromPort": 7000, "toPort": 7000}),
    Break("ensemble-ports", INGRESS, "network-endpoints", ALL_PORTS),
]
NETWORK = [
    Break("default-group-is-managed", "Vpc", "network", without=("DefaultSecurityGroup", "network-closed")),
    Break("subnets-give-no-public-addresses", "Subnet", "network-private-2", {"mapPublicIpOnLaunch": True}),
    Break("subnets-give-no-public-addresses", "Subnet", "network-public", {"mapPublicIpOnLaunch": True}, stack="NAT"),
    Break("flow-logs", "Vpc", "network", without=("FlowLog", "network-flow")),
    Break("endpoints-are-limited", "VpcEndpoint", "network-s3", {"policy": None}),
    Break("endpoints-are-limited", "VpcEndpoint", "network-s3", added_statement(Resource="*")),
    Break("endpoints-are-limited", "VpcEndpoint", "network-s3", added_statement(Resource="arn:aws:s3:::*")),
    Break("endpoints-are-limited", "VpcEndpoint", "network-ssm", added_statement(Resource="*")),
    Break("endpoints-are-limited", "VpcEndpoint", "network-ssm", added_statement(NotResource="x")),
    Break("endpoints-are-limited", "VpcEndpoint", "network-s3", changed_statement("LakeAndSources", Condition={})),
    Break("nodes-reach-aws", "Vpc", "network", without=("VpcEndpoint", "network-ssmmessages")),
    Break("source-is-checked", "NetworkInterface", NODE, {"sourceDestCheck": False}),
    Break("source-is-checked", "Instance", NODE, {"sourceDestCheck": False}),
]
NO_TOKEN = {"httpTokens": "optional"}
COMPUTE = [
    Break("metadata-needs-a-token", "Instance", NODE, {"metadataOptions": None}),
    Break("metadata-needs-a-token", "Instance", NODE, {"metadataOptions": {"httpTokens": "required"}}),
    Break("metadata-needs-a-token", "Instance", NODE, {"metadataOptions": lambda old: old | NO_TOKEN}),
    Break("no-key-pair", "Instance", NODE_2, {"keyName": "mine"}),
    Break("no-public-address", "Instance", NODE, {"associatePublicIpAddress": True}),
    Break("no-public-address", "X", "way-in", {**ADDRESS, "instance": "zookeeper-1-id"}, type="aws:ec2/eip:Eip"),
    Break("no-public-address", "X", "way-in", {}, type="aws:ec2/eipAssociation:EipAssociation"),
    Break("one-interface", "Instance", NODE, {"primaryNetworkInterface": None}),
    Break("one-interface", "Instance", NODE, {"networkInterfaces": [{"deviceIndex": 1}]}),
    Break("one-interface", "X", "second", {}, type="aws:ec2/networkInterfaceAttachment:NetworkInterfaceAttachment"),
    Break("root-volume-is-encrypted", "Instance", NODE, {"rootBlockDevice": {"volumeType": "gp3"}}),
    Break("root-volume-is-encrypted", "Instance", NODE, {"ebsBlockDevices": [{"deviceName": "/dev/sdz"}]}),
    Break("volumes-are-encrypted", "Volume", f"{NODE}-log", {"encrypted": False}),
    Break("machines-are-managed", "Instance", NODE, {"iamInstanceProfile": None}),
    Break("machines-are-deleted-before-replacement", "Instance", NODE, options={"delete_before_replace": None}),
    Break(
        "machines-are-deleted-before-replacement",
        "VolumeAttachment",
        f"{NODE}-log",
        options={"delete_before_replace": None},
    ),
    Break("machines-are-replaced-on-purpose", "Instance", NODE_2, options={"ignore_changes": None}),
    Break("machines-are-replaced-on-purpose", "Instance", NODE_2, options={"ignore_changes": ["ami", "instance_type"]}),
    Break("volumes-keep-their-zone", "Volume", f"{NODE}-data", options={"ignore_changes": None}),
]
INTERFACE, LOG_2 = {"networkInterfaceId": f"{NODE}-id"}, f"{NODE_2}-log"
ENSEMBLE = [
    *(
        Break("members-have-ids", "Instance", NODE_2, {"userData": replacing("SLUICE_NODE=2", node)}, late=True)
        for node in ("SLUICE_NODE=1", "SLUICE_NODE=4")
    ),
    Break("members-have-ids", "Instance", NODE_2, {"userData": "#!/bin/sh"}, late=True),
    Break("members-have-interfaces", "Instance", NODE_2, {"primaryNetworkInterface": INTERFACE}),
    Break("members-have-volumes", "VolumeAttachment", LOG_2, {"volumeId": "vol-1"}, also=f"{NODE}-log", late=True),
    Break("odd-ensemble", "Instance", "zookeeper-3", without=("Instance", NODE)),
    Break("members-are-spread", "NetworkInterface", NODE_2, {"subnetId": "network-private-1-id"}),
]

ZOOKEEPER = [
    *(
        Break("members-require-tls", "Parameter", NODE, {"value": replacing(old, new)})
        for old, new in (
            ("secureClientPort=2281", "clientPort=2281"),
            ("secureClientPort=2281", "secureClientPort=2281\nclientPort=2181"),
            ("ssl.clientAuth=need", "ssl.clientAuth=want"),
            ("ssl.quorum.clientAuth=need", "ssl.quorum.clientAuth=none"),
            ("sslQuorum=true", "sslQuorum=false"),
            ("clients-ca.pem", "members-ca.pem"),
            ("enforce.auth.enabled=true\n", ""),
            ("enforce.auth.schemes=x509", "enforce.auth.schemes=digest"),
            ("reconfigEnabled=false", "reconfigEnabled=true"),
            ("admin.enableServer=false\n", ""),
            ("audit.enable=true", "audit.enable=false"),
            ("httpHost=127.0.0.1", "httpHost=0.0.0.0"),
            ("purgeInterval=6", "purgeInterval=0"),
        )
    ),
    Break("members-without-data-wait", "Parameter", NODE, {"value": replacing("db.autocreate=false\n", "")}),
    Break("zoo-cfg-lists-all-members", "Parameter", NODE, {"value": replacing("server.3", "#server.3")}),
    Break(
        "lock-root-needs-a-certificate",
        "Instance",
        NODE,
        {"userData": replacing("ROOT_ACL=", "ROOT_ACL=world:anyone:r,")},
    ),
    Break("lock-root-needs-a-certificate", "Instance", NODE, {"userData": "#!/bin/sh"}),
]
MONITORING = [
    Break("log-groups-have-a-retention", "LogGroup", "network-flow", {"retentionInDays": 0}),
    Break("missing-data-raises-alarms", "MetricAlarm", "alarms-quorum-lost", {"treatMissingData": "missing"}),
    Break("missing-data-raises-alarms", "MetricAlarm", "alarms-silent-1", {"treatMissingData": None}),
    Break("alarm-actions-are-enabled", "MetricAlarm", "alarms-silent-1", {"actionsEnabled": False}),
    Break("resources-are-tagged", "Vpc", "network", {"tags": {"Project": "sluice"}}),
    Break("resources-are-tagged", "Secret", NODE, {"tags": None}),
    Break("resources-are-tagged", "X", "new", {}, type="aws:sqs/queue:Queue"),
]
BREAKS = [*GROUPS, *NETWORK, *COMPUTE, *ENSEMBLE, *ZOOKEEPER, *MONITORING, *data.BREAKS]
