"""Logs and alarms: logs have a retention, and missing data raises an alarm."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import ResourceValidationArgs

from .rule import resource_rule

LOG_GROUP = "aws:cloudwatch/logGroup:LogGroup"
ALARM = "aws:cloudwatch/metricAlarm:MetricAlarm"


@resource_rule(LOG_GROUP, controls=("CloudWatch.16",))
def log_groups_have_a_retention(args: ResourceValidationArgs) -> Iterator[str]:
    """Log groups have a retention."""
    if not args.props.get("retentionInDays"):
        yield "The log group has no retention: AWS keeps and charges for its logs without end."


@resource_rule(ALARM)
def missing_data_raises_alarms(args: ResourceValidationArgs) -> Iterator[str]:
    """Alarms treat missing data as a fault."""
    if args.props.get("treatMissingData") != "breaching":
        yield "Missing data does not raise the alarm: a node that is down sends no data."


@resource_rule(ALARM, controls=("CloudWatch.17",))
def alarm_actions_are_enabled(args: ResourceValidationArgs) -> Iterator[str]:
    """The actions of alarms are enabled."""
    if args.props.get("actionsEnabled") is False:
        yield "The alarm's actions are disabled: set actionsEnabled to true."
