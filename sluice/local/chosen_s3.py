"""An S3 of the user's choice, with a scratch place of our own in it that is removed in the end.

It is found as other programs find it: by an endpoint's URL, given or in ``AWS_ENDPOINT_URL`` (AWS itself without one),
the ``AWS_*`` variables for credentials and region, and ``AWS_VIRTUAL_HOSTED_STYLE_REQUEST`` for a store that wants the
bucket in the host's name.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from sluice.audit.log_folder import s3_client, s3_endpoint, virtual_hosted
from sluice.errors import ChosenS3Error
from sluice.local.s3 import THIS_MACHINE, past_proxies

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_USUAL_REGION = "us-east-1"


def is_endpoint(url: str) -> bool:
    """Tell whether ``url`` is ``http[s]://host[:port]``."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # no port, or no address
        return False


def s3a_settings(endpoint: str | None, region: str | None) -> dict[str, str]:
    """Return S3A's settings, without Spark's prefix, for an endpoint; its own defaults where None is given."""
    found = {}
    if endpoint:
        found = {
            "fs.s3a.endpoint": endpoint,
            "fs.s3a.path.style.access": str(not virtual_hosted({})).lower(),
            "fs.s3a.connection.ssl.enabled": str(endpoint.startswith("https:")).lower(),
        }
    if region:
        found["fs.s3a.endpoint.region"] = region
    return found


class ChosenS3:
    """A scratch place in an S3: a bucket of our own, or a prefix of our own in a bucket that is there.

    ``with ChosenS3("https://s3.example.com") as s3: table = f"s3a://{s3.root}/flights"``

    Args:
        endpoint: ``http[s]://host[:port]``; None for the one in ``AWS_ENDPOINT_URL``, and for AWS itself without it.
        bucket: one that is there, for accounts that may not make buckets; None to make one and to remove it.

    Attributes:
        endpoint: that it uses; None for AWS itself.
        bucket: that it uses.
        root: the scratch place: ``BUCKET`` or ``BUCKET/PREFIX``.
        environment: variables with which boto3 and ``deltalake`` find it, and S3A its credentials.
        spark_conf: Spark properties with which S3A finds it.

    Raises:
        ChosenS3Error: the endpoint is malformed; also from :meth:`start` and :meth:`stop`.

    """

    def __init__(self, endpoint: str | None, bucket: str | None = None) -> None:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _USUAL_REGION
        name = f"sluice-{uuid.uuid4().hex[:16]}"
        # boto3 and deltalake take the variable by themselves: S3A has to go to the same store.
        self.endpoint = endpoint = endpoint or s3_endpoint({})
        self.bucket = bucket or name
        self.root = f"{bucket}/{name}" if bucket else name
        self._own = bucket is None
        self._made = False
        self.environment = {name: os.environ[name] for name in _CREDENTIALS if name in os.environ}
        self.environment |= {"AWS_REGION": region, "AWS_DEFAULT_REGION": region}
        if endpoint:
            if not is_endpoint(endpoint):
                raise ChosenS3Error(f"{endpoint!r} is no endpoint: give http://HOST:PORT or https://HOST")
            url = urlsplit(endpoint)
            self.environment |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(url.scheme == "http").lower()}
            if url.hostname in THIS_MACHINE:
                self.environment |= past_proxies()
        self.spark_conf = {f"spark.hadoop.{key}": value for key, value in s3a_settings(endpoint, region).items()}

    def start(self) -> Self:
        """Make the bucket, or see that the given one can be listed."""
        if self._own:
            region = self.environment["AWS_REGION"]
            # AWS wants to hear of every region but this one.
            where = {} if region == _USUAL_REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
            self._ask("create_bucket", "another bucket can be named that is there", **where)
            self._made = True
        else:
            self._ask("list_objects_v2", "name a bucket that is there", MaxKeys=1)
        return self

    def stop(self) -> None:
        """Remove everything below the scratch place, and the bucket if it is ours.

        Old versions of objects are removed, too, unless the S3 refuses to list them or does not know any.
        """
        prefix = self.root.removeprefix(self.bucket).lstrip("/")
        place = {"Prefix": f"{prefix}/"} if prefix else {}
        advice = f"remove what is left below s3://{self.root} yourself"
        while objects := self._left(advice, place):
            answer = self._ask("delete_objects", advice, Delete={"Objects": objects, "Quiet": True})
            if refused := answer.get("Errors"):
                raise ChosenS3Error(f"s3://{self.bucket}/{refused[0]['Key']}: {refused[0].get('Message')}; {advice}")
        if self._made:
            self._ask("delete_bucket", advice)
            self._made = False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except ChosenS3Error as left:
            if error is None:
                raise
            # The error that came first is the one to be told; this one is only about what stays there.
            sys.stderr.write(f"sluice: {left}\n")

    def _left(self, advice: str, place: Mapping[str, str]) -> list[dict[str, str]]:
        """Return some of the objects that are there, as ``delete_objects`` takes them."""
        try:
            page = self._ask("list_object_versions", advice, **place)
        except ChosenS3Error as error:
            if not _cannot_list_versions(error):
                raise
            page = self._ask("list_objects_v2", advice, **place)
            return [{"Key": each["Key"]} for each in page.get("Contents", ())]
        found = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        return [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in found]

    def _ask(self, operation: str, advice: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 (0.4 s)

        client = s3_client(self.environment)
        try:
            return getattr(client, operation)(Bucket=self.bucket, **arguments)
        except (BotoCoreError, ClientError) as error:
            where = self.endpoint or "AWS"
            raise ChosenS3Error(f"{where} refused {operation} of s3://{self.root} ({error}); {advice}") from error
        finally:
            client.close()


def _cannot_list_versions(error: ChosenS3Error) -> bool:
    """Tell whether the S3 refused to list versions, or does not know how."""
    response: dict[str, Any] = getattr(error.__cause__, "response", None) or {}
    status, code = response.get("ResponseMetadata", {}).get("HTTPStatusCode"), response.get("Error", {}).get("Code")
    return status in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_IMPLEMENTED) or code == "NotImplemented"
