"""The AWS Security Hub controls that apply to the program's resources, and how the program meets each.

The standard is AWS Foundational Security Best Practices v1.0.0. Controls of other standards come last. Controls for
an account or an organization, such as those for CloudTrail, are listed only if a reader could expect the program to
meet them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from .rule import Rule


class Verdict(Enum):
    """How a stack meets a control."""

    MET = "met"
    SETTING = "by configuration"
    OPERATION = "during operation"
    ACCOUNT = "account level"
    NOT_MET = "not met"


@dataclass(frozen=True)
class Control:
    """A Security Hub control.

    Attributes:
        requirement: Requirement in a few words.
        verdict: How the program meets it.
        comment: Required setting or action, or the reason for the verdict; empty if requirement or rules explain it.

    """

    id: str
    requirement: str
    verdict: Verdict
    comment: str = ""


_NO_CONTAINERS = "The stack pulls no container images, and AWS charges for an endpoint in each zone."
_NOT_USED = "The nodes do not use it, and AWS charges for an endpoint in each zone."
_PROGRAM_RENEWS = "Certificates are valid for 365 days. `pulumi up --refresh` renews them in the last 90 days."
_NO_USERS = "The program creates neither users nor access keys."
_NEW_VPC = "In a VPC that the program creates."
_WITH_KMS = "With `kms: true`. Without it there is no key."

#: Controls of the standard.
_STANDARD = (
    Control("EC2.2", "Default security groups allow no traffic", Verdict.MET, _NEW_VPC),
    Control("EC2.3", "Attached EBS volumes are encrypted", Verdict.MET),
    Control("EC2.4", "Stopped instances are removed after a time", Verdict.OPERATION),
    Control("EC2.6", "VPCs have flow logs", Verdict.MET, _NEW_VPC),
    Control("EC2.7", "EBS encrypts by default", Verdict.ACCOUNT, "The program encrypts its volumes explicitly."),
    Control("EC2.8", "Instances use IMDSv2", Verdict.MET),
    Control("EC2.9", "Instances have no public IPv4 address", Verdict.MET),
    Control("EC2.10", "VPCs have an endpoint of EC2's API", Verdict.NOT_MET, _NOT_USED),
    Control("EC2.15", "Subnets assign no public addresses automatically", Verdict.MET),
    Control("EC2.16", "Unused network ACLs are removed", Verdict.OPERATION, "The program creates none."),
    Control("EC2.17", "Instances have one network interface", Verdict.MET),
    Control("EC2.18", "Unrestricted ingress to authorized ports only", Verdict.MET, "No port allows it."),
    Control("EC2.19", "No unrestricted ingress to ports with high risk", Verdict.MET),
    Control(
        "EC2.21",
        "Network ACLs allow no ingress from anywhere to ports 22 and 3389",
        Verdict.OPERATION,
        "The program creates none. No rule checks a VPC's default ACL, which allows all traffic.",
    ),
    Control("EC2.24", "No paravirtual instance types", Verdict.SETTING, "`instanceType`: no current type is one."),
    Control("EC2.55", "VPCs have an endpoint of ECR's API", Verdict.NOT_MET, _NO_CONTAINERS),
    Control("EC2.56", "VPCs have an endpoint of Docker Registry", Verdict.NOT_MET, _NO_CONTAINERS),
    Control("EC2.57", "VPCs have an endpoint of Systems Manager", Verdict.SETTING, "`egress: endpoints`, the default."),
    Control("EC2.58", "VPCs have an endpoint of Incident Manager Contacts", Verdict.NOT_MET, _NOT_USED),
    Control("EC2.60", "VPCs have an endpoint of Incident Manager", Verdict.NOT_MET, _NOT_USED),
    Control(
        "EC2.172", "VPC Block Public Access stops internet gateways", Verdict.ACCOUNT, "`egress: nat` needs a gateway."
    ),
    Control("EC2.180", "Network interfaces check source and destination", Verdict.MET),
    Control("IAM.1", "Policies allow no full administration", Verdict.MET),
    Control("IAM.2", "Users have no policies attached", Verdict.MET, _NO_USERS),
    Control("IAM.3", "Users' access keys are rotated", Verdict.MET, _NO_USERS),
    Control("IAM.21", "Customer managed policies do not allow all actions of a service", Verdict.MET),
    Control("KMS.1", "Customer managed policies do not decrypt with all keys", Verdict.MET),
    Control("KMS.2", "Inline policies do not decrypt with all keys", Verdict.MET),
    Control("KMS.3", "Keys are not deleted by mistake", Verdict.MET, _WITH_KMS),
    Control("KMS.5", "Keys are not publicly accessible", Verdict.MET, _WITH_KMS),
    Control("S3.1", "The account blocks public access", Verdict.ACCOUNT, "Each bucket of the program blocks it."),
    Control("S3.2", "Buckets block public read access", Verdict.MET),
    Control("S3.3", "Buckets block public write access", Verdict.MET),
    Control("S3.5", "Buckets require TLS", Verdict.MET),
    Control("S3.6", "Bucket policies restrict other accounts", Verdict.MET, "They only deny."),
    Control("S3.8", "Buckets block public access", Verdict.MET),
    Control(
        "S3.9",
        "Buckets have server access logging",
        Verdict.NOT_MET,
        "It needs a bucket for logs. CloudTrail's data events contain more; the account configures them.",
    ),
    Control("S3.12", "Buckets use no access control lists", Verdict.MET),
    Control("S3.13", "Buckets have lifecycle rules", Verdict.MET),
    Control("SecretsManager.1", "Secrets rotate automatically", Verdict.NOT_MET, _PROGRAM_RENEWS),
    Control("SecretsManager.2", "Rotation of secrets succeeds", Verdict.OPERATION, "No rotation is configured."),
    Control("SecretsManager.3", "Unused secrets are removed", Verdict.OPERATION, "Each node and each role has one."),
    Control("SecretsManager.4", "Secrets are rotated within 90 days", Verdict.NOT_MET, _PROGRAM_RENEWS),
    Control("SSM.1", "Instances are managed by Systems Manager", Verdict.MET),
    Control(
        "SSM.2",
        "Instances have all patches",
        Verdict.OPERATION,
        "`replaceNode` moves one node at a time to the current image. Running nodes get no patches.",
    ),
    Control("SSM.3", "Associations of Systems Manager are compliant", Verdict.OPERATION, "The program creates none."),
)
#: Controls that only other standards contain.
_OTHER_STANDARDS = (
    Control("CloudWatch.15", "Alarms have actions", Verdict.SETTING, "`alarmTopicArns` names the topics."),
    Control(
        "CloudWatch.16",
        "Log groups are kept for at least 365 days",
        Verdict.SETTING,
        "`logRetentionDays: 365`; the default is 90. The rule checks that a retention is set.",
    ),
    Control("CloudWatch.17", "Alarms' actions are activated", Verdict.MET),
    Control("EC2.13", "No ingress from anywhere to port 22", Verdict.MET),
    Control("EC2.14", "No ingress from anywhere to port 3389", Verdict.MET),
    Control(
        "EC2.28",
        "EBS volumes have a backup plan",
        Verdict.NOT_MET,
        "The volumes hold locks, replicated to a majority. A backup would restore locks whose holders are gone.",
    ),
    Control("EC2.53", "No ingress from 0.0.0.0/0 to administration ports", Verdict.MET),
    Control("EC2.54", "No ingress from ::/0 to administration ports", Verdict.MET),
    Control("KMS.4", "Keys are rotated", Verdict.MET, _WITH_KMS),
    Control(
        "S3.7",
        "Buckets are replicated to another region",
        Verdict.NOT_MET,
        "S3 copies objects in any order: a copied log may name files that are not copied yet.",
    ),
    Control("S3.10", "Versioned buckets have lifecycle rules", Verdict.MET),
    Control("S3.11", "Buckets have event notifications", Verdict.NOT_MET, "Sluice uses no events."),
    Control(
        "S3.14",
        "Buckets are versioned",
        Verdict.SETTING,
        "`coordinator: zookeeper`, the default. With `s3-lease`, the bucket of the locks keeps no old versions.",
    ),
    Control(
        "S3.15", "Buckets have Object Lock", Verdict.NOT_MET, "Deleted files would stay stored until their lock ends."
    ),
    Control("S3.17", "Buckets are encrypted with KMS", Verdict.SETTING, "`kms: true`, for the lake."),
    Control("S3.20", "Buckets have MFA delete", Verdict.NOT_MET, "Only the root user can enable it."),
)
CONTROLS: tuple[Control, ...] = (*_STANDARD, *_OTHER_STANDARDS)


def table(rules: Iterable[Rule]) -> str:
    """Return two Markdown tables: the controls of the standard, and those that only other standards contain."""
    rule_list = list(rules)
    standard, other_standards = _rows(_STANDARD, rule_list), _rows(_OTHER_STANDARDS, rule_list)
    return f"{standard}\n\nControls of other Security Hub standards:\n\n{other_standards}"


def _rows(controls: tuple[Control, ...], rules: list[Rule]) -> str:
    rows = ["| Control | Requirement | Here | Rules | |", "|---|---|---|---|---|"]
    for control in controls:
        names = ", ".join(f"`{rule.name}`" for rule in rules if control.id in rule.controls)
        rows.append(f"| {control.id} | {control.requirement} | {control.verdict.value} | {names} | {control.comment} |")
    return "\n".join(rows)
