"""Values of the stack's configuration that change what rules require.

Pulumi passes the stack's configuration to a policy pack. The exceptions in this module are neither tags, which the
program under test could change, nor options of the pack, which would repeat the configuration. Without a configured
value there is no exception.
"""

from __future__ import annotations

from typing import Any

import pulumi


def requires_protection() -> bool:
    """Return whether resources with data must be protected; false only for trial stacks with ``protect: false``."""
    return _config().get_bool("protect") is not False


def commit_policy() -> str:
    """Return the scope of the commit policy: ``all`` for the whole bucket, ``prefixes`` or ``off``."""
    return _config().get("commitPolicy") or "all"


def table_prefixes() -> list[str]:
    """Return the folders that hold tables, without a slash at either end."""
    return [str(prefix).strip("/") for prefix in _array("tablePrefixes")]


def exempt_principals() -> list[str]:
    """Return the ARNs of the principals that are exempt from the commit policy."""
    return [str(arn) for arn in _array("exemptPrincipalArns")]


def uses_kms_key() -> bool:
    """Return whether a KMS key of the stack encrypts the lake."""
    return bool(_config().get_bool("kms"))


def replaced_node() -> int:
    """Return the id of the node whose machine may be replaced; 0 for none."""
    return _config().get_int("replaceNode") or 0


def _config() -> pulumi.Config:
    return pulumi.Config("sluice")  # the project in Pulumi.yaml


def _array(key: str) -> list[Any]:
    return list(_config().get_object(key) or [])
