"""Writes ``spark-defaults.conf`` and ``sluice.env`` from the outputs of ``pulumi stack``.

Names and ARNs only: a job asks AWS for its secret by the ARN, with its own role.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lock_manager.aws_secret import ARN
from lock_manager.security import SECRET
from lock_manager.settings import ENVIRONMENT_PREFIX, LockSettings
from sluice.errors import ConfigExistsError, ConfigFileError, StackOutputError

_DEFAULTS_NAME = "spark-defaults.conf"
_ENVIRONMENT_NAME = "sluice.env"
_S3A_REGION = "spark.hadoop.fs.s3a.endpoint.region"
_OUTPUTS = "`pulumi stack output --json`"
# What means the same to a shell, to systemd, to Docker and to java.util.Properties without any quotes.
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@%+=\[\]-]+")
# What pulumi prints in place of an output that it keeps secret.
_HIDDEN = "[secret]"


@dataclass(frozen=True)
class StackConfig:
    """What of a stack's outputs jobs need.

    Attributes:
        region: of AWS.
        bucket: of the lake.
        hosts: connection string of ZooKeeper.
        lock_root: znode below which tables are locked.
        secret_arn: of the settings of the role's clients of ZooKeeper; None if the stack made none.

    """

    region: str
    bucket: str
    hosts: str
    lock_root: str
    secret_arn: str | None = None

    @classmethod
    def of_outputs(cls, text: str, role: str) -> StackConfig:
        """Read the JSON that pulumi prints; outputs that are not needed are ignored.

        Raises:
            StackOutputError: it is no such JSON, or an output is missing or cannot be used.
            SettingsError: the connection string or the lock root is malformed.

        """
        try:
            outputs = json.loads(text)
        except ValueError:
            # Not as a cause: it carries the whole text, in which there may be secrets.
            raise StackOutputError(f"this is no JSON: give what {_OUTPUTS} prints") from None
        if not isinstance(outputs, dict):
            raise StackOutputError(f"this is no JSON object: give what {_OUTPUTS} prints")
        found = cls(
            region=_output(outputs, "region"),
            bucket=_output(outputs, "delta_lake_bucket_name"),
            hosts=_output(outputs, "zookeeper_connection_string"),
            lock_root=_output(outputs, "lock_root"),
            secret_arn=_secret_arn(outputs, role),
        )
        LockSettings(zk_hosts=found.hosts, lock_root=found.lock_root)
        return found

    def spark_defaults(self) -> str:
        """Return the lines of ``spark-defaults.conf``."""
        from writer_jobs.delta.session import defaults_for_everybody  # noqa: PLC0415 (PySpark takes 0.4 s)

        settings = {**defaults_for_everybody(), _S3A_REGION: self.region}
        return "".join(f"{key} {value}\n" for key, value in settings.items())

    def environment(self) -> str:
        """Return the lines of ``sluice.env``."""
        variables = {
            f"{ENVIRONMENT_PREFIX}ZK_HOSTS": self.hosts,
            f"{ENVIRONMENT_PREFIX}LOCK_ROOT": self.lock_root,
            **({SECRET: self.secret_arn} if self.secret_arn else {}),
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
        }
        return "".join(f"{name}={value}\n" for name, value in variables.items())


def write_config(found: StackConfig, folder: Path, *, force: bool) -> tuple[Path, Path]:
    """Write both files, and return where they are; if one cannot be written, neither is changed.

    Args:
        found: of the stack.
        folder: where to; made if it is not there.
        force: replace files that are there.

    Raises:
        ConfigExistsError: a file is there, and ``force`` is false.
        ConfigFileError: a file cannot be written.

    """
    texts = {folder / _DEFAULTS_NAME: found.spark_defaults(), folder / _ENVIRONMENT_NAME: found.environment()}
    for path in texts:
        if path.exists() and not force:
            raise ConfigExistsError(f"{path} is there already: choose another --output, or give --force to replace it")
    parts = {path: path.with_name(f".{path.name}.{os.getpid()}.part") for path in texts}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            if path.is_dir():
                raise IsADirectoryError(None, "it is a folder", str(path))
            parts[path].write_text(text, encoding="utf-8")
        for path, part in parts.items():
            part.replace(path)
    except OSError as error:
        raise ConfigFileError(f"{error.filename or folder} cannot be written: {error.strerror or error}") from error
    finally:
        for part in parts.values():
            # Left behind only by an error, which is told.
            with suppress(OSError):
                part.unlink()
    return folder / _DEFAULTS_NAME, folder / _ENVIRONMENT_NAME


def _output(outputs: Mapping[str, Any], name: str) -> str:
    if name not in outputs:
        raise StackOutputError(f"the output {name} is missing: give what {_OUTPUTS} prints of a stack that is up")
    return _plain(outputs[name], name)


def _secret_arn(outputs: Mapping[str, Any], role: str) -> str | None:
    arns = outputs.get("secret_arns") or {}
    if not isinstance(arns, dict):
        raise StackOutputError(f"the output secret_arns must be an object of ARNs by role, as {_OUTPUTS} prints it")
    if arns.get(role) is None:
        return None
    name = f"secret_arns.{role}"
    arn = _plain(arns[role], name)
    if not ARN.fullmatch(arn):
        # It is not shown: it may be the secret itself.
        raise StackOutputError(f"the output {name} is no arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME")
    return arn


def _plain(value: object, name: str) -> str:
    if value in (None, ""):
        raise StackOutputError(f"the output {name} is empty: the stack has none; see its configuration")
    if value == _HIDDEN:
        raise StackOutputError(f"the output {name} is hidden: run `pulumi stack output --json --show-secrets`")
    if not isinstance(value, str) or not _PLAIN.fullmatch(value):
        raise StackOutputError(f"the output {name} is no text that could be written without quotes")
    return value
