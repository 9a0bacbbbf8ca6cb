"""CloudWatch alarms of the ensemble. Missing data also raises an alarm, because a node that is down sends none."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components.settings import Settings

NAMESPACE = "Sluice/ZooKeeper"
_MINUTE = 60
_HALF_A_DAY = 12 * 3600


@dataclass(frozen=True)
class Alarm:
    """The definition of an alarm.

    Attributes:
        name: Name of the alarm, without prefix and node.
        metric: Name of the CloudWatch metric in ``NAMESPACE``.
        comparison: Comparison of the metric with the threshold that raises the alarm: ``<`` or ``>``.
        threshold: Threshold in the unit of the metric.
        description: Cause and remedy.
        statistic: CloudWatch statistic of the metric in a period.
        periods: Number of consecutive periods that meet the comparison before the alarm is raised.
        path: Mount point, for metrics of a disk.
        period: Length of a period in seconds.

    """

    name: str
    metric: str
    comparison: str
    threshold: float
    description: str
    statistic: str = "Maximum"
    periods: int = 5
    path: str | None = None
    period: int = _MINUTE


def ensemble_alarms(nodes: int) -> list[Alarm]:
    """Return the alarms of the ensemble as a whole. Only the leader reports the number of followers."""
    return [
        Alarm(
            "quorum-lost",
            "synced_followers",
            "<",
            nodes // 2,
            "No leader has a majority: no lock can be acquired. See docs/runbooks.md.",
            periods=3,
        ),
        Alarm(
            "member-missing",
            "synced_followers",
            "<",
            nodes - 1,
            "A member is not in sync: the next loss may stop all locks. Run sluice ensemble status to find the member.",
            periods=10,
        ),
    ]


def node_alarms() -> list[Alarm]:
    """Return the alarms of each member."""
    return [
        Alarm("silent", "uptime", "<", 1, "This member is down, or its metrics do not arrive.", periods=10),
        Alarm("latency", "avg_latency", ">", 100, "Requests take over 100 ms: check the log volume.", "Average", 10),
        Alarm("queue", "outstanding_requests", ">", 100, "Requests queue up: the member is overloaded.", "Average"),
        Alarm("files", "open_file_descriptor_count", ">", 45_000, "Over 45,000 of 65,536 file descriptors are open."),
        Alarm(
            "data-disk",
            "disk_used_percent",
            ">",
            80,
            "The volume for snapshots is filling up: raise dataVolumeGiB, and restart the member.",
            path="/var/lib/zookeeper/data",
        ),
        Alarm(
            "log-disk",
            "disk_used_percent",
            ">",
            80,
            "The volume for the transaction log is filling up: raise logVolumeGiB, and restart the member.",
            path="/var/lib/zookeeper/log",
        ),
        Alarm(
            "certificate",
            "certificate_days_left",
            "<",
            45,
            "Run pulumi up --refresh, which renews certificates, and restart the members one by one (docs/deploy.md). "
            "A new node reports its certificate within half a day.",
            "Minimum",
            periods=1,
            period=_HALF_A_DAY,
        ),
    ]


class Monitoring(pulumi.ComponentResource):
    """The alarms of an ensemble."""

    def __init__(self, name: str, settings: Settings) -> None:
        super().__init__("sluice:monitoring:Monitoring", name)
        self._name, self._settings = name, settings
        for alarm in ensemble_alarms(settings.nodes):
            self._create_alarm(alarm, None)
        for node in range(1, settings.nodes + 1):
            for alarm in node_alarms():
                self._create_alarm(alarm, node)
        self.register_outputs({})

    def _create_alarm(self, alarm: Alarm, node: int | None) -> None:
        name = alarm.name if node is None else f"{alarm.name}-{node}"
        dimensions = {"Stack": self._settings.stack}
        if node is not None:
            dimensions["Node"] = str(node)
        if alarm.path is not None:
            dimensions["path"] = alarm.path
        aws.cloudwatch.MetricAlarm(
            f"{self._name}-{name}",
            name=f"{self._settings.name}-{name}",
            alarm_description=alarm.description,
            namespace=NAMESPACE,
            metric_name=alarm.metric,
            dimensions=dimensions,
            statistic=alarm.statistic,
            comparison_operator="LessThanThreshold" if alarm.comparison == "<" else "GreaterThanThreshold",
            threshold=alarm.threshold,
            period=alarm.period,
            evaluation_periods=alarm.periods,
            treat_missing_data="breaching",
            alarm_actions=list(self._settings.alarm_topic_arns),
            ok_actions=list(self._settings.alarm_topic_arns),
            opts=pulumi.ResourceOptions(parent=self),
        )
