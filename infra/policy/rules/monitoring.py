"""Logs and alarms: logs are kept for a while and not for ever, and silence is a fault."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import ResourceValidationArgs

from .rule import Rule, resource_rule

LOG_GROUP = "aws:cloudwatch/logGroup:LogGroup"
ALARM = "aws:cloudwatch/metricAlarm:MetricAlarm"


def _retention(args: ResourceValidationArgs) -> Iterator[str]:
    if not args.props.get("retentionInDays"):
        yield "It has no retention: what it holds is kept, and paid for, for ever."


def _silence(args: ResourceValidationArgs) -> Iterator[str]:
    if args.props.get("treatMissingData") != "breaching":
        yield "Missing data does not raise it: a node that is down says nothing."


def _acts(args: ResourceValidationArgs) -> Iterator[str]:
    if args.props.get("actionsEnabled") is False:
        yield "Its actions are switched off."


RULES: tuple[Rule, ...] = (
    resource_rule("logs-end", "Log groups have a retention.", (LOG_GROUP,), _retention, ("CloudWatch.16",)),
    resource_rule("silence-is-a-fault", "Alarms take missing data for a fault.", (ALARM,), _silence),
    resource_rule("alarms-act", "Alarms' actions are switched on.", (ALARM,), _acts, ("CloudWatch.17",)),
)
