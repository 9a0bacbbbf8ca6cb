"""The rules that every Sluice stack must satisfy.

Pulumi calls each rule for each resource and for each stack; see :mod:`rules.rule`. The rules import nothing of the
program, so a bug in the program does not weaken a rule.
"""

from importlib import import_module

from .rule import Rule

_SUBJECTS = (
    "groups", "network", "compute", "ensemble", "zookeeper", "storage", "commits", "locks", "protection", "identity",
    "secrets", "monitoring", "tags",
)  # fmt: skip
_MODULES = [import_module(f".{subject}", __name__) for subject in _SUBJECTS]

#: All rules, by subject.
RULES = tuple(rule for module in _MODULES for rule in vars(module).values() if isinstance(rule, Rule))

__all__ = ["RULES"]
