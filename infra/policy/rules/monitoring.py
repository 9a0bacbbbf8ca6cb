"""Logs and alarms: logs have a retention, and missing data raises an alarm."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import ResourceValidationArgs

from .rule import Rule, resource_rule

LOG_GROUP = "aws:cloudwatch/logGroup:LogGroup"
ALARM = "aws:cloudwatch/metricAlarm:MetricAlarm"


def _check_retention(args: ResourceValidationArgs) -> Iterator[str]:
    if not args.props.get("retentionInDays"):
        yield "The log group has no retention: AWS keeps and charges for its logs without end."


def _check_missing_data(args: ResourceValidationArgs) -> Iterator[str]:
    if args.props.get("treatMissingData") != "breaching":
        yield "Missing data does not raise the alarm: a node that is down sends no data."


def _check_actions(args: ResourceValidationArgs) -> Iterator[str]:
    if args.props.get("actionsEnabled") is False:
        yield "The alarm's actions are disabled."


RULES: tuple[Rule, ...] = (
    resource_rule("logs-end", "Log groups have a retention.", (LOG_GROUP,), _check_retention, ("CloudWatch.16",)),
    resource_rule("silence-is-a-fault", "Alarms treat missing data as a fault.", (ALARM,), _check_missing_data),
    resource_rule("alarms-act", "The actions of alarms are enabled.", (ALARM,), _check_actions, ("CloudWatch.17",)),
)
