"""Machines and volumes: nobody logs in but through Session Manager, disks are encrypted, machines end on purpose."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import PolicyResource, ResourceValidationArgs

from . import stack_config
from .rule import Rule, Stack, resource_rule, stack_rule

INSTANCE = "aws:ec2/instance:Instance"
VOLUME = "aws:ebs/volume:Volume"
ATTACHMENT = "aws:ec2/volumeAttachment:VolumeAttachment"
INTERFACE_ATTACHMENT = "aws:ec2/networkInterfaceAttachment:NetworkInterfaceAttachment"
ADDRESS = "aws:ec2/eip:Eip"
ASSOCIATION = "aws:ec2/eipAssociation:EipAssociation"
#: What would replace a machine, or stop it, when it changes.
EXPLICIT = {"ami", "instanceType", "userData", "rootBlockDevice"}


def _metadata(args: ResourceValidationArgs) -> Iterator[str]:
    options = args.props.get("metadataOptions") or {}
    if options.get("httpTokens") != "required":
        yield "Version 1 of the metadata service answers: set httpTokens to required."
    if options.get("httpPutResponseHopLimit") != 1:
        yield "What runs behind another hop gets the machine's credentials: set httpPutResponseHopLimit to 1."


def _no_key_pair(args: ResourceValidationArgs) -> Iterator[str]:
    if args.props.get("keyName"):
        yield "It has a key pair: operators come in through Session Manager, which says who did."


def _no_public_address(args: ResourceValidationArgs) -> Iterator[str]:
    keys = ("associatePublicIpAddress", "ipv6AddressCount", "ipv6Addresses", "instance", "networkInterface")
    found = [key for key in keys if args.props.get(key)]
    if args.resource_type == ASSOCIATION:
        yield "A public address is given to a machine: only a NAT gateway has one."
    elif found:
        yield f"A machine has a public address, by {', '.join(found)}: only a NAT gateway has one."


def _one_interface(args: ResourceValidationArgs) -> Iterator[str]:
    if args.resource_type == INTERFACE_ATTACHMENT:
        yield "A second interface is attached to a machine."
    elif not args.props.get("primaryNetworkInterface"):
        yield "Its interface is not a resource of its own: its address would be gone with the machine."
    elif args.props.get("networkInterfaces") or args.props.get("secondaryNetworkInterfaces"):
        yield "It has interfaces beside its primary one."


def _root_encrypted(args: ResourceValidationArgs) -> Iterator[str]:
    if (args.props.get("rootBlockDevice") or {}).get("encrypted") is not True:
        yield "Its root volume is not encrypted."
    if any(each.get("encrypted") is not True for each in args.props.get("ebsBlockDevices") or ()):
        yield "A volume that it brings with it is not encrypted."


def _volume_encrypted(args: ResourceValidationArgs) -> Iterator[str]:
    if args.props.get("encrypted") is not True:
        yield "It is not encrypted."


def _managed(args: ResourceValidationArgs) -> Iterator[str]:
    if not args.props.get("iamInstanceProfile"):
        yield "It has no instance profile: Session Manager does not know it, and it cannot read its secret."


def _makes_room(args: ResourceValidationArgs) -> Iterator[str]:
    if not args.opts.delete_before_replace:
        yield "deleteBeforeReplace is not set: its successor would wait for what it still holds."


def _replaced_on_purpose(instance: PolicyResource, stack: Stack) -> Iterator[str]:
    open_ones = [each for each in stack.of(INSTANCE) if not set(each.opts.ignore_changes) >= EXPLICIT]
    permitted = 1 if stack_config.replaced_node() else 0
    if instance in open_ones and len(open_ones) > permitted:
        missing = ", ".join(sorted(EXPLICIT - set(instance.opts.ignore_changes)))
        yield f"ignoreChanges lacks {missing}: a new image would replace several members at once. Set replaceNode."


def _stays(args: ResourceValidationArgs) -> Iterator[str]:
    if "availabilityZone" not in args.opts.ignore_changes:
        yield "ignoreChanges lacks availabilityZone: zones that come in another order would replace it, and its data."


RULES: tuple[Rule, ...] = (
    resource_rule(
        "metadata-needs-a-token",
        "Machines have version 2 of the metadata service alone, and for themselves.",
        (INSTANCE,),
        _metadata,
        ("EC2.8",),
    ),
    resource_rule("no-key-pair", "No machine has a key pair.", (INSTANCE,), _no_key_pair),
    resource_rule(
        "no-public-address",
        "No machine has a public address.",
        (INSTANCE, ADDRESS, ASSOCIATION),
        _no_public_address,
        ("EC2.9",),
    ),
    resource_rule(
        "one-interface",
        "Each machine has one interface, which outlives it.",
        (INSTANCE, INTERFACE_ATTACHMENT),
        _one_interface,
        ("EC2.17",),
    ),
    resource_rule(
        "root-volume-is-encrypted",
        "Machines' own volumes are encrypted.",
        (INSTANCE,),
        _root_encrypted,
        ("EC2.3",),
    ),
    resource_rule("volumes-are-encrypted", "Volumes are encrypted.", (VOLUME,), _volume_encrypted, ("EC2.3",)),
    resource_rule(
        "machines-are-managed",
        "Each machine has a role, by which Systems Manager knows it.",
        (INSTANCE,),
        _managed,
        ("SSM.1",),
    ),
    resource_rule(
        "machines-make-room",
        "A machine, and what ties a volume to it, goes before its successor comes.",
        (INSTANCE, ATTACHMENT),
        _makes_room,
    ),
    stack_rule(
        "machines-are-replaced-on-purpose",
        "No machine is replaced, or stopped, but the one that replaceNode names.",
        (INSTANCE,),
        _replaced_on_purpose,
    ),
    resource_rule("volumes-stay", "A volume stays in its zone.", (VOLUME,), _stays),
)
