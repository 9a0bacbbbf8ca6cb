"""The rules that every Sluice stack must satisfy.

Pulumi calls each rule for each resource and for each stack; see :mod:`rules.rule`. The rules import nothing of the
program, so a bug in the program does not weaken a rule.
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
