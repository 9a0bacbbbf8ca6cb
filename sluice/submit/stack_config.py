"""Writes ``spark-defaults.conf`` and ``sluice.env`` from the outputs of ``pulumi stack``.

The files contain names and ARNs only. A job reads its secret from AWS by the ARN, with its own role.
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
from sluice.errors import BadInputError, CommandError

_OUTPUTS = "`pulumi stack output --json`"
# Values that need no quotes in a shell, in systemd, in Docker and in java.util.Properties.
_UNQUOTED = re.compile(r"[A-Za-z0-9_./:,@%+=\[\]-]+")


@dataclass(frozen=True)
class StackConfig:
    """The outputs of a stack that jobs need.

    Attributes:
        lock_settings: Fields of :class:`LockSettings` that name the coordinator: ``zk_hosts`` and ``lock_root``, or
            ``lock_url``.
        secret_arn: ARN of the secret with the role's settings for ZooKeeper; None if the stack has none.

    """

    region: str
    bucket: str
    lock_settings: Mapping[str, Any]
    secret_arn: str | None = None

    @property
    def lacks_secret(self) -> bool:
        """Whether the jobs may need credentials for ZooKeeper that are not in the stack."""
        return "zk_hosts" in self.lock_settings and self.secret_arn is None

    @classmethod
    def of_outputs(cls, text: str, role: str) -> StackConfig:
        """Parse the JSON that pulumi prints. Ignore outputs that are not needed.

        Raises:
            BadInputError: The text is not a JSON object, or an output is missing or malformed.
            SettingsError: The connection string, the lock root or the lock URL is malformed.

        """
        try:
            outputs = json.loads(text)
        except ValueError:
            # Without the cause: it contains the whole text, which may contain secrets.
            outputs = None
        if not isinstance(outputs, dict):
            raise BadInputError(f"the input is not a JSON object: give the output of {_OUTPUTS}")
        stack = cls(
            region=_output(outputs, "region"),
            bucket=_output(outputs, "delta_lake_bucket_name"),
            lock_settings=_lock_settings(outputs),
            secret_arn=_secret_arn(outputs, role),
        )
        LockSettings(**stack.lock_settings)
        return stack

    def spark_defaults(self) -> str:
        """Return the lines of ``spark-defaults.conf``."""
        from writer_jobs.delta.session import cluster_defaults  # noqa: PLC0415 (PySpark takes 0.4 s)

        settings = {**cluster_defaults(), "spark.hadoop.fs.s3a.endpoint.region": self.region}
        return "".join(f"{key} {value}\n" for key, value in settings.items())

    def environment(self) -> str:
        """Return the lines of ``sluice.env``."""
        variables = {
            **{f"{ENVIRONMENT_PREFIX}{name.upper()}": value for name, value in self.lock_settings.items()},
            **({SECRET: self.secret_arn} if self.secret_arn else {}),
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
        }
        return "".join(f"{name}={value}\n" for name, value in variables.items())


def write_config(stack: StackConfig, folder: Path, *, force: bool) -> tuple[Path, Path]:
    """Write both files, and return their paths. If one cannot be written, neither is changed.

    The folder is created if it does not exist. ``force`` permits replacing existing files.

    Raises:
        BadInputError: A file exists, and ``force`` is false.
        CommandError: A file cannot be written.

    """
    defaults, environment = folder / "spark-defaults.conf", folder / "sluice.env"
    texts = {defaults: stack.spark_defaults(), environment: stack.environment()}
    for path in texts:
        if path.exists() and not force:
            raise BadInputError(f"{path} exists already: choose another --output, or give --force to replace it")
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
        raise CommandError(f"{error.filename or folder} cannot be written: {error.strerror or error}") from error
    finally:
        for part in parts.values():
            # It exists only after an error, which is reported.
            with suppress(OSError):
                part.unlink()
    return defaults, environment


def _output(outputs: Mapping[str, Any], name: str) -> str:
    if name not in outputs:
        raise BadInputError(f"the output {name} is missing: give the output of {_OUTPUTS} of a deployed stack")
    return _unquoted_text(outputs[name], name)


def _lock_settings(outputs: Mapping[str, Any]) -> dict[str, str]:
    settings = {}
    if outputs.get("lock_url") is not None:
        settings["lock_url"] = _output(outputs, "lock_url")
    if not settings or outputs.get("zookeeper_connection_string") is not None:
        settings["zk_hosts"] = _output(outputs, "zookeeper_connection_string")
        settings["lock_root"] = _output(outputs, "lock_root")
    return settings


def _secret_arn(outputs: Mapping[str, Any], role: str) -> str | None:
    arns = outputs.get("secret_arns") or {}
    if not isinstance(arns, dict):
        raise BadInputError(f"the output secret_arns must be an object of ARNs by role, as {_OUTPUTS} prints it")
    if arns.get(role) is None:
        return None
    name = f"secret_arns.{role}"
    arn = _unquoted_text(arns[role], name)
    if not ARN.fullmatch(arn):
        # Without the value, which may be the secret itself.
        raise BadInputError(f"the output {name} must be arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME")
    return arn


def _unquoted_text(value: object, name: str) -> str:
    if value in (None, ""):
        raise BadInputError(f"the output {name} is empty: check the configuration of the stack")
    if value == "[secret]":  # Pulumi prints it in place of a secret output
        raise BadInputError(f"the output {name} is hidden: run `pulumi stack output --json --show-secrets`")
    if not isinstance(value, str) or not _UNQUOTED.fullmatch(value):
        raise BadInputError(f"the output {name} must be a text that needs no quotes in a shell")
    return value
