"""The policy pack: ``pulumi up --policy-pack infra/policy`` refuses a stack that breaks a rule."""

from pulumi_policy import EnforcementLevel, PolicyPack
from rules import RULES

# The constructor starts a server that never returns. Tests import rules/ instead.
PolicyPack("sluice", [rule.policy for rule in RULES], enforcement_level=EnforcementLevel.MANDATORY)
