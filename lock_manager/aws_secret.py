"""Read a secret from AWS Secrets Manager (extra ``aws``), for the driver that creates the lock manager."""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lock_manager.errors import SettingsError

#: ARN of a secret; the group ``region`` is its AWS region.
ARN = re.compile(r"arn:aws[a-z-]*:secretsmanager:(?P<region>[a-z0-9-]+):\d{12}:secret:\S+")


@functools.lru_cache(maxsize=4)
def fetch_secret(arn: str) -> str:
    """Return the text of a secret, cached in the process because each locked block reads the settings again.

    Args:
        arn: ``arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME``. boto3 finds the AWS credentials by its own rules.

    Raises:
        SettingsError: The ARN is malformed, boto3 is not installed, or AWS refuses the secret.

    """
    match = ARN.fullmatch(arn)
    if match is None:
        # The message leaves the value out: it may be the secret itself.
        raise SettingsError("SLUICE_ZK_SECRET must be arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME")
    try:
        import boto3  # noqa: PLC0415 (optional; the import takes half a second)
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    except ImportError:
        raise SettingsError(
            "SLUICE_ZK_SECRET needs the package boto3: pip install '.[aws]' in a clone of Sluice"
        ) from None
    config = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3})
    try:
        client = boto3.client("secretsmanager", region_name=match["region"], config=config)
        with _response_not_logged():
            response = client.get_secret_value(SecretId=arn)
    except (ClientError, BotoCoreError) as error:
        code = error.response.get("Error", {}).get("Code") if isinstance(error, ClientError) else None
        problem = code or str(error)
        raise SettingsError(
            f"SLUICE_ZK_SECRET={arn}: AWS does not return the secret ({problem}); check the ARN, and that the AWS "
            "credentials allow secretsmanager:GetSecretValue on it"
        ) from error
    if "SecretString" not in response:
        raise SettingsError(f"SLUICE_ZK_SECRET={arn}: the secret is binary and must be JSON text")
    return str(response["SecretString"])


@contextmanager
def _response_not_logged() -> Iterator[None]:
    """Keep this thread's response out of the log: botocore logs every body at DEBUG."""
    logger, thread_id = logging.getLogger("botocore.parsers"), threading.get_ident()

    def is_from_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != thread_id

    logger.addFilter(is_from_another_thread)
    try:
        yield
    finally:
        logger.removeFilter(is_from_another_thread)
