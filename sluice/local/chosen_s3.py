"""A scratch bucket or prefix in an S3 of the user's choice. It is removed at the end.

The S3 is given by its endpoint's URL or by ``AWS_ENDPOINT_URL``; without them it is AWS itself. Credentials and region
come from the ``AWS_*`` variables. ``AWS_VIRTUAL_HOSTED_STYLE_REQUEST`` puts the bucket into the host name.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import urlsplit

from sluice.audit.log_folder import s3_client, s3_endpoint, s3_errors, s3_response, uses_virtual_hosts
from sluice.errors import ChosenS3Error
from sluice.local.s3 import THIS_MACHINE, no_proxy_variables

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_DEFAULT_REGION = "us-east-1"
_STATUSES_WITHOUT_VERSIONS = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_IMPLEMENTED)


def is_endpoint(url: str) -> bool:
    """Return whether ``url`` is ``http[s]://host[:port]``."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a malformed port or address
        return False


def s3a_settings(endpoint: str | None, region: str | None) -> dict[str, str]:
    """Return S3A's settings for an endpoint and a region, without Spark's prefix. None keeps S3A's default."""
    settings = {}
    if endpoint:
        settings = {
            "fs.s3a.endpoint": endpoint,
            "fs.s3a.path.style.access": str(not uses_virtual_hosts({})).lower(),
            "fs.s3a.connection.ssl.enabled": str(endpoint.startswith("https:")).lower(),
        }
    if region:
        settings["fs.s3a.endpoint.region"] = region
    return settings


class ChosenS3:
    """A scratch bucket, or a scratch prefix in an existing bucket.

    ``with ChosenS3("https://s3.example.com") as s3: table = f"s3a://{s3.root}/flights"``

    Args:
        endpoint: ``http[s]://host[:port]``; None for ``AWS_ENDPOINT_URL``, or AWS itself if that is not set.
        bucket: An existing bucket, for accounts that may not create buckets; None to create and remove one.

    Attributes:
        endpoint: URL of the endpoint; None for AWS itself.
        bucket: Name of the bucket.
        root: ``BUCKET`` or ``BUCKET/PREFIX``.
        environment: Environment variables that configure boto3 and ``deltalake``, and S3A's credentials.
        spark_conf: Spark properties that configure S3A.

    Raises:
        ChosenS3Error: The endpoint is malformed. :meth:`start` and :meth:`stop` raise it, too.

    """

    def __init__(self, endpoint: str | None, bucket: str | None = None) -> None:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
        scratch_name = f"sluice-{uuid.uuid4().hex[:16]}"
        # boto3 and deltalake read AWS_ENDPOINT_URL themselves. S3A must use the same store.
        self.endpoint = endpoint = endpoint or s3_endpoint({})
        self.bucket = bucket or scratch_name
        self.root = f"{bucket}/{scratch_name}" if bucket else scratch_name
        self._owns_bucket = bucket is None
        self._is_created = False
        self.environment = {name: os.environ[name] for name in _CREDENTIALS if name in os.environ}
        self.environment |= {"AWS_REGION": region, "AWS_DEFAULT_REGION": region}
        if endpoint:
            if not is_endpoint(endpoint):
                raise ChosenS3Error(f"{endpoint!r} is not an endpoint: give http://HOST:PORT or https://HOST")
            url = urlsplit(endpoint)
            self.environment |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(url.scheme == "http").lower()}
            if url.hostname in THIS_MACHINE:
                self.environment |= no_proxy_variables()
        self.spark_conf = {f"spark.hadoop.{key}": value for key, value in s3a_settings(endpoint, region).items()}

    def start(self) -> Self:
        """Create the bucket, or check that the existing one can be listed."""
        if self._owns_bucket:
            region = self.environment["AWS_REGION"]
            # AWS requires the location of every region except the default one.
            bucket_config = {"CreateBucketConfiguration": {"LocationConstraint": region}}
            options = {} if region == _DEFAULT_REGION else bucket_config
            self._request("create_bucket", "name an existing bucket instead", **options)
            self._is_created = True
        else:
            self._request("list_objects_v2", "name an existing bucket", MaxKeys=1)
        return self

    def stop(self) -> None:
        """Remove all scratch objects, and the bucket if :meth:`start` created it.

        Object versions are removed, too, unless the S3 refuses to list them or does not support them.
        """
        prefix = self.root.removeprefix(self.bucket).lstrip("/")
        scope = {"Prefix": f"{prefix}/"} if prefix else {}
        advice = f"remove the objects below s3://{self.root} yourself"
        while objects := self._list_objects(advice, scope):
            response = self._request("delete_objects", advice, Delete={"Objects": objects, "Quiet": True})
            if errors := response.get("Errors"):
                raise ChosenS3Error(f"s3://{self.bucket}/{errors[0]['Key']}: {errors[0].get('Message')}; {advice}")
        if self._is_created:
            self._request("delete_bucket", advice)
            self._is_created = False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self.stop()
        except ChosenS3Error as stop_error:
            if error is None:
                raise
            # Do not hide the error of the block.
            sys.stderr.write(f"sluice: {stop_error}\n")

    def _list_objects(self, advice: str, scope: Mapping[str, str]) -> list[dict[str, str]]:
        """Return one page of the scratch objects, in the form that ``delete_objects`` takes."""
        try:
            page = self._request("list_object_versions", advice, **scope)
        except ChosenS3Error as error:
            status, code = s3_response(error)
            if status not in _STATUSES_WITHOUT_VERSIONS and code != "NotImplemented":
                raise
            page = self._request("list_objects_v2", advice, **scope)
            return [{"Key": entry["Key"]} for entry in page.get("Contents", ())]
        versions = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        return [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in versions]

    def _request(self, operation: str, advice: str, **arguments: Any) -> Any:
        client = s3_client(self.environment)
        try:
            return getattr(client, operation)(Bucket=self.bucket, **arguments)
        except s3_errors() as error:
            store = self.endpoint or "AWS"
            raise ChosenS3Error(f"{operation} of s3://{self.root} failed on {store} ({error}); {advice}") from error
        finally:
            client.close()
