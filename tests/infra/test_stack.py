"""The Pulumi program under mocks: invariants of every stack, changes that a rule must report, configurations."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pulumi
import pytest
from rules import RULES

from tests.support.graph import CONFIGURATIONS, INFRA, ROOT, Graph, ProgramError, graph, graphs
from tests.support.graph_invariants import INVARIANTS, config_error, violated_invariants
from tests.support.policy_pack import configure, violations
from tests.support.stack_graph import default_config
from tests.support.stack_mutations import MUTATIONS, Mutation


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


def test_a_stack_with_locks_on_s3_has_buckets_and_roles_only(stacks: Mapping[str, Graph]) -> None:
    stack = stacks["locks on S3"]
    assert Counter(resource.kind for resource in stack.resources if resource.type.startswith("aws:")) == {
        "Bucket": 2,
        "BucketPublicAccessBlock": 2,
        "BucketOwnershipControls": 2,
        "BucketServerSideEncryptionConfiguration": 2,
        "BucketLifecycleConfiguration": 2,
        "BucketPolicy": 2,
        "BucketVersioning": 1,
        "Role": 2,
        "Policy": 3,
        "RolePolicyAttachment": 2,
        "RolePolicy": 1,
        "InstanceProfile": 1,
    }
    assert {resource.name for resource in stack.all("Bucket")} == {"lake", "locks"}
    assert [versioning.name for versioning in stack.all("BucketVersioning")] == ["lake"]
    rules = {rule["id"] for rule in stack.one("BucketLifecycleConfiguration", "locks").inputs["rules"]}
    assert rules == {"abort-incomplete-uploads"}
    assert not [resource for resource in stack.resources if resource.type.startswith("tls:")]


def test_a_stack_with_locks_on_s3_names_their_url(stacks: Mapping[str, Graph]) -> None:
    outputs = stacks["locks on S3, existing bucket"].outputs
    assert (outputs["delta_lake_bucket_name"], outputs["lock_url"]) == ("their-lake", "s3-lease://locks/locks")
    assert set(outputs["policy_arns"]) == {"appender", "maintenance", "operator"}
    assert outputs["writer_instance_profile"] == "access-writer"
    absent = ("zookeeper_connection_string", "lock_root", "vpc_id", "writer_security_group_id")
    assert {name: outputs[name] for name in absent} == dict.fromkeys(absent)
    assert outputs["secret_arns"] == {}
    assert stacks["defaults"].outputs["lock_url"] is None
    assert "locks" not in {bucket.name for bucket in stacks["defaults"].all("Bucket")}


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
    ({"coordinator": "etcd"}, "configuration coordinator='etcd': must be zookeeper or s3-lease"),
    (
        {"coordinator": "s3-lease", "egress": "nat", "nodes": 5, "trustedAuthorities": [1, 2], "alarmTopicArns": ["a"]},
        "configuration egress, nodes, trustedAuthorities, alarmTopicArns: must be left out with coordinator s3-lease, ",
    ),
    ({"coordinator": "s3-lease", "tablePrefixes": ["a*"]}, "configuration tablePrefixes='a*': must be folders of a-z"),
]


def test_an_invalid_value_is_refused_with_one_line() -> None:
    results = graphs([(INFRA, config) for config, _ in INVALID_CONFIGURATIONS])
    for (config, message), result in zip(INVALID_CONFIGURATIONS, results, strict=True):
        assert isinstance(result, ProgramError), f"the program accepted {config}"
        assert config_error(result).startswith(message), config_error(result)
        assert "\n" not in config_error(result)


#: Values that a stack with locks on S3 uses.
USED_WITHOUT_ENSEMBLE = {
    "coordinator", "protect", "existingBucket", "existingBucketKmsKeyArn", "commitPolicy", "tablePrefixes",
    "exemptPrincipalArns", "maintenancePrincipalArns", "kms", "noncurrentVersionDays",
}  # fmt: skip


@pytest.mark.full
def test_each_value_of_an_ensemble_is_refused_with_locks_on_s3() -> None:
    other_values = {
        key: default + 1 if isinstance(default, int) else [*default, "x"] if isinstance(default, list) else "x"
        for key, default in default_config(ROOT / "Pulumi.yaml").items()
        if key not in USED_WITHOUT_ENSEMBLE
    }
    results = graphs([(INFRA, {"coordinator": "s3-lease", key: value}) for key, value in other_values.items()])
    for key, result in zip(other_values, results, strict=True):
        assert isinstance(result, ProgramError), f"the program accepted {key}"
        reason = "coordinator s3-lease, which has neither an ensemble nor a network"
        assert config_error(result) == f"configuration {key}: must be left out with {reason}"
