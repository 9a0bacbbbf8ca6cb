"""The Pulumi program under mocks: invariants of every stack, changes that a rule must report, configurations."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pytest
from rules import RULES

from tests.support.graph import CONFIGURATIONS, INFRA, ROOT, Graph, ProgramError, graph, graphs
from tests.support.graph_invariants import INVARIANTS, config_error, violated_invariants
from tests.support.policy_pack import configure, violations


@dataclass(frozen=True)
class Mutation:
    """A change of the program that removes a protection.

    Attributes:
        name: Description of the change.
        file: Path below ``infra/``.
        old: Text to replace; its first occurrence counts.
        new: Replacement.
        reported_by: Rule of the policy pack, or invariant, that must report the change.
        config: Name of the configuration to use.

    """

    name: str
    file: str
    old: str
    new: str
    reported_by: str
    config: str = "defaults"


C = "components/"
MUTATIONS = [
    Mutation("open the client port to the world", C + "access.py", "referenced_security_group_id=peer",
             'cidr_ipv4="0.0.0.0/0"', "no-public-ingress"),
    Mutation("open SSH", C + "ensemble.py", '("election", ELECTION_PORT))', '("election", ELECTION_PORT), ("ssh", 22))',
             "no-remote-shell-ports"),
    Mutation("let clients reach the quorum's port", C + "access.py", "CLIENT_PORT, self._child", "2888, self._child",
             "ensemble-ports"),
    Mutation("let nodes use any protocol", C + "network.py",
             'ip_protocol="tcp"', 'ip_protocol="-1"', "egress-rules-open-one-port"),
    Mutation("give the default security group a rule", C + "network.py", "vpc_id=vpc.id, ingress=[], egress=[]",
             'vpc_id=vpc.id, ingress=[{"protocol": "-1", "self": True, "from_port": 0, "to_port": 0}], egress=[]',
             "default-group-has-no-rules"),
    Mutation("give subnets public addresses", C + "network.py", "map_public_ip_on_launch=False",
             "map_public_ip_on_launch=True", "subnets-give-no-public-addresses"),
    Mutation("log accepted flows only", C + "network.py", 'traffic_type="ALL"', 'traffic_type="ACCEPT"', "flow-logs"),
    Mutation("give the S3 endpoint no policy", C + "network.py",
             "            policy=gateway_policy_text,\n", "", "endpoints-are-limited"),
    Mutation("let other accounts use the endpoints", C + "network.py", '{"aws:PrincipalAccount": account_id}',
             '{"aws:RequestedRegion": "eu-central-1"}', "endpoints-are-limited"),
    Mutation("allow public policies", C + "lake.py", "block_public_policy=True", "block_public_policy=False",
             "buckets-are-private"),
    Mutation("allow ACLs", C + "lake.py", "BucketOwnerEnforced", "ObjectWriter", "no-access-control-lists"),
    Mutation("suspend versioning", C + "lake.py", 'versioning_configuration={"status": "Enabled"}',
             'versioning_configuration={"status": "Suspended"}', "buckets-are-versioned"),
    Mutation("do not encrypt volumes", C + "ensemble.py", "            encrypted=True,\n", "", "volumes-are-encrypted"),
    Mutation("do not encrypt the machines' disk", C + "ensemble.py", '"encrypted": True', '"encrypted": False',
             "root-volume-is-encrypted"),
    Mutation("drop the KMS key of the lake", C + "lake.py", "            if kms_key_arn\n",
             "            if False\n", "buckets-are-encrypted", "KMS and prefixes"),
    Mutation("do not rotate the KMS key", C + "lake.py", "enable_key_rotation=True", "enable_key_rotation=False",
             "keys-are-rotated", "KMS and prefixes"),
    Mutation("allow plain HTTP", C + "lake.py", 'tls_only(values["arn"]), *values["statements"]',
             '*values["statements"]', "buckets-require-tls"),
    Mutation("expire current objects", C + "lake.py",
             '"noncurrent_version_expiration": {"noncurrent_days": settings.noncurrent_version_days},',
             '"expiration": {"days": 90},', "lifecycle-keeps-current-objects"),
    Mutation("drop the statement about conditional PUTs", C + "commit_policy.py", "return [put, delete]",
             "return [delete]", "commits-are-conditional"),
    Mutation("drop the statement about deletion", C + "commit_policy.py", "return [put, delete]", "return [put]",
             "only-maintenance-deletes-versions"),
    Mutation("misspell the condition about PUTs", C + "commit_policy.py", '"s3:if-none-match": "true"',
             '"s3:if-nonematch": "true"', "commits-are-conditional"),
    Mutation("leave out tables at the root of the bucket", C + "commit_policy.py", 'for folder in ("", "*/")]',
             'for folder in ("*/",)]', "commits-are-conditional"),
    Mutation("drop the appender's own statement", C + "access.py",
             "        unconditional_commit(resources.bucket, resources.prefixes),\n", "",
             "writers-commit-conditionally", "existing bucket"),
    Mutation("let appenders delete logs", C + "access.py", '"Sid": "KeepLogs",\n        "Effect": "Deny"',
             '"Sid": "KeepLogs",\n        "Effect": "Allow"', "one-role-deletes-logs"),
    Mutation("replace the policy of an existing bucket", "__main__.py", "partition, settings.existing_bucket)\n",
             "partition, settings.existing_bucket)\n    aws.s3.BucketPolicy('lake', bucket=lake_name, policy="
             "pulumi.Output.json_dumps({'Statement': commit_statements(settings, maintenance.arn, lake_arn)}))\n",
             "an existing bucket is not changed", "existing bucket"),
    Mutation("give every member the last id", C + "ensemble.py", "NODE=str(member_id),",
             "NODE=str(self._settings.nodes),", "members-have-ids"),
    Mutation("give every member the first interface", C + "ensemble.py",
             "member_id, interfaces[member_id], node_client_pair)", "member_id, interfaces[1], node_client_pair)",
             "members-have-interfaces"),
    Mutation("omit a member from zoo.cfg", C + "node_config.py",
             "for number, address in sorted(addresses.items())),\n    ]",
             "for number, address in sorted(addresses.items()) if number < 3),\n    ]", "zoo-cfg-lists-all-members"),
    Mutation("let members without data elect a leader", C + "node_config.py", "db.autocreate=false",
             "db.autocreate=true", "members-without-data-wait"),
    Mutation("do not store that an ensemble has data", C + "ensemble.py", ', ignore_changes=["value"]', "",
             "members without data vote only in a new ensemble"),
    Mutation("put all members into one zone", C + "ensemble.py", "[(member_id - 1) % len(self._args.subnet_ids)]",
             "[0]", "members-are-spread"),
    Mutation("let an image replace nodes", C + "ensemble.py", 'REPLACING_PROPERTIES = ["ami", ',
             "REPLACING_PROPERTIES = [", "machines-are-replaced-on-purpose"),
    Mutation("let user data replace nodes", C + "ensemble.py", '"user_data", "root', '"root',
             "machines-are-replaced-on-purpose"),
    Mutation("create a machine before its predecessor is deleted", C + "ensemble.py",
             "                delete_before_replace=True,\n", "", "machines-are-deleted-before-replacement"),
    Mutation("allow IMDSv1", C + "ensemble.py", '"http_tokens": "required"', '"http_tokens": "optional"',
             "metadata-needs-a-token"),
    Mutation("listen in clear text", C + "node_config.py", 'f"secureClientPort={CLIENT_PORT}",',
             'f"clientPort={CLIENT_PORT}", "secureClientPort=2282",', "members-require-tls"),
    Mutation("admit clients without a certificate", C + "node_config.py", 'f"{prefix}.clientAuth=need"',
             'f"{prefix}.clientAuth=want"', "members-require-tls"),
    Mutation("accept a client's certificate in the quorum", C + "node_config.py", '("ssl.quorum", "members-ca.pem")',
             '("ssl.quorum", "clients-ca.pem")', "members-require-tls"),
    Mutation("turn the audit log off", C + "node_config.py", "audit.enable=true", "audit.enable=false",
             "members-require-tls"),
    Mutation("serve metrics to the network", C + "node_config.py", "metricsProvider.httpHost=127.0.0.1",
             "metricsProvider.httpHost=0.0.0.0", "members-require-tls"),
    Mutation("never purge snapshots", C + "node_config.py", "autopurge.purgeInterval=6", "autopurge.purgeInterval=0",
             "members-require-tls"),
    Mutation("open the lock root", C + "certificates.py",
             'LOCK_ROOT_ACL = x509_acl({NODE: "cdrwa", OPERATOR: "cdrwa", MAINTENANCE: "cdrw", APPENDER: "cdrw"})',
             'LOCK_ROOT_ACL = "world:anyone:cdrwa"', "lock-root-needs-a-certificate"),
    Mutation("put a key into user data", C + "ensemble.py", "SECRET=secret.arn,",
             'SECRET=secret.arn, KEY=args.client_authority.issue(f"leak-{member_id}").key,', "keys-are-in-secrets"),
    Mutation("treat missing metrics as healthy", C + "monitoring.py", 'treat_missing_data="breaching"',
             'treat_missing_data="notBreaching"', "missing-data-raises-alarms"),
    Mutation("drop the alarm on file descriptors", C + "monitoring.py",
             '        Alarm("files", "open_file_descriptor_count"', '        Alarm("files", "uptime"',
             "alarms watch metrics that nodes publish"),
    Mutation("let a node read all secrets", C + "ensemble.py",
             'allow("OwnSecret", "secretsmanager:GetSecretValue", secret)',
             'allow("OwnSecret", "secretsmanager:GetSecretValue", "*")', "data-resources-are-named"),
    Mutation("allow a node everything of S3", C + "ensemble.py", 'allow("Artifacts", "s3:GetObject"',
             'allow("Artifacts", "s3:*"', "actions-are-named"),
    Mutation("do not protect the volumes", C + "ensemble.py", "protect=settings.protect, ignore_changes",
             "ignore_changes", "resources-are-protected"),
    Mutation("do not protect the lake", C + "lake.py",
             "child_options = pulumi.ResourceOptions(parent=self, protect=settings.protect)",
             "child_options = pulumi.ResourceOptions(parent=self)", "resources-are-protected"),
    Mutation("do not protect the lake's policy", C + "lake.py", "protect=settings.protect, depends_on=[access_block]",
             "depends_on=[access_block]", "resources with data are protected"),
    Mutation("add no tags", "__main__.py", 'tag_everything({"Project"', '({"Project"', "resources-are-tagged"),
    Mutation("keep logs for ever", "__main__.py", "retention_in_days=settings.log_retention_days",
             "retention_in_days=None", "log-groups-have-a-retention"),
    Mutation("put all subnets into one zone", C + "network.py", "blocks[number], zones[number])",
             "blocks[number], zones[0])", "no zone holds a majority"),
    Mutation("create volumes in another zone", C + "ensemble.py", "availability_zone=zone.availability_zone",
             'availability_zone="eu-central-1a"', "no zone holds a majority"),
    Mutation("mount one volume twice", C + "ensemble.py", 'LOG_VOLUME=volumes["log"].id',
             'LOG_VOLUME=volumes["data"].id', "each member has its own volumes and address"),
    Mutation("let nodes reach the internet", C + "network.py",
             'targets["aws"] = {"referenced_security_group_id": self.endpoint_group_id}',
             'targets["aws"] = {"cidr_ipv4": ANYWHERE}', "nodes reach only aws"),
    Mutation("drop the writers' route to AWS", C + "access.py",
             '            args.aws_egress.allow(f"{name}-writers", group.id, self._child_options)\n', "",
             "writers reach zookeeper and aws"),
    Mutation("start machines before their routes", C + "ensemble.py", "*args.artifacts.objects, *self._connectivity]",
             "*args.artifacts.objects]", "a machine is created after its route to aws"),
    Mutation("start machines before their permissions", C + "ensemble.py", "depends_on=[version, role_policy, ",
             "depends_on=[version, ", "a machine is created after its route to aws"),
    Mutation("open the znodes of clients", C + "certificates.py",
             'CLIENT_ACL = x509_acl({OPERATOR: "cdrwa", MAINTENANCE: "cdrw", APPENDER: "cdrw"})',
             'CLIENT_ACL = "world:anyone:cdrwa"', "znodes of clients are not open to everybody"),
    Mutation("let certificates expire", C + "certificates.py",
             "            early_renewal_hours=RENEWAL_DAYS * _HOURS_PER_DAY,\n", "",
             "certificates are renewed in time"),
    Mutation("watch another namespace", C + "monitoring.py", 'NAMESPACE = "Sluice/ZooKeeper"',
             'NAMESPACE = "Sluice/Zookeeper"', "alarms watch metrics that nodes publish"),
    Mutation("misspell a label of the metrics", "node/prometheus.yaml", "          Stack:", "          stack:",
             "alarms watch metrics that nodes publish"),
    Mutation("let another account assume the machines' roles", C + "documents.py",
             'trust_policy({"Service": "ec2.amazonaws.com"})',
             'trust_policy({"AWS": "arn:aws:iam::999999999999:root"})', "roles trust only services and this account"),
    Mutation("open another port of the endpoints", C + "network.py",
             '"HTTPS from this VPC", HTTPS', '"HTTPS from this VPC", 80',
             "other groups admit only https"),
    Mutation("refuse the log clean-up of the maintenance role", C + "commit_policy.py",
             "[maintenance_role_arn, *exempt]", "[*exempt]", "commits and cleanup are allowed"),
    Mutation("detach volumes of a running machine", C + "ensemble.py",
             "                stop_instance_before_detaching=True,\n", "", "a running machine keeps its volumes"),
    Mutation("let nodes only read the lock root", C + "certificates.py", 'LOCK_ROOT_ACL = x509_acl({NODE: "cdrwa"',
             'LOCK_ROOT_ACL = x509_acl({NODE: "r"', "nodes may change the acl of the lock root"),
    Mutation("answer every four-letter command", C + "node_config.py", "4lw.commands.whitelist=srvr,mntr,ruok",
             "4lw.commands.whitelist=*", "a member answers few commands and allows long sessions"),
    Mutation("let a node read its neighbours' secrets", C + "ensemble.py",
             'allow("OwnSecret", "secretsmanager:GetSecretValue", secret)',
             'allow("OwnSecret", "secretsmanager:GetSecretValue", secret.replace("-1", "-2"))',
             "a node reads only its own secret"),
]  # fmt: skip


def built_graphs(runs: Mapping[str, tuple[Path, str]], *, preview: bool = False) -> dict[str, Graph]:
    """Run each program with its named configuration, and return the graphs by run; fail if a program refuses one."""
    results = graphs([(infra, CONFIGURATIONS[config]) for infra, config in runs.values()], preview=preview)
    stacks = dict(zip(runs, results, strict=True))
    assert {name: error for name, error in stacks.items() if isinstance(error, ProgramError)} == {}
    return {name: stack for name, stack in stacks.items() if isinstance(stack, Graph)}


@pytest.fixture(scope="session")
def stacks() -> Mapping[str, Graph]:
    return built_graphs({name: (INFRA, name) for name in CONFIGURATIONS})


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_a_stack_keeps_every_invariant(configuration: str, stacks: Mapping[str, Graph]) -> None:
    assert violated_invariants(stacks[configuration]) == {}


@pytest.fixture
def reset_stack_configuration() -> Iterator[None]:
    """Remove the configuration after the test."""
    yield
    pulumi.runtime.set_all_config({})


@pytest.mark.full
@pytest.mark.usefixtures("reset_stack_configuration")
def test_every_missing_protection_is_reported(tmp_path: Path) -> None:
    runs = {
        mutation.name: (mutated_program(tmp_path / str(number), mutation), mutation.config)
        for number, mutation in enumerate(MUTATIONS)
    }
    for mutation, stack in zip(MUTATIONS, built_graphs(runs).values(), strict=True):
        configure(CONFIGURATIONS[mutation.config])
        reports = {*violated_invariants(stack), *(violation.rule for violation in violations(RULES, stack.resources))}
        assert mutation.reported_by in reports, (
            f"{mutation.name}: {mutation.reported_by!r} does not report it, only {reports}"
        )


def test_every_invariant_has_a_mutation() -> None:
    reporters = {mutation.reported_by for mutation in MUTATIONS}
    assert set(INVARIANTS) <= reporters <= {*INVARIANTS, *(rule.name for rule in RULES)}


def mutated_program(folder: Path, mutation: Mutation) -> Path:
    shutil.copytree(INFRA, folder / "infra", ignore=shutil.ignore_patterns("__pycache__", ".venv"))
    shutil.copy(ROOT / "Pulumi.yaml", folder)
    file = folder / "infra" / mutation.file
    text = file.read_text(encoding="utf-8")
    assert mutation.old in text, f"{mutation.file} has no {mutation.old!r}"
    file.write_text(text.replace(mutation.old, mutation.new, 1), encoding="utf-8")
    return folder / "infra"


def plain_keys(stack: Graph) -> list[str]:
    """Return the inputs and outputs that contain a private key in plain text, which Pulumi stores unencrypted."""
    inputs = {
        f"{resource}: {key}": value
        for resource in stack.resources
        for key, value in resource.inputs.items()
        if key not in resource.secrets
    }
    return [name for name, value in {**inputs, **stack.outputs}.items() if "PRIVATE KEY-----" in str(value)]


def test_pulumi_encrypts_all_private_keys_in_its_state(stacks: Mapping[str, Graph]) -> None:
    stack = stacks["defaults"]
    encrypted = {key for resource in stack.resources for key in resource.secrets}
    assert encrypted >= {"secretString", "privateKeyPem", "caPrivateKeyPem"}
    assert plain_keys(stack) == []


def test_negative_control_a_key_in_user_data_is_in_plain_text(tmp_path: Path) -> None:
    [mutation] = [mutation for mutation in MUTATIONS if mutation.name == "put a key into user data"]
    stack = built_graphs({mutation.name: (mutated_program(tmp_path, mutation), mutation.config)})[mutation.name]
    assert sorted(plain_keys(stack)) == [f"Instance zookeeper-{node}: userData" for node in (1, 2, 3)]


@pytest.mark.full
def test_a_preview_without_known_values_has_the_same_resources(stacks: Mapping[str, Graph]) -> None:
    for name, preview in built_graphs({name: (INFRA, name) for name in CONFIGURATIONS}, preview=True).items():
        assert sorted(map(str, preview.resources)) == sorted(map(str, stacks[name].resources)), name


def test_one_value_sets_the_number_of_nodes(stacks: Mapping[str, Graph]) -> None:
    stack = stacks["five nodes"]
    assert len(stack.all("Instance")) == 5
    assert len(stack.outputs["zookeeper_connection_string"].split(",")) == 5


def test_nat_replaces_interface_endpoints_by_a_nat_gateway(stacks: Mapping[str, Graph]) -> None:
    stack = stacks["NAT"]
    assert [endpoint.inputs["vpcEndpointType"] for endpoint in stack.all("VpcEndpoint")] == ["Gateway"]
    assert len(stack.all("NatGateway")) == 1
    assert not stacks["defaults"].some("NatGateway", "InternetGateway", "Eip")


def test_clusters_reach_only_the_lake_and_configured_buckets() -> None:
    stack = graph({"reachableBuckets": ["landing"]})
    statements = stack.one("VpcEndpoint", "network-s3").document()["Statement"]
    [resources] = [statement["Resource"] for statement in statements if statement["Sid"] == "LakeAndSources"]
    assert resources == ["arn:aws:s3:::lake", "arn:aws:s3:::lake/*", "arn:aws:s3:::landing", "arn:aws:s3:::landing/*"]
    assert not [statement for statement in statements if statement["Resource"] in ("*", ["*"])]


def test_an_existing_network_is_not_changed(stacks: Mapping[str, Graph]) -> None:
    stack = stacks["existing network"]
    assert not stack.some("Vpc", "Subnet", "RouteTable", "Route", "VpcEndpoint", "DefaultSecurityGroup", "FlowLog")
    assert {interface.inputs["subnetId"] for interface in stack.all("NetworkInterface")} == {"s-1", "s-2", "s-3"}
    assert "sg-9" in {rule.inputs.get("referencedSecurityGroupId") for rule in stack.all("SecurityGroupIngressRule")}
    assert "sg-9" not in {rule.inputs["securityGroupId"] for rule in stack.all("SecurityGroupEgressRule")}


def test_an_existing_bucket_gets_statements_and_no_policy(stacks: Mapping[str, Graph]) -> None:
    stack = stacks["existing bucket"]
    assert stack.outputs["delta_lake_bucket_name"] == "their-lake"
    sids = [statement["Sid"] for statement in stack.outputs["commit_policy_statements"]]
    assert sids == ["DenyUnconditionalCommit", "DenyVacatingVersions"]
    assert {policy.name for policy in stack.all("BucketPolicy")} == {"artifacts"}


def test_with_an_existing_ensemble_none_is_created(stacks: Mapping[str, Graph]) -> None:
    stack = stacks["existing ensemble"]
    assert stack.outputs["zookeeper_connection_string"] == "zk-0.zk:2281,zk-1.zk:2281/sluice"
    assert not stack.some("Instance", "Vpc", "Secret", "NetworkInterface", "MetricAlarm")


def test_only_the_replaced_node_takes_new_values(stacks: Mapping[str, Graph]) -> None:
    nodes = stacks["replacing node 2"].all("Instance")
    assert [node.name for node in nodes if not node.options["ignore_changes"]] == ["zookeeper-2"]
    assert all(node.options["ignore_changes"] for node in stacks["defaults"].all("Instance"))


def test_the_runbook_names_the_description_of_client_rules(stacks: Mapping[str, Graph]) -> None:
    rules = stacks["existing network"].all("SecurityGroupIngressRule")
    descriptions = {rule.inputs["description"] for rule in rules if rule.inputs["fromPort"] == 2281}
    assert descriptions == {"Clients of ZooKeeper"}
    assert "Description=='Clients of ZooKeeper'" in (ROOT / "docs/runbooks.md").read_text(encoding="utf-8")


def test_the_outputs_contain_the_settings_of_clients(stacks: Mapping[str, Graph]) -> None:
    outputs = stacks["defaults"].outputs
    assert outputs["zookeeper_connection_string"] == "10.100.0.11:2281,10.100.0.12:2281,10.100.0.13:2281"
    assert set(outputs["secret_arns"]) == set(outputs["policy_arns"]) == {"appender", "maintenance", "operator"}
    assert outputs["delta_lake_bucket_name"] == "lake"
    assert outputs["lock_root"] == "/locks/delta_tables"


INVALID_CONFIGURATIONS: list[tuple[dict[str, Any], str]] = [
    ({"nodes": 2}, "configuration nodes=2: must be 3, 5 or 7 (4 or 6 only while the ensemble grows or shrinks)"),
    ({"nodes": "many"}, "Configuration 'sluice:nodes' value 'many' is not a valid 'int'"),
    ({"egress": "vpn"}, "configuration egress='vpn': must be endpoints or nat"),
    ({"vpcCidr": "8.8.0.0/16"}, "configuration vpcCidr='8.8.0.0/16': must be a private IPv4 block"),
    ({"vpcCidr": "127.0.0.0/16"}, "configuration vpcCidr='127.0.0.0/16': must be a private IPv4 block"),
    ({"vpcCidr": "10.0.0.0/8"}, "configuration vpcCidr='10.0.0.0/8': must be a private IPv4 block"),
    ({"vpcId": "vpc-1"}, "configuration subnetIds=[]: must be 3 subnets of vpcId"),
    ({"subnetIds": ["s-1"]}, "configuration subnetIds=['s-1']: must be empty unless vpcId is set"),
    ({"commitPolicy": "prefixes"}, "configuration tablePrefixes=[]: must be set when commitPolicy is prefixes"),
    ({"tablePrefixes": ["a*"]}, "configuration tablePrefixes='a*': must be folders of a-z"),
    ({"exemptPrincipalArns": ["*"]}, "configuration exemptPrincipalArns='*': must be ARNs of IAM principals"),
    ({"existingBucket": "arn:aws:s3:::x"}, "configuration existingBucket='arn:aws:s3:::x': must be the name of a"),
    ({"reachableBuckets": ["*"]}, "configuration reachableBuckets='*': must be names of buckets"),
    ({"replaceNode": 4}, "configuration replaceNode=4: must be 0 to 3"),
    ({"trustedAuthorities": [2]}, "configuration signingAuthority=1: must be one of trustedAuthorities"),
    ({"logRetentionDays": 8}, "configuration logRetentionDays=8: must be a retention that CloudWatch supports"),
    ({"alarmTopicArns": "x"}, "Configuration 'sluice:alarmTopicArns' value 'x' is not a valid 'JSON object'"),
    ({"alarmTopicArns": {"a": 1}}, "configuration alarmTopicArns={'a': 1}: must be a list"),
]


def test_an_invalid_value_is_refused_with_one_line() -> None:
    results = graphs([(INFRA, config) for config, _ in INVALID_CONFIGURATIONS])
    for (config, message), result in zip(INVALID_CONFIGURATIONS, results, strict=True):
        assert isinstance(result, ProgramError), f"the program accepted {config}"
        assert config_error(result).startswith(message), config_error(result)
        assert "\n" not in config_error(result)
