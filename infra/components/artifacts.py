"""The artifacts bucket, from which a new node downloads ZooKeeper and the node scripts."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.lake import PrivateBucket, PrivateBucketArgs
from components.node_config import ZOOKEEPER_VERSION, node_files


@dataclass(frozen=True)
class ArtifactsArgs:
    """The arguments of :class:`Artifacts`.

    Attributes:
        name: Prefix of names in AWS.
        protect: Whether Pulumi refuses to delete the bucket.
        noncurrent_version_days: Days to keep replaced objects.
        zookeeper_archive: URL or path of ZooKeeper's binary archive.

    """

    name: str
    protect: bool
    noncurrent_version_days: int
    zookeeper_archive: str


class Artifacts(pulumi.ComponentResource):
    """A private bucket with ZooKeeper's archive and the node files.

    Attributes:
        bucket: Name of the bucket.
        arn: ARN of the bucket.
        archive_key: Key of ZooKeeper's archive.
        files: Paths of the node files, by key.
        objects: All objects. A node depends on them, because its first start downloads them.

    """

    def __init__(self, name: str, args: ArtifactsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("sluice:storage:Artifacts", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        # Keys contain a hash of the content. A machine recreated with its old user data needs the old objects.
        retained = pulumi.ResourceOptions(parent=self, retain_on_delete=args.protect)
        bucket = PrivateBucket(
            name,
            PrivateBucketArgs(
                name=f"{args.name}-artifacts",
                protect=args.protect,
                noncurrent_version_days=args.noncurrent_version_days,
            ),
            child,
        )
        self.bucket, self.arn = bucket.bucket, bucket.arn
        self.archive_key = f"zookeeper/apache-zookeeper-{ZOOKEEPER_VERSION}-bin.tar.gz"
        remote = args.zookeeper_archive.startswith(("https://", "http://"))
        asset = pulumi.RemoteAsset if remote else pulumi.FileAsset
        self.files = node_files()
        sources = [(f"{name}-zookeeper", self.archive_key, asset(args.zookeeper_archive))]
        sources += [(f"{name}-{path.name}", key, pulumi.FileAsset(str(path))) for key, path in self.files.items()]
        self.objects: list[pulumi.Resource] = [
            aws.s3.BucketObject(resource, bucket=bucket.bucket, key=key, source=source, opts=retained)
            for resource, key, source in sources
        ]
        self.register_outputs({"bucket": self.bucket})
