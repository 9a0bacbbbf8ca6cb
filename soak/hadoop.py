"""Hadoop's settings for a soak's writers: one S3, little patience."""

from __future__ import annotations

import os

from sluice.local.chosen_s3 import s3a_settings
from sluice.local.s3 import LocalS3
from soak.tcp_proxy import Link

_PREFIX = "spark.hadoop."
_IMPATIENT = {
    "fs.s3a.attempts.maximum": "2",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.retry.interval": "100ms",
    "fs.s3a.retry.throttle.limit": "1",
    "fs.s3a.retry.throttle.interval": "100ms",
    "fs.s3a.connection.timeout": "5s",
    "fs.s3a.connection.establish.timeout": "5s",
    "fs.s3a.create.performance": "true",
    "fs.s3a.threads.max": "8",
}


def hadoop_settings(writer: str, s3: LocalS3 | None, link: Link | None = None) -> dict[str, str]:
    """Return the settings of a writer, which S3 learns the name of.

    Args:
        writer: its name.
        s3: an embedded one; None for the one that the AWS variables name.
        link: the writer's own way to the embedded one, if there is one.

    """
    if s3 is not None:
        found = {key.removeprefix(_PREFIX): value for key, value in s3.spark_conf.items()}
        if link is not None:
            found["fs.s3a.endpoint"] = f"http://{link.hosts}"
    else:
        found = s3a_settings(os.environ.get("AWS_ENDPOINT_URL"), os.environ.get("AWS_REGION"))
    return {**found, "fs.s3a.user.agent.prefix": writer, **_IMPATIENT}
