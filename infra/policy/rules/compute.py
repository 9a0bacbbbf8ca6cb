"""Machines and volumes: login through Session Manager only, encrypted disks, no unintended replacement."""

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
#: Properties whose change replaces or stops a machine.
REPLACING_PROPERTIES = {"ami", "instanceType", "userData", "rootBlockDevice"}


def _check_metadata(args: ResourceValidationArgs) -> Iterator[str]:
    options = args.props.get("metadataOptions") or {}
    if options.get("httpTokens") != "required":
        yield "Version 1 of the metadata service is enabled: set httpTokens to required."
    if options.get("httpPutResponseHopLimit") != 1:
        yield "Containers on the machine can get its credentials: set httpPutResponseHopLimit to 1."


def _check_key_pair(args: ResourceValidationArgs) -> Iterator[str]:
    if args.props.get("keyName"):
        yield "The machine has a key pair: log in through Session Manager, which records the user."


def _check_public_address(args: ResourceValidationArgs) -> Iterator[str]:
    keys = ("associatePublicIpAddress", "ipv6AddressCount", "ipv6Addresses", "instance", "networkInterface")
    public_keys = [key for key in keys if args.props.get(key)]
    if args.resource_type == ASSOCIATION:
        yield "A public address is associated with a machine: only a NAT gateway may have one."
    elif public_keys:
        yield f"{', '.join(public_keys)} gives a machine a public address: only a NAT gateway may have one."


def _check_interfaces(args: ResourceValidationArgs) -> Iterator[str]:
    if args.resource_type == INTERFACE_ATTACHMENT:
        yield "A second interface is attached to a machine."
    elif not args.props.get("primaryNetworkInterface"):
        yield "The machine has no primaryNetworkInterface: its address would be lost with the machine."
    elif args.props.get("networkInterfaces") or args.props.get("secondaryNetworkInterfaces"):
        yield "The machine has more than one interface."


def _check_root_encryption(args: ResourceValidationArgs) -> Iterator[str]:
    if (args.props.get("rootBlockDevice") or {}).get("encrypted") is not True:
        yield "The root volume is not encrypted."
    if any(device.get("encrypted") is not True for device in args.props.get("ebsBlockDevices") or ()):
        yield "A volume of ebsBlockDevices is not encrypted."


def _check_encryption(args: ResourceValidationArgs) -> Iterator[str]:
    if args.props.get("encrypted") is not True:
        yield "The volume is not encrypted."


def _check_profile(args: ResourceValidationArgs) -> Iterator[str]:
    if not args.props.get("iamInstanceProfile"):
        yield "The machine has no instance profile: it cannot register with Session Manager or read its secret."


def _check_replacement_order(args: ResourceValidationArgs) -> Iterator[str]:
    if not args.opts.delete_before_replace:
        yield "deleteBeforeReplace is not set: the replacement needs the interface and volumes of the old machine."


def _check_ignored_changes(instance: PolicyResource, stack: Stack) -> Iterator[str]:
    replaceable = [
        machine for machine in stack.of(INSTANCE) if not set(machine.opts.ignore_changes) >= REPLACING_PROPERTIES
    ]
    permitted = 1 if stack_config.replaced_node() else 0
    if instance in replaceable and len(replaceable) > permitted:
        missing = ", ".join(sorted(REPLACING_PROPERTIES - set(instance.opts.ignore_changes)))
        yield f"ignoreChanges lacks {missing}: a new image would replace several members at once. Set replaceNode."


def _check_zone(args: ResourceValidationArgs) -> Iterator[str]:
    if "availabilityZone" not in args.opts.ignore_changes:
        yield "ignoreChanges lacks availabilityZone: a new order of zones would replace the volume and lose its data."


RULES: tuple[Rule, ...] = (
    resource_rule(
        "metadata-needs-a-token",
        "Machines allow only version 2 of the metadata service, and only from the machine itself.",
        (INSTANCE,),
        _check_metadata,
        ("EC2.8",),
    ),
    resource_rule("no-key-pair", "No machine has a key pair.", (INSTANCE,), _check_key_pair),
    resource_rule(
        "no-public-address",
        "No machine has a public address.",
        (INSTANCE, ADDRESS, ASSOCIATION),
        _check_public_address,
        ("EC2.9",),
    ),
    resource_rule(
        "one-interface",
        "Each machine has one interface, which survives a replacement of the machine.",
        (INSTANCE, INTERFACE_ATTACHMENT),
        _check_interfaces,
        ("EC2.17",),
    ),
    resource_rule(
        "root-volume-is-encrypted",
        "Root volumes of machines are encrypted.",
        (INSTANCE,),
        _check_root_encryption,
        ("EC2.3",),
    ),
    resource_rule("volumes-are-encrypted", "Volumes are encrypted.", (VOLUME,), _check_encryption, ("EC2.3",)),
    resource_rule(
        "machines-are-managed",
        "Each machine has an instance profile, which Systems Manager needs.",
        (INSTANCE,),
        _check_profile,
        ("SSM.1",),
    ),
    resource_rule(
        "machines-make-room",
        "Machines and volume attachments are deleted before their replacement is created.",
        (INSTANCE, ATTACHMENT),
        _check_replacement_order,
    ),
    stack_rule(
        "machines-are-replaced-on-purpose",
        "Only the machine that replaceNode names may be replaced or stopped.",
        (INSTANCE,),
        _check_ignored_changes,
    ),
    resource_rule("volumes-stay", "Volumes stay in their zone.", (VOLUME,), _check_zone),
)
