"""The policy pack as Pulumi runs it: a gRPC server that checks each resource and the whole stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc
from pulumi_policy import StackValidationPolicy
from rules import RULES

from tests.support.graph import INFRA, Graph, Resource, graph
from tests.support.policy_pack import dependencies, ignored_inputs, outputs, urn_of

TIMEOUT_SECONDS = 60.0
OPEN_TO_ALL = {
    "securityGroupId": "sg-1",
    "ipProtocol": "tcp",
    "fromPort": 2281,
    "toPort": 2281,
    "cidrIpv4": "0.0.0.0/0",
    "tags": {"Project": "sluice", "Stack": "test"},
}
RULE_TYPE = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"


@contextmanager
def running_pack(config: dict[str, str]) -> Iterator[analyzer_pb2_grpc.AnalyzerStub]:
    """Run the pack with a stack's configuration in Pulumi's format while the block runs."""
    environment = os.environ | {
        "PULUMI_CONFIG": json.dumps({f"sluice:{key}": value for key, value in config.items()}),
        "PULUMI_PROJECT": "sluice",
        "PULUMI_STACK": "test",
        "PULUMI_DRY_RUN": "true",
    }
    command = [sys.executable, "-u", "-m", "pulumi.policy", "127.0.0.1:0", str(INFRA / "policy")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield analyzer_pb2_grpc.AnalyzerStub(channel)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def pack() -> Iterator[analyzer_pb2_grpc.AnalyzerStub]:
    with running_pack({}) as stub:
        yield stub


@pytest.fixture(scope="module")
def stack() -> Graph:
    return graph()


def fields(resource: Resource, properties: dict[str, object]) -> dict[str, Any]:
    """Return the fields that ``AnalyzeRequest`` and ``AnalyzerResource`` have in common."""
    struct = struct_pb2.Struct()
    struct.update(properties)
    delete_before_replace = resource.options.get("delete_before_replace")
    options = analyzer_pb2.AnalyzerResourceOptions(
        protect=bool(resource.options.get("protect")),
        ignoreChanges=ignored_inputs(resource),
        deleteBeforeReplace=bool(delete_before_replace),
        deleteBeforeReplaceDefined=delete_before_replace is not None,
    )
    return {
        "type": resource.type, "name": resource.name, "urn": urn_of(resource),
        "properties": struct, "options": options,
    }  # fmt: skip


def analyze(pack: analyzer_pb2_grpc.AnalyzerStub, resource: Resource) -> list[analyzer_pb2.AnalyzeDiagnostic]:
    request = analyzer_pb2.AnalyzeRequest(**fields(resource, resource.inputs))
    return list(pack.Analyze(request, timeout=TIMEOUT_SECONDS).diagnostics)


def analyze_stack(
    pack: analyzer_pb2_grpc.AnalyzerStub, resources: list[Resource]
) -> list[analyzer_pb2.AnalyzeDiagnostic]:
    messages = [
        analyzer_pb2.AnalyzerResource(
            **fields(resource, resource.inputs | outputs(resource)),
            propertyDependencies={
                key: analyzer_pb2.AnalyzerPropertyDependencies(urns=[urn_of(target) for target in targets])
                for key, targets in dependencies(resource, resources).items()
            },
        )
        for resource in resources
    ]
    request = analyzer_pb2.AnalyzeStackRequest(resources=messages)
    return list(pack.AnalyzeStack(request, timeout=TIMEOUT_SECONDS).diagnostics)


def test_the_pack_reports_every_rule_to_pulumi(pack: analyzer_pb2_grpc.AnalyzerStub) -> None:
    info = pack.GetAnalyzerInfo(analyzer_pb2.google_dot_protobuf_dot_empty__pb2.Empty(), timeout=TIMEOUT_SECONDS)
    assert info.name == "sluice"
    assert [policy.name for policy in info.policies] == [rule.name for rule in RULES]
    assert {policy.enforcementLevel for policy in info.policies} == {analyzer_pb2.MANDATORY}
    stack_policies = {policy.name for policy in info.policies if policy.policy_type == analyzer_pb2.POLICY_TYPE_STACK}
    assert stack_policies == {rule.name for rule in RULES if isinstance(rule.policy, StackValidationPolicy)}


def test_a_resource_that_breaks_a_rule_is_refused(pack: analyzer_pb2_grpc.AnalyzerStub) -> None:
    broken = Resource("SecurityGroupIngressRule", RULE_TYPE, "open", OPEN_TO_ALL, {})
    [diagnostic] = analyze(pack, broken)
    assert (diagnostic.policyName, diagnostic.enforcementLevel) == ("no-public-ingress", analyzer_pb2.MANDATORY)
    assert "Ingress from 0.0.0.0/0 is allowed" in diagnostic.message


def test_each_resource_and_the_whole_stack_pass(pack: analyzer_pb2_grpc.AnalyzerStub, stack: Graph) -> None:
    for resource in stack.resources:
        assert analyze(pack, resource) == []
    assert analyze_stack(pack, stack.resources) == []


def test_a_bucket_without_versioning_is_reported(pack: analyzer_pb2_grpc.AnalyzerStub, stack: Graph) -> None:
    versioning = stack.one("BucketVersioning", "lake")
    diagnostics = analyze_stack(pack, [resource for resource in stack.resources if resource is not versioning])
    assert [(diagnostic.policyName, diagnostic.urn) for diagnostic in diagnostics] == [
        ("buckets-are-complete", urn_of(stack.one("Bucket", "lake")))
    ]


def test_the_pack_reads_the_configuration_of_the_stack(stack: Graph) -> None:
    lake = stack.one("Bucket", "lake")
    unprotected = replace(lake, options=lake.options | {"protect": False})
    with running_pack({"protect": "false"}) as permissive, running_pack({"protect": "true"}) as strict:
        assert analyze(permissive, unprotected) == []
        assert [diagnostic.policyName for diagnostic in analyze(strict, unprotected)] == ["resources-are-protected"]
