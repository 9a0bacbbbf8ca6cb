"""The artifacts bucket with ZooKeeper and the node files, which a new node downloads."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from components.lake import PrivateBucket
from components.node_config import ZOOKEEPER_VERSION, node_files
from components.settings import Settings


class Artifacts(pulumi.ComponentResource):
    """A private bucket with ZooKeeper's archive and the node files.

    Attributes:
        archive_key: Key of ZooKeeper's archive.
        files: Paths of the node files, by key.
        objects: All objects. A node depends on them, because its first start downloads them.

    """

    def __init__(self, name: str, settings: Settings) -> None:
        super().__init__("sluice:storage:Artifacts", name)
        # Keys of node files contain a content hash. A machine recreated with its old user data needs the old objects.
        retained = pulumi.ResourceOptions(parent=self, retain_on_delete=settings.protect)
        bucket = PrivateBucket(name, f"{settings.name}-artifacts", settings, parent=self)
        self.bucket, self.arn = bucket.bucket, bucket.arn
        self.archive_key = f"zookeeper/apache-zookeeper-{ZOOKEEPER_VERSION}-bin.tar.gz"
        remote = settings.zookeeper_archive.startswith(("https://", "http://"))
        asset = pulumi.RemoteAsset if remote else pulumi.FileAsset
        self.files = node_files()
        sources = [(f"{name}-zookeeper", self.archive_key, asset(settings.zookeeper_archive))]
        sources += [(f"{name}-{path.name}", key, pulumi.FileAsset(str(path))) for key, path in self.files.items()]
        self.objects: list[pulumi.Resource] = [
            aws.s3.BucketObject(resource_name, bucket=bucket.bucket, key=key, source=source, opts=retained)
            for resource_name, key, source in sources
        ]
        self.register_outputs({"bucket": self.bucket})
