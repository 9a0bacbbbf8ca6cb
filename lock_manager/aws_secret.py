"""A secret from AWS Secrets Manager, for the driver that makes the lock manager (extra ``aws``)."""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lock_manager.errors import SettingsError

_CONNECT_SECONDS = 5
_READ_SECONDS = 10
#: ARN of a secret; the group ``region`` is the AWS region that has it.
ARN = re.compile(r"arn:aws[a-z-]*:secretsmanager:(?P<region>[a-z0-9-]+):\d{12}:secret:\S+")


@functools.lru_cache(maxsize=4)
def fetch(arn: str) -> str:
    """Return the text of a secret, asked for once per process: each locked block reads the settings again.

    Args:
        arn: ``arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME``; boto3 finds the AWS credentials as it always does.

    Raises:
        SettingsError: it is no such ARN, boto3 is not installed, or AWS does not give the secret.

    """
    match = ARN.fullmatch(arn)
    if match is None:
        # It is not shown: somebody may have put the secret itself there.
        raise SettingsError("SLUICE_ZK_SECRET is no arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME")
    try:
        import boto3  # noqa: PLC0415 (an extra, and half a second)
        from botocore.config import Config  # noqa: PLC0415 (likewise)
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 (likewise)
    except ImportError:
        raise SettingsError(
            "SLUICE_ZK_SECRET needs the package boto3: pip install '.[aws]' in a clone of Sluice"
        ) from None
    config = Config(connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS, retries={"total_max_attempts": 3})
    try:
        client = boto3.client("secretsmanager", region_name=match["region"], config=config)
        with _unlogged():
            answer = client.get_secret_value(SecretId=arn)
    except ClientError as error:
        reason = error.response.get("Error", {}).get("Code", "ClientError")
        raise SettingsError(f"SLUICE_ZK_SECRET={arn}: AWS does not give it ({reason})") from error
    except BotoCoreError as error:
        raise SettingsError(f"SLUICE_ZK_SECRET={arn}: AWS does not give it ({error})") from error
    if "SecretString" not in answer:
        raise SettingsError(f"SLUICE_ZK_SECRET={arn}: the secret is binary and must be JSON text")
    return str(answer["SecretString"])


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep the answer out of the log: botocore writes every body there at DEBUG."""
    parsers, asking = logging.getLogger("botocore.parsers"), threading.get_ident()

    def is_another_threads(record: logging.LogRecord) -> bool:
        return record.thread != asking

    parsers.addFilter(is_another_threads)
    try:
        yield
    finally:
        parsers.removeFilter(is_another_threads)
