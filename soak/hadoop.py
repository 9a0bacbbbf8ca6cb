"""Hadoop's settings for a soak's writers: the S3 of the run, with short timeouts and few retries."""

from __future__ import annotations

import os
import re
from typing import Any

from sluice.local.chosen_s3 import s3a_settings
from sluice.local.s3 import LocalS3
from soak.tcp_proxy import Link

_PREFIX = "spark.hadoop."
_SHORT_TIMEOUTS = {
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
    """Return the settings of a writer.

    Writers with an even number put versions with S3A's client of the AWS SDK, as the log store does with a Hadoop that
    has no conditional create.

    Args:
        writer: Name of the writer, such as ``writer-1``, which S3 gets as the prefix of the user agent.
        s3: The embedded S3; None for the S3 of the AWS variables.
        link: Connection of the writer to the embedded S3; None to connect directly.

    """
    if s3 is not None:
        settings = {key.removeprefix(_PREFIX): value for key, value in s3.spark_conf.items()}
        if link is not None:
            settings["fs.s3a.endpoint"] = f"http://{link.hosts}"
    else:
        settings = s3a_settings(os.environ.get("AWS_ENDPOINT_URL"), os.environ.get("AWS_REGION"))
    put_setting = {"fs.s3a.sluice.put": "client"} if re.search(r"[02468]$", writer) else {}
    return {**settings, "fs.s3a.user.agent.prefix": writer, **_SHORT_TIMEOUTS, **put_setting}


def allow_short_timeouts(jvm: Any) -> None:
    """Let S3A use timeouts of less than 15 s, so that each fault takes less time."""
    jvm.org.apache.hadoop.fs.s3a.impl.AWSClientConfig.setMinimumOperationDuration(jvm.java.time.Duration.ofMillis(1))
