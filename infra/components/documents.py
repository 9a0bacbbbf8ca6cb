"""IAM policy documents and statements that several components use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Statement = dict[str, Any]


def allow(sid: str, action: str | list[str], resource: str | list[str], **elements: Any) -> Statement:
    """Return a statement that allows actions on resources; ``elements`` are further elements, such as ``Condition``."""
    return {"Sid": sid, "Effect": "Allow", "Action": action, "Resource": resource, **elements}


#: Permissions of Session Manager's agent on a machine. ``ssmmessages`` has no resource-level permissions.
SESSION_MANAGER = allow(
    "SessionManager",
    [
        "ssm:UpdateInstanceInformation",
        "ssmmessages:CreateControlChannel",
        "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel",
        "ssmmessages:OpenDataChannel",
    ],
    "*",
)


def document(*statements: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy document with these statements."""
    return {"Version": "2012-10-17", "Statement": list(statements)}


def trust_policy(principal: Mapping[str, Any], condition: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the trust policy that lets a principal, such as ``{"Service": "ec2.amazonaws.com"}``, assume a role."""
    trust: Statement = {"Effect": "Allow", "Principal": dict(principal), "Action": "sts:AssumeRole"}
    if condition is not None:
        trust["Condition"] = dict(condition)
    return document(trust)


#: Trust policy of roles for EC2 machines.
EC2_TRUST = trust_policy({"Service": "ec2.amazonaws.com"})


def write_logs(sid: str, log_group_arn: str) -> Statement:
    """Return the statement that allows writing to one log group."""
    actions = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    return allow(sid, actions, [log_group_arn, f"{log_group_arn}:*"])
