"""Invariants of the ensemble that no rule of the policy pack checks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.support.graph import Graph, Resource
from tests.support.graph_invariants.registry import ELECTION_PORT, QUORUM_PORT, invariant, node_variable


@invariant
def each_member_has_its_own_volumes_and_address(graph: Graph) -> Iterator[str]:
    """A member mounts its attached volumes. Its zoo.cfg contains the address of its interface."""
    for instance in graph.some("Instance"):
        attached_volumes = {
            attachment.inputs["volumeId"]
            for attachment in graph.all("VolumeAttachment")
            if attachment.inputs["instanceId"] == f"{instance.name}-id"
        }
        mounted_volumes = {node_variable(instance, "DATA_VOLUME"), node_variable(instance, "LOG_VOLUME")}
        if attached_volumes != mounted_volumes or len(mounted_volumes) != 2:
            yield f"{instance} has the volumes {attached_volumes} and mounts {mounted_volumes}"
        node = node_variable(instance, "NODE")
        settings = _settings(_parameter(graph, node_variable(instance, "PARAMETER")))
        interface = instance.inputs["primaryNetworkInterface"]["networkInterfaceId"].removesuffix("-id")
        address = graph.outputs["zookeeper_connection_string"].split(",")[int(node) - 1].split(":")[0]
        if not interface.endswith(f"-{node}"):
            yield f"{instance} with node id {node} has the interface {interface}"
        addresses = (settings.get(f"server.{node}"), settings["secureClientPortAddress"])
        if addresses != (f"{address}:{QUORUM_PORT}:{ELECTION_PORT}", address):
            yield f"{instance} has the address {address}, but its zoo.cfg has {addresses}"


@invariant
def members_without_data_vote_only_in_a_new_ensemble(graph: Graph) -> Iterator[str]:
    """The parameter ``initialized`` is first "no". A node may read and set it, and a later `up` does not reset it."""
    for instance in graph.some("Instance"):
        initialized = _parameter(graph, node_variable(instance, "INITIALIZED"))
        value, ignored_changes = initialized.inputs["value"], initialized.options["ignore_changes"]
        if value != "no" or ignored_changes != ["value"]:
            yield f"{initialized} begins with {value!r} and ignores changes of {ignored_changes}"
        policy = graph.one("RolePolicy", instance.name).document()
        arn = f"arn:aws:ssm:eu-central-1:123456789012:parameter{initialized.inputs['name']}"
        for action in ("ssm:GetParameter", "ssm:PutParameter"):
            if not any(arn == entry["Resource"] and action in entry["Action"] for entry in policy["Statement"]):
                yield f"{instance} is not allowed {action} on {arn}"


@invariant
def no_zone_holds_a_majority(graph: Graph) -> Iterator[str]:
    zone_by_subnet = {f"{subnet.name}-id": subnet.inputs["availabilityZone"] for subnet in graph.some("Subnet")}
    interfaces = graph.some("NetworkInterface")
    subnets = {interface.name.split("-")[1]: interface.inputs["subnetId"] for interface in interfaces}
    zones = [zone_by_subnet.get(subnet, subnet) for subnet in subnets.values()]
    for zone in set(zones):
        if zones.count(zone) * 2 >= len(zones):
            yield f"half of the members or more are in {zone}: {zones}"
    for volume in graph.some("Volume"):
        if volume.inputs["availabilityZone"] != f"zone-of-{subnets[volume.name.split('-')[1]]}":
            yield f"{volume} is in {volume.inputs['availabilityZone']}, another zone than its member"


@invariant
def a_running_machine_keeps_its_volumes(graph: Graph) -> Iterator[str]:
    for attachment in graph.some("VolumeAttachment"):
        if attachment.inputs.get("stopInstanceBeforeDetaching") is not True:
            yield f"{attachment} does not stop the machine before it detaches the volume"


@invariant
def a_member_answers_few_commands_and_allows_long_sessions(graph: Graph) -> Iterator[str]:
    """The rules check the other settings. Of the two authorities they check only that they differ."""
    expected_settings = {
        "4lw.commands.whitelist": "srvr,mntr,ruok", "standaloneEnabled": "false",
        "ssl.trustStore.location": "/etc/zookeeper/tls/clients-ca.pem",
        "ssl.quorum.trustStore.location": "/etc/zookeeper/tls/members-ca.pem",
    }  # fmt: skip
    for parameter in _configurations(graph):
        settings = _settings(parameter)
        for key, value in expected_settings.items():
            if settings.get(key) != value:
                yield f"{parameter}: {key}={settings.get(key)}"
        if int(settings["maxSessionTimeout"]) < 60_000:
            yield f"{parameter}: maxSessionTimeout={settings['maxSessionTimeout']}"


@invariant
def nodes_may_change_the_acl_of_the_lock_root(graph: Graph) -> Iterator[str]:
    """Without this right ``sluice-lock-root`` fails at the second start of a node."""
    for instance in graph.some("Instance"):
        for name in ("LOCK_ROOT_ACL", "PARENT_ACL"):
            if not (acl := node_variable(instance, name)).startswith("x509:CN=sluice-node:cdrwa,"):
                yield f"{instance} does not give all rights to nodes: {name}={acl}"


@invariant
def znodes_of_clients_are_not_open_to_everybody(graph: Graph) -> Iterator[str]:
    for secret in graph.some("SecretVersion"):
        acl = secret.document("secretString").get("acl")
        if acl is not None and ("world:" in acl or "x509:CN=sluice-operator:cdrwa" not in acl):
            yield f"{secret} opens znodes to everybody, or does not give all rights to operators: acl={acl}"
    for parameter in _configurations(graph):
        if "X509AuthenticationProvider.superUser=CN=sluice-operator\n" not in parameter.inputs["value"]:
            yield f"{parameter}: no role can delete a znode whose ACL names one client only"


@invariant
def certificates_are_renewed_in_time(graph: Graph) -> Iterator[str]:
    """A renewal comes before the alarm, but not at every `up`."""
    for certificate in graph.some("LocallySignedCert"):
        inputs = certificate.inputs
        renewal_hours, validity_hours = inputs.get("earlyRenewalHours", 0), inputs["validityPeriodHours"]
        if not 60 * 24 <= renewal_hours <= validity_hours / 2:
            yield f"{certificate} is valid for {validity_hours} hours, and renewed {renewal_hours} hours before its end"


@invariant
def alarms_watch_metrics_that_nodes_publish(graph: Graph) -> Iterator[str]:
    published_metrics = _metrics(graph)
    alarms = graph.some("MetricAlarm")
    for alarm in alarms:
        metric = (alarm.inputs["namespace"], alarm.inputs["metricName"], frozenset(alarm.inputs["dimensions"]))
        if metric not in published_metrics:
            yield f"{alarm}: no node publishes {metric}"
    required_metrics = {"synced_followers", "uptime", "avg_latency", "disk_used_percent", "open_file_descriptor_count"}
    unwatched_metrics = required_metrics - {alarm.inputs["metricName"] for alarm in alarms}
    if graph.some("Instance") and unwatched_metrics:
        yield f"no alarm watches {sorted(unwatched_metrics)}"


def _metrics(graph: Graph) -> set[tuple[str, str, frozenset[str]]]:
    """Return the metrics that the nodes' files publish: namespace, name, names of the dimensions."""
    sources = [item.inputs["source"] for item in graph.some("BucketObject")]
    paths = [Path(source["path"]) for source in sources if source["asset"] == "FileAsset"]
    files = {path.name: path.read_text(encoding="utf-8") for path in paths}
    if not files:
        return set()
    agent = json.loads(files["cloudwatch-agent.json"])
    labels = set(yaml.safe_load(files["prometheus.yaml"])["scrape_configs"][0]["static_configs"][0]["labels"])
    metrics = set()
    emf = agent["logs"]["metrics_collected"]["prometheus"]["emf_processor"]
    for declaration in emf["metric_declaration"]:
        for dimensions in declaration["dimensions"]:
            if set(dimensions) <= labels:
                names = [selector.strip("^$") for selector in declaration["metric_selectors"]]
                metrics |= {(emf["metric_namespace"], name, frozenset(dimensions)) for name in names}
    for dimensions in agent["metrics"]["aggregation_dimensions"]:
        if set(dimensions) <= {"path", *agent["metrics"]["metrics_collected"]["disk"]["append_dimensions"]}:
            metrics.add((agent["metrics"]["namespace"], "disk_used_percent", frozenset(dimensions)))
    script = re.sub(r"\\\n", " ", files["sluice-certificates"])
    match = re.search(r"--namespace (\S+) --metric-name (\S+)\s+--dimensions \"(\S+)\"", script)
    assert match, script
    metrics.add((match[1], match[2], frozenset(pair.partition("=")[0] for pair in match[3].split(","))))
    return metrics


def _configurations(graph: Graph) -> list[Resource]:
    return [parameter for parameter in graph.some("Parameter") if parameter.inputs["name"].endswith("/zoo.cfg")]


def _parameter(graph: Graph, name: str) -> Resource:
    (match,) = [parameter for parameter in graph.all("Parameter") if parameter.inputs["name"] == name]
    return match


def _settings(configuration: Resource) -> dict[str, str]:
    """Return the settings of a zoo.cfg."""
    return dict(line.split("=", 1) for line in configuration.inputs["value"].splitlines())
