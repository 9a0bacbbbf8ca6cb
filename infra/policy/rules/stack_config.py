"""What the stack's own configuration permits.

Pulumi tells a policy pack the configuration of the stack. The rules look there, and not at a tag or at a setting of
the pack: a tag is the program's to change, and a setting of the pack would be said twice. Where nothing is said, the
strict answer holds.
"""

from __future__ import annotations

from typing import Any

import pulumi

#: As ``Pulumi.yaml`` names it.
PROJECT = "sluice"


def protected() -> bool:
    """Return whether what holds data must stay: unless ``protect`` is false, which is for stacks to play with."""
    return _config().get_bool("protect") is not False


def commit_policy() -> str:
    """Return where the bucket refuses unsafe commits: ``all``, ``prefixes`` or ``off``."""
    return _config().get("commitPolicy") or "all"


def table_prefixes() -> list[str]:
    """Return the folders that hold tables, without a slash at either end."""
    return [str(each).strip("/") for each in _array("tablePrefixes")]


def exempt_principals() -> list[str]:
    """Return the ARNs of those whom the commit policy lets pass."""
    return [str(each) for each in _array("exemptPrincipalArns")]


def kms() -> bool:
    """Return whether the lake is encrypted with a key of its own."""
    return bool(_config().get_bool("kms"))


def replaced_node() -> int:
    """Return the one node whose machine may be replaced; 0 for none."""
    return _config().get_int("replaceNode") or 0


def _config() -> pulumi.Config:
    return pulumi.Config(PROJECT)


def _array(key: str) -> list[Any]:
    return list(_config().get_object(key) or [])
