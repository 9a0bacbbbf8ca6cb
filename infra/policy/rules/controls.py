"""The controls of AWS Security Hub that are about what the program makes: met, or why not.

The standard is AWS Foundational Security Best Practices v1.0.0; controls that only other standards have are told
apart. What is an account's or an organization's business, such as CloudTrail, is not among them unless the program
could be taken to do it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from .rule import Rule


class Verdict(Enum):
    """What becomes of a control in a stack as it comes."""

    MET = "met"
    SETTING = "by a setting"
    OPERATION = "in operation"
    ACCOUNT = "the account's"
    NOT_MET = "not met"


@dataclass(frozen=True)
class Control:
    """A control.

    Attributes:
        id: in Security Hub.
        demand: what it demands, in short.
        verdict: what becomes of it.
        why: what has to be set or done, or why it is not met; empty when a rule says all.
        fsbp: whether it is in AWS Foundational Security Best Practices, and not in other standards alone.

    """

    id: str
    demand: str
    verdict: Verdict
    why: str = ""
    fsbp: bool = True


_NO_CONTAINERS = "Nothing here pulls images of containers, and an endpoint has its price in each zone."
_NOT_USED = "The nodes do not use it, and an endpoint has its price in each zone."
_PROGRAM_RENEWS = "Certificates live for 365 days, and `pulumi up --refresh` renews them 90 days before their end."
_PEOPLE = "The program makes neither users nor access keys."

CONTROLS: tuple[Control, ...] = (
    Control(
        "CloudWatch.15", "Alarms have actions", Verdict.SETTING, "`alarmTopicArns` names who hears them.", fsbp=False
    ),
    Control(
        "CloudWatch.16",
        "Log groups are kept for at least 365 days",
        Verdict.SETTING,
        "`logRetentionDays: 365`; 90 as it comes. A rule sees that there is a retention.",
        fsbp=False,
    ),
    Control("CloudWatch.17", "Alarms' actions are activated", Verdict.MET, fsbp=False),
    Control(
        "EC2.2", "Default security groups allow nothing in or out", Verdict.MET, "In a VPC that the program makes."
    ),
    Control("EC2.3", "Attached EBS volumes are encrypted", Verdict.MET),
    Control("EC2.4", "Stopped instances are removed after a time", Verdict.OPERATION),
    Control("EC2.6", "VPCs have flow logs", Verdict.MET, "In a VPC that the program makes."),
    Control("EC2.7", "EBS encrypts by default", Verdict.ACCOUNT, "The volumes made here are encrypted without it."),
    Control("EC2.8", "Instances use IMDSv2", Verdict.MET),
    Control("EC2.9", "Instances have no public IPv4 address", Verdict.MET),
    Control("EC2.10", "VPCs have an endpoint of EC2's API", Verdict.NOT_MET, _NOT_USED),
    Control("EC2.13", "No ingress from anywhere to port 22", Verdict.MET, fsbp=False),
    Control("EC2.14", "No ingress from anywhere to port 3389", Verdict.MET, fsbp=False),
    Control("EC2.15", "Subnets assign no public addresses by themselves", Verdict.MET),
    Control("EC2.16", "Unused network ACLs are removed", Verdict.OPERATION, "The program makes none."),
    Control("EC2.17", "Instances have one network interface", Verdict.MET),
    Control("EC2.18", "Unrestricted ingress to authorized ports alone", Verdict.MET, "There is none to any port."),
    Control("EC2.19", "No unrestricted ingress to ports with high risk", Verdict.MET),
    Control(
        "EC2.21",
        "Network ACLs let nobody in from anywhere to ports 22 and 3389",
        Verdict.OPERATION,
        "The program makes none, and a VPC's default one, which lets all pass, is not looked at.",
    ),
    Control("EC2.24", "No paravirtual instance types", Verdict.SETTING, "`instanceType`: no type of today is one."),
    Control(
        "EC2.28",
        "EBS volumes have a backup plan",
        Verdict.NOT_MET,
        "They hold locks, on a majority of the members. A backup would bring locks back that nobody holds.",
        fsbp=False,
    ),
    Control("EC2.53", "No ingress from 0.0.0.0/0 to ports of administration", Verdict.MET, fsbp=False),
    Control("EC2.54", "No ingress from ::/0 to ports of administration", Verdict.MET, fsbp=False),
    Control("EC2.55", "VPCs have an endpoint of ECR's API", Verdict.NOT_MET, _NO_CONTAINERS),
    Control("EC2.56", "VPCs have an endpoint of Docker Registry", Verdict.NOT_MET, _NO_CONTAINERS),
    Control("EC2.57", "VPCs have an endpoint of Systems Manager", Verdict.SETTING, "`egress: endpoints`, as it comes."),
    Control("EC2.58", "VPCs have an endpoint of Incident Manager Contacts", Verdict.NOT_MET, _NOT_USED),
    Control("EC2.60", "VPCs have an endpoint of Incident Manager", Verdict.NOT_MET, _NOT_USED),
    Control(
        "EC2.172", "VPC Block Public Access stops internet gateways", Verdict.ACCOUNT, "`egress: nat` needs a gateway."
    ),
    Control("EC2.180", "Network interfaces check source and destination", Verdict.MET),
    Control("IAM.1", "Policies allow no full administration", Verdict.MET),
    Control("IAM.2", "Users have no policies attached", Verdict.MET, _PEOPLE),
    Control("IAM.3", "Users' access keys are rotated", Verdict.MET, _PEOPLE),
    Control("IAM.21", "Customer managed policies allow no service's every action", Verdict.MET),
    Control("KMS.1", "Customer managed policies do not decrypt with all keys", Verdict.MET),
    Control("KMS.2", "Inline policies do not decrypt with all keys", Verdict.MET),
    Control("KMS.3", "Keys are not deleted by mistake", Verdict.MET, "With `kms: true`; without, there is no key."),
    Control("KMS.4", "Keys are rotated", Verdict.MET, "With `kms: true`; without, there is no key.", fsbp=False),
    Control("KMS.5", "Keys are not publicly accessible", Verdict.MET, "With `kms: true`; without, there is no key."),
    Control("S3.1", "The account blocks public access", Verdict.ACCOUNT, "Each bucket made here does, without it."),
    Control("S3.2", "Buckets block public read access", Verdict.MET),
    Control("S3.3", "Buckets block public write access", Verdict.MET),
    Control("S3.5", "Buckets require TLS", Verdict.MET),
    Control("S3.6", "Bucket policies restrict other accounts", Verdict.MET, "They allow nothing to anybody."),
    Control(
        "S3.7",
        "Buckets are replicated to another region",
        Verdict.NOT_MET,
        "Copies come in any order: a copied log may name files that are not there yet.",
        fsbp=False,
    ),
    Control("S3.8", "Buckets block public access", Verdict.MET),
    Control(
        "S3.9",
        "Buckets have server access logging",
        Verdict.NOT_MET,
        "It needs a bucket for logs. CloudTrail's data events say more, and are the account's.",
    ),
    Control("S3.10", "Versioned buckets have lifecycle rules", Verdict.MET, fsbp=False),
    Control("S3.11", "Buckets have event notifications", Verdict.NOT_MET, "Nobody here would hear them.", fsbp=False),
    Control("S3.12", "Buckets use no access control lists", Verdict.MET),
    Control("S3.13", "Buckets have lifecycle rules", Verdict.MET),
    Control("S3.14", "Buckets are versioned", Verdict.MET, fsbp=False),
    Control(
        "S3.15",
        "Buckets have Object Lock",
        Verdict.NOT_MET,
        "It would keep VACUUM, and the clean-up of a log, from ending what they have to end.",
        fsbp=False,
    ),
    Control("S3.17", "Buckets are encrypted with KMS", Verdict.SETTING, "`kms: true`, for the lake.", fsbp=False),
    Control("S3.20", "Buckets have MFA delete", Verdict.NOT_MET, "Only the root user can switch it on.", fsbp=False),
    Control("SecretsManager.1", "Secrets rotate by themselves", Verdict.NOT_MET, _PROGRAM_RENEWS),
    Control("SecretsManager.2", "Rotation of secrets succeeds", Verdict.OPERATION, "No rotation is configured."),
    Control(
        "SecretsManager.3", "Secrets that nobody reads are removed", Verdict.OPERATION, "There is one for each role."
    ),
    Control("SecretsManager.4", "Secrets are rotated within 90 days", Verdict.NOT_MET, _PROGRAM_RENEWS),
    Control("SSM.1", "Instances are managed by Systems Manager", Verdict.MET),
    Control(
        "SSM.2",
        "Instances have their patches",
        Verdict.OPERATION,
        "`replaceNode` brings one node at a time to today's image; no patch is installed in between.",
    ),
    Control("SSM.3", "Associations of Systems Manager are compliant", Verdict.OPERATION, "The program makes none."),
)


def table(rules: Iterable[Rule]) -> str:
    """Return the controls as Markdown: the standard's, and those that only other standards have."""
    every = list(rules)
    parts = [_rows([each for each in CONTROLS if each.fsbp], every)]
    parts += [
        "Security Hub has these too, in other standards:",
        _rows([each for each in CONTROLS if not each.fsbp], every),
    ]
    return "\n\n".join(parts)


def _rows(controls: list[Control], rules: list[Rule]) -> str:
    head = ["| Control | Demands | Here | Rules | |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(_row(each, rules) for each in controls)])


def _row(control: Control, rules: list[Rule]) -> str:
    names = ", ".join(f"`{name}`" for name in _checking(control, rules))
    return f"| {control.id} | {control.demand} | {control.verdict.value} | {names} | {control.why} |"


def _checking(control: Control, rules: list[Rule]) -> Iterator[str]:
    yield from (rule.name for rule in rules if control.id in rule.controls)
