"""Alarms of the ensemble. No data is a fault, too: a node that says nothing does not serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

NAMESPACE = "Sluice/ZooKeeper"
_MINUTE = 60
_HALF_A_DAY = 12 * 3600


@dataclass(frozen=True)
class MonitoringArgs:
    """What is watched.

    Attributes:
        name: what names begin with.
        stack: whose metrics.
        nodes: how many members the ensemble has.
        topic_arns: SNS topics that hear of it.

    """

    name: str
    stack: str
    nodes: int
    topic_arns: Sequence[str]


@dataclass(frozen=True)
class Watch:
    """An alarm.

    Attributes:
        what: its name.
        metric: of CloudWatch, in our namespace.
        comparison: ``<`` or ``>``, with the threshold.
        threshold: in the metric's own unit.
        why: what is wrong, and what to do.
        statistic: over each period.
        minutes: for which it has to be so.
        path: of the file system, for metrics of a disk.
        period: in seconds.

    """

    what: str
    metric: str
    comparison: str
    threshold: float
    why: str
    statistic: str = "Maximum"
    minutes: int = 5
    path: str | None = None
    period: int = _MINUTE


def ensemble_watches(nodes: int) -> list[Watch]:
    """Return what is watched of the ensemble as a whole; only its leader tells of followers."""
    return [
        Watch(
            "quorum-lost",
            "synced_followers",
            "<",
            nodes // 2,
            "No leader with a majority: no lock is given. See docs/runbooks.md.",
            minutes=3,
        ),
        Watch(
            "member-missing",
            "synced_followers",
            "<",
            nodes - 1,
            "A member is not in step: the next loss may stop all locks. sluice ensemble status tells which.",
            minutes=10,
        ),
    ]


def node_watches() -> list[Watch]:
    """Return what is watched of each member."""
    return [
        Watch("silent", "uptime", "<", 1, "This member serves nobody, or its metrics do not arrive.", minutes=10),
        Watch("latency", "avg_latency", ">", 100, "Requests take 100 ms: look at the log volume.", "Average", 10),
        Watch("queue", "outstanding_requests", ">", 100, "Requests wait: the member is overloaded.", "Average"),
        Watch("files", "open_file_descriptor_count", ">", 45_000, "70 % of 65,536 file descriptors are open."),
        Watch(
            "data-disk",
            "disk_used_percent",
            ">",
            80,
            "The volume for snapshots fills: raise dataVolumeGiB, and restart the member.",
            path="/var/lib/zookeeper/data",
        ),
        Watch(
            "log-disk",
            "disk_used_percent",
            ">",
            80,
            "The volume for the transaction log fills: raise logVolumeGiB, and restart the member.",
            path="/var/lib/zookeeper/log",
        ),
        Watch(
            "certificate",
            "certificate_days_left",
            "<",
            45,
            "Run pulumi up --refresh, which renews certificates, and restart the members one by one (docs/deploy.md). "
            "A node that is new says it within half a day.",
            "Minimum",
            period=_HALF_A_DAY,
            minutes=_HALF_A_DAY // _MINUTE,
        ),
    ]


class Monitoring(pulumi.ComponentResource):
    """The alarms of an ensemble."""

    def __init__(self, name: str, args: MonitoringArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("sluice:monitoring:Monitoring", name, None, opts)
        self._name, self._args = name, args
        for watch in ensemble_watches(args.nodes):
            self._alarm(watch, None)
        for node in range(1, args.nodes + 1):
            for watch in node_watches():
                self._alarm(watch, node)
        self.register_outputs({})

    def _alarm(self, watch: Watch, node: int | None) -> None:
        what = watch.what if node is None else f"{watch.what}-{node}"
        dimensions = {"Stack": self._args.stack}
        if node is not None:
            dimensions["Node"] = str(node)
        if watch.path is not None:
            dimensions["path"] = watch.path
        aws.cloudwatch.MetricAlarm(
            f"{self._name}-{what}",
            name=f"{self._args.name}-{what}",
            alarm_description=watch.why,
            namespace=NAMESPACE,
            metric_name=watch.metric,
            dimensions=dimensions,
            statistic=watch.statistic,
            comparison_operator="LessThanThreshold" if watch.comparison == "<" else "GreaterThanThreshold",
            threshold=watch.threshold,
            period=watch.period,
            evaluation_periods=max(1, watch.minutes * _MINUTE // watch.period),
            treat_missing_data="breaching",
            alarm_actions=list(self._args.topic_arns),
            ok_actions=list(self._args.topic_arns),
            opts=pulumi.ResourceOptions(parent=self),
        )
