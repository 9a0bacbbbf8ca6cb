"""Machines and volumes: login only through Session Manager, encrypted disks, no unintended replacement."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import PolicyResource, ResourceValidationArgs

from . import stack_config
from .rule import Stack, resource_rule, stack_rule

INSTANCE = "aws:ec2/instance:Instance"
VOLUME = "aws:ebs/volume:Volume"
ATTACHMENT = "aws:ec2/volumeAttachment:VolumeAttachment"
INTERFACE_ATTACHMENT = "aws:ec2/networkInterfaceAttachment:NetworkInterfaceAttachment"
ADDRESS = "aws:ec2/eip:Eip"
ASSOCIATION = "aws:ec2/eipAssociation:EipAssociation"
#: Properties whose change replaces or stops a machine.
REPLACING_PROPERTIES = {"ami", "instanceType", "userData", "rootBlockDevice"}


@resource_rule(INSTANCE, controls=("EC2.8",))
def metadata_needs_a_token(args: ResourceValidationArgs) -> Iterator[str]:
    """Machines allow only version 2 of the metadata service, and only from the machine itself."""
    options = args.props.get("metadataOptions") or {}
    if options.get("httpTokens") != "required":
        yield "Version 1 of the metadata service is enabled: set httpTokens to required."
    if options.get("httpPutResponseHopLimit") != 1:
        yield "Containers on the machine can get its credentials: set httpPutResponseHopLimit to 1."


@resource_rule(INSTANCE)
def no_key_pair(args: ResourceValidationArgs) -> Iterator[str]:
    """No machine has a key pair."""
    if args.props.get("keyName"):
        yield "The machine has a key pair: log in through Session Manager, which records the user."


@resource_rule(INSTANCE, ADDRESS, ASSOCIATION, controls=("EC2.9",))
def no_public_address(args: ResourceValidationArgs) -> Iterator[str]:
    """No machine has a public address."""
    keys = ("associatePublicIpAddress", "ipv6AddressCount", "ipv6Addresses", "instance", "networkInterface")
    public_keys = [key for key in keys if args.props.get(key)]
    if args.resource_type == ASSOCIATION:
        yield "A public address is associated with a machine: only a NAT gateway may have one."
    elif public_keys:
        yield f"{', '.join(public_keys)} gives a machine a public address: only a NAT gateway may have one."


@resource_rule(INSTANCE, INTERFACE_ATTACHMENT, controls=("EC2.17",))
def one_interface(args: ResourceValidationArgs) -> Iterator[str]:
    """Each machine has one interface, which survives a replacement of the machine."""
    if args.resource_type == INTERFACE_ATTACHMENT:
        yield "A second interface is attached to a machine."
    elif not args.props.get("primaryNetworkInterface"):
        yield "The machine has no primaryNetworkInterface: its address would be lost with the machine."
    elif args.props.get("networkInterfaces") or args.props.get("secondaryNetworkInterfaces"):
        yield "The machine has more than one interface."


@resource_rule(INSTANCE, controls=("EC2.3",))
def root_volume_is_encrypted(args: ResourceValidationArgs) -> Iterator[str]:
    """Root volumes of machines are encrypted."""
    if (args.props.get("rootBlockDevice") or {}).get("encrypted") is not True:
        yield "The root volume is not encrypted."
    if any(device.get("encrypted") is not True for device in args.props.get("ebsBlockDevices") or ()):
        yield "A volume of ebsBlockDevices is not encrypted."


@resource_rule(VOLUME, controls=("EC2.3",))
def volumes_are_encrypted(args: ResourceValidationArgs) -> Iterator[str]:
    """Volumes are encrypted."""
    if args.props.get("encrypted") is not True:
        yield "The volume is not encrypted."


@resource_rule(INSTANCE, controls=("SSM.1",))
def machines_are_managed(args: ResourceValidationArgs) -> Iterator[str]:
    """Each machine has an instance profile, which Systems Manager needs."""
    if not args.props.get("iamInstanceProfile"):
        yield "The machine has no instance profile: it cannot register with Session Manager or read its secret."


@resource_rule(INSTANCE, ATTACHMENT)
def machines_are_deleted_before_replacement(args: ResourceValidationArgs) -> Iterator[str]:
    """Machines and volume attachments are deleted before their replacement is created."""
    if not args.opts.delete_before_replace:
        yield "deleteBeforeReplace is not set: the replacement needs the interface and volumes of the old machine."


@stack_rule(INSTANCE)
def machines_are_replaced_on_purpose(instance: PolicyResource, stack: Stack) -> Iterator[str]:
    """At most one machine may be replaced or stopped, and only if replaceNode is set."""
    replaceable = [
        machine for machine in stack.of_type(INSTANCE) if not set(machine.opts.ignore_changes) >= REPLACING_PROPERTIES
    ]
    permitted = 1 if stack_config.replaced_node() else 0
    if instance in replaceable and len(replaceable) > permitted:
        missing = ", ".join(sorted(REPLACING_PROPERTIES - set(instance.opts.ignore_changes)))
        yield f"ignoreChanges lacks {missing}: a new image would replace several members at once. Set replaceNode."


@resource_rule(VOLUME)
def volumes_keep_their_zone(args: ResourceValidationArgs) -> Iterator[str]:
    """Volumes stay in their zone."""
    if "availabilityZone" not in args.opts.ignore_changes:
        yield "ignoreChanges lacks availabilityZone: a new order of zones would replace the volume and lose its data."
