"""The policy pack: ``pulumi up --policy-pack infra/policy`` refuses a stack that breaks a rule."""

from pulumi_policy import EnforcementLevel, PolicyPack
from rules import RULES

# Serves for ever, once it is made: what can be tried without it is in rules/.
PolicyPack("sluice", [rule.policy for rule in RULES], enforcement_level=EnforcementLevel.MANDATORY)
