"""Tags: whose a resource is, and of which stack, is said by every resource that can say it."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import ResourceValidationArgs

from .rule import EVERYTHING, Rule, resource_rule

NEEDED = ("Project", "Stack")
#: Types that take no tags. Any other has to have them, those that the program does not make yet among them.
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


def _tagged(args: ResourceValidationArgs) -> Iterator[str]:
    tags = args.props.get("tags") or {}
    missing = [each for each in NEEDED if not tags.get(each)]
    if args.resource_type not in UNTAGGABLE and missing:
        yield f"It has no tag {' and no tag '.join(missing)}. If its type takes none, UNTAGGABLE has to name it."


RULES: tuple[Rule, ...] = (
    resource_rule("tagged", "Whatever takes tags says whose it is, and of which stack.", EVERYTHING, _tagged),
)
