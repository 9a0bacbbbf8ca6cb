"""The configuration of a stack, validated before Pulumi creates a resource."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pulumi
import yaml

MAX_NODES = 7
ZONES = 3
S3_LEASE = "s3-lease"
# RFC 1918. Python's is_private includes further blocks, which AWS refuses.
_PRIVATE = [ipaddress.IPv4Network(block) for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]
_ARN = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:(role|user|root)\S*")
_STACK = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,16}[a-z0-9])?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KEY = re.compile(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+")
_PREFIX = re.compile(r"[A-Za-z0-9!_.'()/=-]+")
_RETENTION = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653)
_PROJECT_FILE = Path(__file__).parents[2] / "Pulumi.yaml"
#: Fields that a stack with locks on S3 uses. It has no ensemble, no machines and no network.
_FIELDS_WITHOUT_ENSEMBLE = frozenset(
    {
        "coordinator",
        "protect",
        "existing_bucket",
        "existing_bucket_kms_key_arn",
        "commit_policy",
        "table_prefixes",
        "exempt_principal_arns",
        "maintenance_principal_arns",
        "kms",
        "noncurrent_version_days",
    }
)


@dataclass(frozen=True)
class Settings:
    """The configuration of a stack. ``Pulumi.yaml`` documents each value and its default.

    Attributes:
        table_prefixes: Folders of tables, without a slash at either end.

    """

    stack: str
    coordinator: str
    protect: bool
    log_retention_days: int
    vpc_cidr: str
    egress: str
    vpc_id: str
    subnet_ids: tuple[str, ...]
    writer_security_group_ids: tuple[str, ...]
    reachable_buckets: tuple[str, ...]
    existing_bucket: str
    existing_bucket_kms_key_arn: str
    commit_policy: str
    table_prefixes: tuple[str, ...]
    exempt_principal_arns: tuple[str, ...]
    maintenance_principal_arns: tuple[str, ...]
    kms: bool
    noncurrent_version_days: int
    existing_zookeeper: str
    existing_zookeeper_secret_arn: str
    nodes: int
    instance_type: str
    image_parameter: str
    image_id: str
    replace_node: int
    data_volume_gib: int
    log_volume_gib: int
    signing_authority: int
    trusted_authorities: tuple[int, ...]
    alarm_topic_arns: tuple[str, ...]
    zookeeper_archive: str

    @property
    def name(self) -> str:
        """Prefix of names in AWS."""
        return f"sluice-{self.stack}"

    @property
    def locks_on_s3(self) -> bool:
        """Whether the locks are objects in a bucket of the stack."""
        return self.coordinator == S3_LEASE

    @property
    def makes_ensemble(self) -> bool:
        """Whether the program creates the ensemble."""
        return not self.locks_on_s3 and not self.existing_zookeeper

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            pulumi.RunError: A value is invalid. ``pulumi up`` shows the message of this error without a traceback.

        """
        # Names in AWS contain the stack's name, and the name prefix of a role has at most 38 characters.
        requirement = "1 to 18 of a-z, 0-9 and -, without - at either end, such as prod"
        _require(_STACK.fullmatch(self.stack), "stack's name", self.stack, requirement)
        coordinator = self.coordinator
        _require(coordinator in ("zookeeper", S3_LEASE), "coordinator", coordinator, f"zookeeper or {S3_LEASE}")
        _require(self.egress in ("endpoints", "nat"), "egress", self.egress, "endpoints or nat")
        mode = self.commit_policy
        _require(mode in ("off", "prefixes", "all"), "commitPolicy", mode, "off, prefixes or all")
        self._validate_network()
        self._validate_lake()
        self._validate_ensemble()
        days = self.log_retention_days
        retentions = ", ".join(map(str, _RETENTION))
        _require(days in _RETENTION, "logRetentionDays", days, f"a retention that CloudWatch supports: {retentions}")

    def _validate_network(self) -> None:
        try:
            network = ipaddress.IPv4Network(self.vpc_cidr)
        except ValueError:
            network = None
        is_valid = (
            network is not None
            and network.prefixlen in range(16, 23)
            and any(network.subnet_of(private) for private in _PRIVATE)
        )
        _require(is_valid, "vpcCidr", self.vpc_cidr, "a private IPv4 block of /16 to /22, such as 10.100.0.0/16")
        count = len(set(self.subnet_ids))
        if self.vpc_id:
            _require(count == ZONES, "subnetIds", list(self.subnet_ids), f"{ZONES} subnets of vpcId, one in each zone")
        else:
            _require(not self.subnet_ids, "subnetIds", list(self.subnet_ids), "empty unless vpcId is set")

        for bucket in self.reachable_buckets:
            _require(_BUCKET.fullmatch(bucket), "reachableBuckets", bucket, "names of buckets")

    def _validate_lake(self) -> None:
        existing = self.existing_bucket
        _require(not existing or _BUCKET.fullmatch(existing), "existingBucket", existing, "the name of a bucket")
        key = self.existing_bucket_kms_key_arn
        is_valid = not key or (existing and _KEY.fullmatch(key))
        _require(is_valid, "existingBucketKmsKeyArn", key, "the ARN of a KMS key, and empty without existingBucket")
        _require(
            not (self.kms and existing),
            "kms",
            self.kms,
            "false with existingBucket, whose key is existingBucketKmsKeyArn",
        )
        for prefix in self.table_prefixes:
            # A wildcard would also act as one in the resources of a policy.
            _require(_PREFIX.fullmatch(prefix), "tablePrefixes", prefix, "folders of a-z, A-Z, 0-9 and !_.'()/=-")
        if self.commit_policy == "prefixes":
            _require(self.table_prefixes, "tablePrefixes", [], "set when commitPolicy is prefixes")
        for key, arns in (
            ("exemptPrincipalArns", self.exempt_principal_arns),
            ("maintenancePrincipalArns", self.maintenance_principal_arns),
        ):
            for arn in arns:
                _require(_ARN.fullmatch(arn) and "*" not in arn, key, arn, "ARNs of IAM principals, without wildcards")
        _require(self.noncurrent_version_days >= 1, "noncurrentVersionDays", self.noncurrent_version_days, "1 or more")

    def _validate_ensemble(self) -> None:
        node_counts = "3, 5 or 7 (4 or 6 only while the ensemble grows or shrinks)"
        _require(ZONES <= self.nodes <= MAX_NODES, "nodes", self.nodes, node_counts)
        _require(0 <= self.replace_node <= self.nodes, "replaceNode", self.replace_node, f"0 to {self.nodes}")
        for key, size in (("dataVolumeGiB", self.data_volume_gib), ("logVolumeGiB", self.log_volume_gib)):
            _require(size >= 1, key, size, "1 or more")
        trusted = self.trusted_authorities
        _require(trusted and min(trusted) >= 1, "trustedAuthorities", list(trusted), "generations, counted from 1")
        signing = self.signing_authority
        _require(signing in trusted, "signingAuthority", signing, "one of trustedAuthorities")
        arn = self.existing_zookeeper_secret_arn
        is_valid = self.existing_zookeeper or not arn
        _require(is_valid, "existingZookeeperSecretArn", arn, "empty unless existingZookeeper is set")

    @classmethod
    def from_stack(cls) -> Settings:
        """Read the configuration of the current stack.

        Raises:
            pulumi.RunError: A value is malformed or contradicts another.

        """
        config = pulumi.Config()
        try:
            values = {
                name: _read(config, name, field_type)
                for name, field_type in get_type_hints(cls).items()
                if name != "stack"
            }
        except pulumi.ConfigTypeError as error:
            raise pulumi.RunError(str(error)) from None
        if values["coordinator"] == S3_LEASE:
            _refuse_values_for_an_ensemble(values)
        values["table_prefixes"] = tuple(prefix.strip("/") for prefix in values["table_prefixes"])
        return cls(stack=pulumi.get_stack(), **values)


def _key(name: str) -> str:
    """Return the configuration key of a field, such as ``dataVolumeGiB`` of ``data_volume_gib``."""
    head, *words = name.split("_")
    return head + "".join("GiB" if word == "gib" else word.capitalize() for word in words)


def _read(config: pulumi.Config, name: str, field_type: Any) -> Any:
    """Return the configured value of a field."""
    key = _key(name)
    if field_type is bool:
        return config.require_bool(key)
    if field_type is int:
        return config.require_int(key)
    return (config.get(key) or "") if field_type is str else _array(config, key)


def _array(config: pulumi.Config, key: str) -> tuple[Any, ...]:
    array = config.get_object(key)
    _require(array is None or isinstance(array, list), key, array, "a list")
    return tuple(array or ())


def _refuse_values_for_an_ensemble(values: Mapping[str, Any]) -> None:
    """Refuse values that a stack with locks on S3 does not use.

    Pulumi adds the defaults of ``Pulumi.yaml`` to the configuration. So a value counts as configured if it differs from
    its default.
    """
    declarations = yaml.safe_load(_PROJECT_FILE.read_text(encoding="utf-8"))["config"]
    unused = []
    for name, value in values.items():
        default = declarations[_key(name)]["default"]
        is_default = value == (tuple(default) if isinstance(default, list) else default)
        if name not in _FIELDS_WITHOUT_ENSEMBLE and not is_default:
            unused.append(_key(name))
    if unused:
        reason = f"coordinator {S3_LEASE}, which has neither an ensemble nor a network"
        raise pulumi.RunError(f"configuration {', '.join(unused)}: must be left out with {reason}")


def _require(condition: object, key: str, value: object, requirement: str) -> None:
    if not condition:
        raise pulumi.RunError(f"configuration {key}={value!r}: must be {requirement}")
