"""What the nodes fetch when they are new: ZooKeeper, and their own scripts. The nodes reach no other source."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.lake import PrivateBucket, PrivateBucketArgs
from components.node_config import ZOOKEEPER_VERSION, node_files


@dataclass(frozen=True)
class ArtifactsArgs:
    """What an artifacts bucket is made of.

    Attributes:
        name: what its name begins with.
        protect: whether Pulumi refuses to delete it.
        noncurrent_version_days: for which what was replaced is kept.
        zookeeper_archive: URL or path of ZooKeeper's binary archive.

    """

    name: str
    protect: bool
    noncurrent_version_days: int
    zookeeper_archive: str


class Artifacts(pulumi.ComponentResource):
    """A private bucket with ZooKeeper's archive and the nodes' files.

    Attributes:
        bucket: its name.
        arn: its ARN.
        archive_key: of ZooKeeper's archive.
        files: of the nodes' files, by key.
        objects: all objects; a node that starts before they are there would wait for them.

    """

    def __init__(self, name: str, args: ArtifactsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("sluice:storage:Artifacts", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        # Their keys name their content. A machine that is made anew with its old user data asks for the old ones.
        kept = pulumi.ResourceOptions(parent=self, retain_on_delete=args.protect)
        made = PrivateBucket(
            name,
            PrivateBucketArgs(
                name=f"{args.name}-artifacts",
                protect=args.protect,
                noncurrent_version_days=args.noncurrent_version_days,
            ),
            child,
        )
        self.bucket, self.arn = made.bucket, made.arn
        self.archive_key = f"zookeeper/apache-zookeeper-{ZOOKEEPER_VERSION}-bin.tar.gz"
        remote = args.zookeeper_archive.startswith(("https://", "http://"))
        asset = pulumi.RemoteAsset if remote else pulumi.FileAsset
        self.files = node_files()
        self.objects: list[pulumi.Resource] = [
            aws.s3.BucketObject(
                f"{name}-zookeeper",
                bucket=made.bucket,
                key=self.archive_key,
                source=asset(args.zookeeper_archive),
                opts=kept,
            )
        ]
        for key, path in self.files.items():
            self.objects.append(
                aws.s3.BucketObject(
                    f"{name}-{path.name}",
                    bucket=made.bucket,
                    key=key,
                    source=pulumi.FileAsset(str(path)),
                    opts=kept,
                )
            )
        self.register_outputs({"bucket": self.bucket})
