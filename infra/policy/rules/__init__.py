"""What no stack of Sluice goes without, whatever becomes of the program that makes it.

Pulumi calls these rules, one by one, for each resource and for each stack: see :mod:`rules.rule`. They know AWS and
not the program, so that a mistake in it is none here.
"""

from . import (
    commits,
    compute,
    ensemble,
    groups,
    identity,
    monitoring,
    network,
    protection,
    secrets,
    storage,
    tags,
    zookeeper,
)

#: All rules, by subject.
RULES = (
    *groups.RULES,
    *network.RULES,
    *compute.RULES,
    *ensemble.RULES,
    *zookeeper.RULES,
    *storage.RULES,
    *commits.RULES,
    *protection.RULES,
    *identity.RULES,
    *secrets.RULES,
    *monitoring.RULES,
    *tags.RULES,
)

__all__ = ["RULES"]
