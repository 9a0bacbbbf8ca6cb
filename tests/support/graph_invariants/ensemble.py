"""Invariants of the ensemble that no rule of the policy pack checks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.support.graph import Graph, Resource
from tests.support.graph_invariants.registry import ELECTION, QUORUM, invariant, node_variable


@invariant
def members_have_volumes_and_addresses_of_their_own(graph: Graph) -> Iterator[str]:
    """A member mounts its attached volumes, and its zoo.cfg has the address of its interface."""
    for instance in graph.some("Instance"):
        attached = {
            each.inputs["volumeId"]
            for each in graph.all("VolumeAttachment")
            if each.inputs["instanceId"] == f"{instance.name}-id"
        }
        mounted = {node_variable(instance, "DATA_VOLUME"), node_variable(instance, "LOG_VOLUME")}
        if attached != mounted or len(mounted) != 2:
            yield f"{instance}: {attached}"
        node = node_variable(instance, "NODE")
        [parameter] = [
            each for each in graph.all("Parameter") if each.inputs["name"] == node_variable(instance, "PARAMETER")
        ]
        told = dict(line.split("=", 1) for line in parameter.inputs["value"].splitlines())
        interface = instance.inputs["primaryNetworkInterface"]["networkInterfaceId"].removesuffix("-id")
        address = graph.outputs["zookeeper_connection_string"].split(",")[int(node) - 1].split(":")[0]
        if not interface.endswith(f"-{node}"):
            yield f"{instance}: {interface}"
        if told.get(f"server.{node}") != f"{address}:{QUORUM}:{ELECTION}" or told["secureClientPortAddress"] != address:
            yield f"{instance}: {told.get(f'server.{node}')}, {told['secureClientPortAddress']}"


@invariant
def members_without_data_elect_nobody_but_in_a_new_ensemble(graph: Graph) -> Iterator[str]:
    """A node may read and set the mark of its ensemble, which no later `up` takes back."""
    for instance in graph.some("Instance"):
        [mark] = [
            each for each in graph.all("Parameter") if each.inputs["name"] == node_variable(instance, "INITIALIZED")
        ]
        if mark.inputs["value"] != "no" or mark.options["ignore_changes"] != ["value"]:
            yield f"{mark}: {mark.inputs['value']}, {mark.options['ignore_changes']}"
        policy = graph.one("RolePolicy", instance.name).document()
        arn = f"arn:aws:ssm:eu-central-1:123456789012:parameter{mark.inputs['name']}"
        for action in ("ssm:GetParameter", "ssm:PutParameter"):
            if not any(arn == each["Resource"] and action in each["Action"] for each in policy["Statement"]):
                yield f"{instance}: no {action} of {arn}"


@invariant
def a_majority_survives_a_zone(graph: Graph) -> Iterator[str]:
    made = {f"{each.name}-id": each.inputs["availabilityZone"] for each in graph.some("Subnet")}
    # In whatever order they are registered.
    subnets = {each.name.split("-")[1]: each.inputs["subnetId"] for each in graph.some("NetworkInterface")}
    zones = [made.get(subnet, subnet) for subnet in subnets.values()]
    for zone in set(zones):
        if zones.count(zone) * 2 >= len(zones):
            yield f"{zone}: {zones}"
    for each in graph.some("Volume"):
        if each.inputs["availabilityZone"] != f"zone-of-{subnets[each.name.split('-')[1]]}":
            yield f"{each}: {each.inputs['availabilityZone']}"


@invariant
def a_running_machine_keeps_its_volumes(graph: Graph) -> Iterator[str]:
    for attachment in graph.some("VolumeAttachment"):
        if attachment.inputs.get("stopInstanceBeforeDetaching") is not True:
            yield str(attachment)


@invariant
def a_member_answers_few_commands_and_allows_long_sessions(graph: Graph) -> Iterator[str]:
    """The rules check the other settings; of the authorities they check only that they differ."""
    expected = {
        "4lw.commands.whitelist": "srvr,mntr,ruok", "standaloneEnabled": "false",
        "ssl.trustStore.location": "/etc/zookeeper/tls/clients-ca.pem",
        "ssl.quorum.trustStore.location": "/etc/zookeeper/tls/members-ca.pem",
    }  # fmt: skip
    for parameter in _configurations(graph):
        settings = dict(line.split("=", 1) for line in parameter.inputs["value"].splitlines())
        for key, value in expected.items():
            if settings.get(key) != value:
                yield f"{parameter}: {key}={settings.get(key)}"
        if int(settings["maxSessionTimeout"]) < 60_000:
            yield f"{parameter}: maxSessionTimeout={settings['maxSessionTimeout']}"


@invariant
def nodes_may_change_the_acl_of_the_lock_root(graph: Graph) -> Iterator[str]:
    """Without that right ``sluice-lock-root`` fails at the second start of a node."""
    for instance in graph.some("Instance"):
        for name in ("LOCK_ROOT_ACL", "PARENT_ACL"):
            if not (acl := node_variable(instance, name)).startswith("x509:CN=sluice-node:cdrwa,"):
                yield f"{instance}: {name}={acl}"


@invariant
def what_clients_make_is_not_for_everybody(graph: Graph) -> Iterator[str]:
    for each in graph.some("SecretVersion"):
        acl = each.document("secretString").get("acl")
        if acl is not None and ("world:" in acl or "x509:CN=sluice-operator:cdrwa" not in acl):
            yield f"{each}: {acl}"
    for each in _configurations(graph):
        if "X509AuthenticationProvider.superUser=CN=sluice-operator\n" not in each.inputs["value"]:
            yield f"{each}: nobody can take away what a client has made for itself alone"


@invariant
def certificates_are_renewed_in_time(graph: Graph) -> Iterator[str]:
    """Before the alarm goes off, and not all the time."""
    for each in graph.some("LocallySignedCert"):
        early, whole = each.inputs.get("earlyRenewalHours", 0), each.inputs["validityPeriodHours"]
        if not 60 * 24 <= early <= whole / 2:
            yield f"{each}: {early} of {whole} hours"


@invariant
def alarms_watch_metrics_that_nodes_send(graph: Graph) -> Iterator[str]:
    heard = _metrics(graph)
    for each in graph.some("MetricAlarm"):
        told = (each.inputs["namespace"], each.inputs["metricName"], frozenset(each.inputs["dimensions"]))
        if told not in heard:
            yield f"{each}: nobody tells {told}"
    watched = {each.inputs["metricName"] for each in graph.some("MetricAlarm")}
    wanted = {"synced_followers", "uptime", "avg_latency", "disk_used_percent", "open_file_descriptor_count"}
    if graph.some("Instance") and wanted - watched:
        yield f"nobody watches {sorted(wanted - watched)}"


def _metrics(graph: Graph) -> set[tuple[str, str, frozenset[str]]]:
    """Return what the nodes' files tell CloudWatch: namespace, metric, names of the dimensions."""
    files = {
        Path(each.inputs["source"]["of"]).name: Path(each.inputs["source"]["of"]).read_text(encoding="utf-8")
        for each in graph.some("BucketObject")
        if each.inputs["source"]["asset"] == "FileAsset"
    }
    if not files:
        return set()
    agent = json.loads(files["cloudwatch-agent.json"])
    labels = set(yaml.safe_load(files["prometheus.yaml"])["scrape_configs"][0]["static_configs"][0]["labels"])
    found = set()
    emf = agent["logs"]["metrics_collected"]["prometheus"]["emf_processor"]
    for declared in emf["metric_declaration"]:
        for dimensions in declared["dimensions"]:
            if set(dimensions) <= labels:
                names = [selector.strip("^$") for selector in declared["metric_selectors"]]
                found |= {(emf["metric_namespace"], name, frozenset(dimensions)) for name in names}
    for dimensions in agent["metrics"]["aggregation_dimensions"]:
        if set(dimensions) <= {"path", *agent["metrics"]["metrics_collected"]["disk"]["append_dimensions"]}:
            found.add((agent["metrics"]["namespace"], "disk_used_percent", frozenset(dimensions)))
    put = re.sub(r"\\\n", " ", files["sluice-certificates"])
    match = re.search(r"--namespace (\S+) --metric-name (\S+)\s+--dimensions \"(\S+)\"", put)
    assert match, put
    found.add((match[1], match[2], frozenset(each.partition("=")[0] for each in match[3].split(","))))
    return found


def _configurations(graph: Graph) -> list[Resource]:
    return [each for each in graph.some("Parameter") if each.inputs["name"].endswith("/zoo.cfg")]
