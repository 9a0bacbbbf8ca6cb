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
    Break("ingress-from-inside", INGRESS, "zookeeper-writers", ANYBODY),
    Break("ingress-from-inside", INGRESS, "zookeeper-writers", {**ANYBODY, "cidrIpv4": None, "cidrIpv6": "::/0"}),
    Break("ingress-from-inside", INGRESS, "zookeeper-writers", {**ANYBODY, "cidrIpv4": "128.0.0.0/1"}),
    Break("ingress-from-inside", INGRESS, "zookeeper-writers", {**ANYBODY, "cidrIpv4": "203.0.114.7/32"}),
    Break("ingress-from-inside", INGRESS, "network-endpoints", {"cidrIpv4": None, "prefixListId": "pl-9"}),
    Break("ingress-from-inside", GROUP, "access-writers", {"ingress": INLINE}),
    Break("ingress-from-inside", "X", "old", {"type": "ingress", **INLINE[0]}, type=OLD_RULE),
    Break("no-remote-shell-ports", INGRESS, "zookeeper-writers", {"fromPort": 22, "toPort": 22}),
    Break("no-remote-shell-ports", INGRESS, "zookeeper-writers", {"fromPort": 3000, "toPort": 4000}),
    Break("no-remote-shell-ports", INGRESS, "network-endpoints", ALL_PORTS),
    Break("egress-by-one-port", EGRESS, "zookeeper-aws", ALL_PORTS),
    Break("egress-by-one-port", EGRESS, "zookeeper-s3", {"fromPort": 80, "toPort": 80}),
    Break("group-rules-are-resources", GROUP, "zookeeper-members", {"egress": INLINE}),
    Break("group-rules-are-resources", "X", "old", {"type": "egress"}, type=OLD_RULE),
    Break("default-group-has-no-rules", "DefaultSecurityGroup", "network-closed", {"egress": INLINE}),
    Break("default-group-gets-no-rules", INGRESS, "zookeeper-writers", {"securityGroupId": "network-closed-id"}),
    Break("ensemble-ports", INGRESS, "zookeeper-quorum", {"referencedSecurityGroupId": "access-writers-id"}),
    Break("ensemble-ports", INGRESS, "zookeeper-writers", {"fromPort": 3888, "toPort": 3888}),
    Break("ensemble-ports", INGRESS, "zookeeper-writers", {**ANYBODY, "cidrIpv4": "10.100.0.0/16"}),
    Break("ensemble-ports", INGRESS, "zookeeper-writers", {"fromPort": 7000, "toPort": 7000}),
    Break("ensemble-ports", INGRESS, "network-endpoints", ALL_PORTS),
]
NETWORK = [
    Break("default-group-is-ours", "Vpc", "network", without=("DefaultSecurityGroup", "network-closed")),
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
    Break("machines-make-room", "Instance", NODE, options={"delete_before_replace": None}),
    Break("machines-make-room", "VolumeAttachment", f"{NODE}-log", options={"delete_before_replace": None}),
    Break("machines-are-replaced-on-purpose", "Instance", NODE_2, options={"ignore_changes": None}),
    Break("machines-are-replaced-on-purpose", "Instance", NODE_2, options={"ignore_changes": ["ami", "instance_type"]}),
    Break("volumes-stay", "Volume", f"{NODE}-data", options={"ignore_changes": None}),
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
        Break("members-speak-tls", "Parameter", NODE, {"value": replacing(old, new)})
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
    Break("empty-members-wait", "Parameter", NODE, {"value": replacing("db.autocreate=false\n", "")}),
    Break("members-know-each-other", "Parameter", NODE, {"value": replacing("server.3", "#server.3")}),
    Break("locks-are-for-ours", "Instance", NODE, {"userData": replacing("ROOT_ACL=", "ROOT_ACL=world:anyone:r,")}),
    Break("locks-are-for-ours", "Instance", NODE, {"userData": "#!/bin/sh"}),
]
MONITORING = [
    Break("logs-end", "LogGroup", "network-flow", {"retentionInDays": 0}),
    Break("silence-is-a-fault", "MetricAlarm", "alarms-quorum-lost", {"treatMissingData": "missing"}),
    Break("silence-is-a-fault", "MetricAlarm", "alarms-silent-1", {"treatMissingData": None}),
    Break("alarms-act", "MetricAlarm", "alarms-silent-1", {"actionsEnabled": False}),
    Break("tagged", "Vpc", "network", {"tags": {"Project": "sluice"}}),
    Break("tagged", "Secret", NODE, {"tags": None}),
    Break("tagged", "X", "new", {}, type="aws:sqs/queue:Queue"),
]
BREAKS = [*GROUPS, *NETWORK, *COMPUTE, *ENSEMBLE, *ZOOKEEPER, *MONITORING, *data.BREAKS]
