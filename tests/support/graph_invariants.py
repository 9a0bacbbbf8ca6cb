"""What holds for every stack, asked of the whole graph. Each returns what is wrong; nothing if all is well."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.graph import Graph, Resource
from tests.support.iam_evaluator import allowed, s3, s3_put

INVARIANTS: dict[str, Callable[[Graph], Iterator[str]]] = {}
CLIENT, QUORUM, ELECTION = 2281, 2888, 3888
WORLD = {"0.0.0.0/0", "::/0"}
_WAYS = ("cidr", "referenced", "prefix")
_MEMBERS_RULES = ("zookeeper-quorum", "zookeeper-election", "zookeeper-aws", "zookeeper-s3")
_SECRET = re.compile(r"PRIVATE KEY")
_ADMINISTRATOR = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
_SOMEBODY = "arn:aws:iam::123456789012:role/somebody"
_VERSION = "_delta_log/00000000000000000007.json"


def invariant(check: Callable[[Graph], Iterator[str]]) -> Callable[[Graph], Iterator[str]]:
    INVARIANTS[check.__name__.replace("_", " ")] = check
    return check


# -- network


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
        own = f"zookeeper-{_variable(instance, 'NODE')}"
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


# -- storage


def _of_bucket(graph: Graph, kind: str, bucket: Resource) -> list[Resource]:
    return [each for each in graph.some(kind) if each.inputs["bucket"] == bucket.name]


@invariant
def buckets_are_private(graph: Graph) -> Iterator[str]:
    for bucket in graph.some("Bucket"):
        blocked = _of_bucket(graph, "BucketPublicAccessBlock", bucket)
        keys = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
        owned = _of_bucket(graph, "BucketOwnershipControls", bucket)
        if not blocked or not all(blocked[0].inputs.get(key) is True for key in keys):
            yield f"{bucket}: public access"
        if not owned or owned[0].inputs["rule"]["objectOwnership"] != "BucketOwnerEnforced":
            yield f"{bucket}: ACLs"


@invariant
def buckets_keep_versions(graph: Graph) -> Iterator[str]:
    for bucket in graph.some("Bucket"):
        found = _of_bucket(graph, "BucketVersioning", bucket)
        if not found or found[0].inputs["versioningConfiguration"]["status"] != "Enabled":
            yield str(bucket)


@invariant
def everything_is_encrypted(graph: Graph) -> Iterator[str]:
    for bucket in graph.some("Bucket"):
        found = _of_bucket(graph, "BucketServerSideEncryptionConfiguration", bucket)
        rules = found[0].inputs["rules"] if found else []
        if not any(each.get("applyServerSideEncryptionByDefault") for each in rules):
            yield str(bucket)
    for volume in graph.some("Volume"):
        if volume.inputs.get("encrypted") is not True:
            yield str(volume)
    for instance in graph.some("Instance"):
        if instance.inputs.get("rootBlockDevice", {}).get("encrypted") is not True:
            yield str(instance)
    for key in graph.some("Key"):
        if key.inputs.get("enableKeyRotation") is not True:
            yield str(key)


@invariant
def the_lake_has_the_key_that_was_asked_for(graph: Graph) -> Iterator[str]:
    for key in graph.some("Key"):
        [told] = [each for each in graph.all("BucketServerSideEncryptionConfiguration") if each.name == "lake"]
        rule = told.inputs["rules"][0]["applyServerSideEncryptionByDefault"]
        if rule.get("sseAlgorithm") != "aws:kms" or key.name not in rule.get("kmsMasterKeyId", ""):
            yield str(told)


@invariant
def buckets_speak_tls_only(graph: Graph) -> Iterator[str]:
    for bucket in graph.some("Bucket"):
        statements = [
            statement
            for each in _of_bucket(graph, "BucketPolicy", bucket)
            for statement in each.document()["Statement"]
        ]
        if not any(
            each["Effect"] == "Deny"
            and each["Action"] == "s3:*"
            and each["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
            for each in statements
        ):
            yield str(bucket)


@invariant
def nothing_ends_a_live_object(graph: Graph) -> Iterator[str]:
    for bucket in graph.some("Bucket"):
        for each in _of_bucket(graph, "BucketLifecycleConfiguration", bucket):
            for rule in each.inputs["rules"]:
                if rule.get("expiration") or rule.get("transitions"):
                    yield f"{bucket}: {rule['id']}"


@invariant
def a_bucket_that_is_not_ours_is_left_alone(graph: Graph) -> Iterator[str]:
    made = {each.name for each in graph.some("Bucket")}
    for each in graph.resources:
        if each.kind.startswith("Bucket") and each.kind != "Bucket" and each.inputs["bucket"] not in made:
            yield str(each)


@invariant
def the_bucket_refuses_unsafe_commits(graph: Graph) -> Iterator[str]:
    """Even of somebody whose own policies allow everything; and it lets safe ones pass."""
    for policy in graph.some("BucketPolicy"):
        if policy.name != "lake":
            continue
        statements = [_ADMINISTRATOR, *policy.document()["Statement"]]
        told = graph.outputs["commit_policy_statements"]
        prefixes = ["silver/", "gold/daily/"] if "/silver/" in str(told) else [""]
        for version in (
            f"arn:aws:s3:::lake/{prefix}{table}{_VERSION}" for prefix in prefixes for table in ("", "a/b/")
        ):
            if allowed(s3_put(_SOMEBODY, version, conditional=False), statements):
                yield f"{version} may be overwritten"
            if allowed(s3(_SOMEBODY, "DeleteObject", version), statements):
                yield f"{version} may be deleted"
            if not allowed(s3_put(_SOMEBODY, version, conditional=True), statements):
                yield f"{version} cannot be put"
            if not allowed(s3(graph.outputs["maintenance_role_arn"], "DeleteObject", version), statements):
                yield f"{version} cannot be cleaned up"


@invariant
def appenders_commit_safely_in_any_bucket(graph: Graph) -> Iterator[str]:
    """By their own policy, in a bucket that has none."""
    statements = graph.one("Policy", "access-appender").document()["Statement"]
    bucket = f"arn:aws:s3:::{graph.outputs['delta_lake_bucket_name']}"
    prefix = "silver/" if f"{bucket}/silver/*" in str(statements) else ""
    version = f"{bucket}/{prefix}flights/{_VERSION}"
    if not allowed(s3_put(_SOMEBODY, version, conditional=True), statements):
        yield "cannot commit"
    if allowed(s3_put(_SOMEBODY, version, conditional=False), statements):
        yield "may overwrite"
    for name in (version, version.replace(".json", ".checkpoint.parquet")):
        if allowed(s3(_SOMEBODY, "DeleteObject", name), statements):
            yield f"may delete {name}"


# -- the ensemble


@invariant
def members_have_ids_and_addresses_of_their_own(graph: Graph) -> Iterator[str]:
    """Ids 1 to n; each parameter lists all members; each member binds to the address of its own interface."""
    instances = graph.some("Instance")
    ids = sorted(int(_variable(each, "NODE")) for each in instances)
    if ids != list(range(1, len(instances) + 1)):
        yield f"ids {ids}"
    interfaces = [each.inputs["primaryNetworkInterface"]["networkInterfaceId"] for each in instances]
    if len(set(interfaces)) != len(instances):
        yield f"interfaces {interfaces}"
    volumes = [_variable(each, name) for each in instances for name in ("DATA_VOLUME", "LOG_VOLUME")]
    if len(set(volumes)) != 2 * len(instances):
        yield f"volumes {volumes}"
    lists = set()
    for instance in instances:
        attached = {
            each.inputs["volumeId"]
            for each in graph.all("VolumeAttachment")
            if each.inputs["instanceId"] == f"{instance.name}-id"
        }
        if attached != {_variable(instance, "DATA_VOLUME"), _variable(instance, "LOG_VOLUME")}:
            yield f"{instance}: {attached}"
        node = _variable(instance, "NODE")
        [parameter] = [
            each for each in graph.all("Parameter") if each.inputs["name"] == _variable(instance, "PARAMETER")
        ]
        told = dict(line.split("=", 1) for line in parameter.inputs["value"].splitlines())
        lists.add(tuple(sorted((key, value) for key, value in told.items() if key.startswith("server."))))
        interface = instance.inputs["primaryNetworkInterface"]["networkInterfaceId"].removesuffix("-id")
        address = graph.outputs["zookeeper_connection_string"].split(",")[int(node) - 1].split(":")[0]
        if not interface.endswith(f"-{node}"):
            yield f"{instance}: {interface}"
        if told.get(f"server.{node}") != f"{address}:{QUORUM}:{ELECTION}" or told["secureClientPortAddress"] != address:
            yield f"{instance}: {told.get(f'server.{node}')}, {told['secureClientPortAddress']}"
    if instances and (len(lists) != 1 or len(next(iter(lists))) != len(instances)):
        yield f"lists of members {lists}"


@invariant
def members_without_data_elect_nobody_but_in_a_new_ensemble(graph: Graph) -> Iterator[str]:
    """A node may read and set the mark of its ensemble, which no later `up` takes back."""
    for each in _configurations(graph):
        if "db.autocreate=false" not in each.inputs["value"].splitlines():
            yield f"{each}: two of them would serve an empty tree"
    for instance in graph.some("Instance"):
        [mark] = [each for each in graph.all("Parameter") if each.inputs["name"] == _variable(instance, "INITIALIZED")]
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
def a_node_is_replaced_only_when_asked_for(graph: Graph) -> Iterator[str]:
    """A changed image, type or user data is ignored, but by at most one node; the old machine goes first."""
    taking = []
    for each in graph.some("Instance"):
        if not {"ami", "instance_type", "user_data"} <= set(each.options["ignore_changes"] or ()):
            taking.append(each.name)
        if each.options["delete_before_replace"] is not True:
            yield f"{each}: its successor could not have its interface"
    if len(taking) > 1:
        yield f"{taking} at once"
    for each in graph.some("VolumeAttachment"):
        if (
            each.options["delete_before_replace"] is not True
            or each.inputs.get("stopInstanceBeforeDetaching") is not True
        ):
            yield str(each)


@invariant
def machines_give_their_role_to_nobody(graph: Graph) -> Iterator[str]:
    for each in graph.some("Instance"):
        told = each.inputs.get("metadataOptions", {})
        if told.get("httpTokens") != "required" or told.get("httpPutResponseHopLimit") != 1:
            yield str(each)


@invariant
def a_member_speaks_tls_only_and_knows_its_clients(graph: Graph) -> Iterator[str]:
    wanted = {
        "ssl.clientAuth": "need", "ssl.quorum.clientAuth": "need", "sslQuorum": "true", "enforce.auth.enabled": "true",
        "enforce.auth.schemes": "x509", "admin.enableServer": "false", "audit.enable": "true",
        "metricsProvider.httpHost": "127.0.0.1", "4lw.commands.whitelist": "srvr,mntr,ruok", "reconfigEnabled": "false",
        "standaloneEnabled": "false", "ssl.trustStore.location": "/etc/zookeeper/tls/clients-ca.pem",
        "ssl.quorum.trustStore.location": "/etc/zookeeper/tls/members-ca.pem",
    }  # fmt: skip
    for each in _configurations(graph):
        told = dict(line.split("=", 1) for line in each.inputs["value"].splitlines())
        if "clientPort" in told:
            yield f"{each}: a port in clear text"
        for key, value in wanted.items():
            if told.get(key) != value:
                yield f"{each}: {key}={told.get(key)}"
        if int(told["autopurge.purgeInterval"]) < 1 or int(told["maxSessionTimeout"]) < 60_000:
            yield f"{each}: purge or sessions"


@invariant
def the_lock_root_is_not_for_everybody(graph: Graph) -> Iterator[str]:
    for each in graph.some("Instance"):
        for name in ("LOCK_ROOT_ACL", "PARENT_ACL"):
            acl = _variable(each, name)
            if "world:" in acl or not acl.startswith("x509:CN=sluice-node:cdrwa,"):
                yield f"{each}: {name}={acl}"


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
def keys_are_in_secrets_and_nowhere_else(graph: Graph) -> Iterator[str]:
    for each in graph.resources:
        for key, value in each.inputs.items():
            if _SECRET.search(str(value)) and key not in each.secret:
                yield f"{each}: {key} is in clear text"
        if each.kind == "SecretVersion" and "secretString" not in each.secret:
            yield f"{each}: in clear text"
        if each.type.startswith("aws:") and each.kind != "SecretVersion" and _SECRET.search(str(each.inputs)):
            yield f"{each}: a key"


@invariant
def missing_data_is_an_alarm(graph: Graph) -> Iterator[str]:
    for each in graph.some("MetricAlarm"):
        if each.inputs.get("treatMissingData") != "breaching":
            yield str(each)
    heard = _metrics(graph)
    for each in graph.some("MetricAlarm"):
        told = (each.inputs["namespace"], each.inputs["metricName"], frozenset(each.inputs["dimensions"]))
        if told not in heard:
            yield f"{each}: nobody tells {told}"
    watched = {each.inputs["metricName"] for each in graph.some("MetricAlarm")}
    wanted = {"synced_followers", "uptime", "avg_latency", "disk_used_percent", "open_file_descriptor_count"}
    if graph.some("Instance") and wanted - watched:
        yield f"nobody watches {sorted(wanted - watched)}"


# -- who may do what


@invariant
def nobody_may_do_everything(graph: Graph) -> Iterator[str]:
    for each, statement in graph.policies():
        actions = statement.get("Action", [])
        actions = [actions] if isinstance(actions, str) else actions
        if statement["Effect"] != "Allow" or each.kind == "VpcEndpoint":
            continue
        if "NotAction" in statement or any(action == "*" or action.endswith(":*") for action in actions):
            yield f"{each}: {statement.get('Sid')}"
        if statement.get("Principal") in ("*", {"AWS": "*"}):
            yield f"{each}: anybody"


@invariant
def roles_are_for_services_and_for_this_account(graph: Graph) -> Iterator[str]:
    for each in graph.some("Role"):
        for statement in each.document("assumeRolePolicy")["Statement"]:
            principals = statement["Principal"].get("AWS", [])
            for principal in [principals] if isinstance(principals, str) else principals:
                if not principal.startswith("arn:aws:iam::123456789012:"):
                    yield f"{each}: {principal}"


@invariant
def a_node_reads_its_own_secret_alone(graph: Graph) -> Iterator[str]:
    instances = graph.some("Instance")
    for instance in instances:
        node = _variable(instance, "NODE")
        profile = graph.one("InstanceProfile", f"zookeeper-{node}")
        [policy] = [each for each in graph.all("RolePolicy") if each.inputs["role"].startswith(profile.inputs["role"])]
        allowed = [each for each in policy.document()["Statement"] if each["Sid"] in ("OwnSecret", "OwnConfiguration")]
        if [re.split("[:/]", each["Resource"])[-1] for each in allowed] != [f"zookeeper-{node}", "zoo.cfg"]:
            yield f"{policy}: {allowed}"
        if f"node-{node}/" not in allowed[1]["Resource"]:
            yield f"{policy}: {allowed[1]['Resource']}"


@invariant
def what_holds_data_is_protected(graph: Graph) -> Iterator[str]:
    """Outside of stacks to play with: then S3 itself refuses, too, for a bucket that is not empty is not deleted."""
    buckets = graph.some("Bucket")
    playing = any(each.inputs.get("forceDestroy") for each in buckets)
    parts = [each for each in graph.resources if each.kind.startswith("Bucket") and each.kind != "BucketObject"]
    for each in [*parts, *graph.some("Volume", "NetworkInterface", "Key"), *_nodes_own(graph)]:
        if bool(each.options["protect"]) == playing:
            yield str(each)


@invariant
def everything_is_tagged(graph: Graph) -> Iterator[str]:
    for each in graph.resources:
        if each.kind in TAGGABLE and not {"Project", "Stack", "ManagedBy"} <= set(each.inputs.get("tags") or ()):
            yield str(each)


TAGGABLE = {
    "Vpc", "Subnet", "RouteTable", "SecurityGroup", "DefaultSecurityGroup", "VpcEndpoint", "FlowLog", "LogGroup",
    "Role", "Policy", "InstanceProfile", "Bucket", "BucketObject", "Key", "NetworkInterface", "Volume", "Instance",
    "Secret",
    "Parameter", "MetricAlarm", "Eip", "NatGateway", "InternetGateway", "SecurityGroupIngressRule",
    "SecurityGroupEgressRule",
}  # fmt: skip


@invariant
def logs_do_not_grow_for_ever(graph: Graph) -> Iterator[str]:
    for each in graph.some("LogGroup"):
        if not each.inputs.get("retentionInDays"):
            yield str(each)


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


def _nodes_own(graph: Graph) -> list[Resource]:
    """Return the parameters whose value the nodes set."""
    return [each for each in graph.some("Parameter") if each.options["ignore_changes"]]


def _variable(instance: Resource, name: str) -> str:
    found = re.search(rf"^SLUICE_{name}=(?:'([^']*)'|(\S*))$", instance.inputs["userData"], re.MULTILINE)
    assert found, f"{instance}: no SLUICE_{name}"
    return found[1] if found[1] is not None else found[2]


def broken(graph: Graph) -> dict[str, list[str]]:
    """Return the invariants that do not hold, with what is wrong."""
    return {name: found for name, check in INVARIANTS.items() if (found := list(check(graph)))}


def config_error(error: Any) -> str:
    """Return what a user sees of a refused configuration."""
    return str(error).partition(": ")[2]
