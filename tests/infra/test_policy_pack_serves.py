"""The policy pack as Pulumi runs it: a process that serves gRPC, and is asked for each resource and for the stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from google.protobuf import struct_pb2
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc
from pulumi_policy import StackValidationPolicy
from rules import RULES

from tests.support.graph import INFRA, Graph, Resource, graph
from tests.support.policy_pack import dependencies, ignored, outputs, urn_of

SECONDS = 60.0
OPEN_TO_ALL = {
    "securityGroupId": "sg-1",
    "ipProtocol": "tcp",
    "fromPort": 2281,
    "toPort": 2281,
    "cidrIpv4": "0.0.0.0/0",
    "tags": {"Project": "sluice", "Stack": "test"},
}
RULE = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"


@contextmanager
def served(config: dict[str, str]) -> Iterator[analyzer_pb2_grpc.AnalyzerStub]:
    """Start the pack with a stack's configuration, in Pulumi's words; end it afterwards."""
    env = os.environ | {
        "PULUMI_CONFIG": json.dumps({f"sluice:{key}": value for key, value in config.items()}),
        "PULUMI_PROJECT": "sluice",
        "PULUMI_STACK": "test",
        "PULUMI_DRY_RUN": "true",
    }
    command = [sys.executable, "-u", "-m", "pulumi.policy", "127.0.0.1:0", str(INFRA / "policy")]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield analyzer_pb2_grpc.AnalyzerStub(channel)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def pack() -> Iterator[analyzer_pb2_grpc.AnalyzerStub]:
    with served({}) as stub:
        yield stub


@pytest.fixture(scope="module")
def stack() -> Graph:
    return graph()


def struct(values: dict[str, object]) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    made.update(values)
    return made


def options(resource: Resource) -> analyzer_pb2.AnalyzerResourceOptions:
    before = resource.options.get("delete_before_replace")
    return analyzer_pb2.AnalyzerResourceOptions(
        protect=bool(resource.options.get("protect")),
        ignoreChanges=ignored(resource),
        deleteBeforeReplace=bool(before),
        deleteBeforeReplaceDefined=before is not None,
    )


def in_stack(resource: Resource, resources: list[Resource]) -> analyzer_pb2.AnalyzerResource:
    return analyzer_pb2.AnalyzerResource(
        type=resource.type,
        name=resource.name,
        urn=urn_of(resource),
        properties=struct(resource.inputs | outputs(resource)),
        options=options(resource),
        propertyDependencies={
            key: analyzer_pb2.AnalyzerPropertyDependencies(urns=[urn_of(each) for each in makers])
            for key, makers in dependencies(resource, resources).items()
        },
    )


def asked(resource: Resource) -> analyzer_pb2.AnalyzeRequest:
    return analyzer_pb2.AnalyzeRequest(
        type=resource.type,
        name=resource.name,
        urn=urn_of(resource),
        properties=struct(resource.inputs),
        options=options(resource),
    )


def test_it_tells_pulumi_of_every_rule(pack: analyzer_pb2_grpc.AnalyzerStub) -> None:
    info = pack.GetAnalyzerInfo(analyzer_pb2.google_dot_protobuf_dot_empty__pb2.Empty(), timeout=SECONDS)
    assert info.name == "sluice"
    assert [each.name for each in info.policies] == [each.name for each in RULES]
    assert {each.enforcementLevel for each in info.policies} == {analyzer_pb2.MANDATORY}
    kinds = {each.name: each.policy_type for each in info.policies}
    assert {name for name, kind in kinds.items() if kind == analyzer_pb2.POLICY_TYPE_STACK} == {
        each.name for each in RULES if isinstance(each.policy, StackValidationPolicy)
    }


def test_a_resource_that_breaks_a_rule_is_refused(pack: analyzer_pb2_grpc.AnalyzerStub) -> None:
    broken = Resource("SecurityGroupIngressRule", RULE, "open", OPEN_TO_ALL, [], {})
    answer = pack.Analyze(asked(broken), timeout=SECONDS)
    assert [each.policyName for each in answer.diagnostics] == ["ingress-from-inside"]
    assert answer.diagnostics[0].enforcementLevel == analyzer_pb2.MANDATORY
    assert "Ingress from 0.0.0.0/0 is allowed" in answer.diagnostics[0].message


def test_the_program_s_resources_pass_one_by_one_and_all_together(
    pack: analyzer_pb2_grpc.AnalyzerStub, stack: Graph
) -> None:
    for each in stack.resources:
        assert list(pack.Analyze(asked(each), timeout=SECONDS).diagnostics) == []
    every = [in_stack(each, stack.resources) for each in stack.resources]
    answer = pack.AnalyzeStack(analyzer_pb2.AnalyzeStackRequest(resources=every), timeout=SECONDS)
    assert list(answer.diagnostics) == []


def test_a_stack_that_lacks_a_protection_is_refused_by_the_name_of_what_lacks_it(
    pack: analyzer_pb2_grpc.AnalyzerStub, stack: Graph
) -> None:
    kept = [each for each in stack.resources if each.kind != "BucketVersioning" or each.name != "lake"]
    every = [in_stack(each, kept) for each in kept]
    answer = pack.AnalyzeStack(analyzer_pb2.AnalyzeStackRequest(resources=every), timeout=SECONDS)
    assert [(each.policyName, each.urn) for each in answer.diagnostics] == [
        ("buckets-are-complete", urn_of(stack.one("Bucket", "lake")))
    ]


def test_it_reads_the_stack_s_own_configuration(stack: Graph) -> None:
    lake = stack.one("Bucket", "lake")
    lake.options["protect"] = False
    try:
        with served({"protect": "false"}) as permitting, served({"protect": "true"}) as strict:
            assert list(permitting.Analyze(asked(lake), timeout=SECONDS).diagnostics) == []
            refused = strict.Analyze(asked(lake), timeout=SECONDS).diagnostics
            assert [each.policyName for each in refused] == ["protected"]
    finally:
        lake.options["protect"] = True
