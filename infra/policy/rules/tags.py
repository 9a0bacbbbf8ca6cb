"""Tags: every resource that can have tags has the tags Project and Stack."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import ResourceValidationArgs

from .rule import EVERYTHING, resource_rule

REQUIRED_TAGS = ("Project", "Stack")
#: Types that cannot have tags. Every other type needs them, also types that the program does not use yet.
UNTAGGABLE = frozenset(
    {
        "aws:ec2/route:Route",
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
        "aws:ec2/volumeAttachment:VolumeAttachment",
        "aws:iam/rolePolicy:RolePolicy",
        "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
        "aws:kms/alias:Alias",
        "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
        "aws:s3/bucketPolicy:BucketPolicy",
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        "aws:s3/bucketVersioning:BucketVersioning",
        "aws:secretsmanager/secretVersion:SecretVersion",
    }
)


@resource_rule(EVERYTHING)
def resources_are_tagged(args: ResourceValidationArgs) -> Iterator[str]:
    """Resources have the tags Project and Stack."""
    tags = args.props.get("tags") or {}
    missing = [tag for tag in REQUIRED_TAGS if not tags.get(tag)]
    if args.resource_type not in UNTAGGABLE and missing:
        yield f"The tags {' and '.join(missing)} are missing. If the type cannot have tags, add it to UNTAGGABLE."
