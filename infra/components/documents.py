"""The policy documents that several components write, and the statements that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Statement = dict[str, Any]

#: What Session Manager's agent on a machine needs; none of these knows resources.
SESSION_MANAGER: Statement = {
    "Sid": "SessionManager",
    "Effect": "Allow",
    "Action": [
        "ssm:UpdateInstanceInformation",
        "ssmmessages:CreateControlChannel",
        "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel",
        "ssmmessages:OpenDataChannel",
    ],
    "Resource": "*",
}


def document(*statements: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy document with these statements."""
    return {"Version": "2012-10-17", "Statement": list(statements)}


def assumed_by(principal: Mapping[str, Any], condition: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the document of trust that lets a principal assume a role.

    Args:
        principal: such as ``{"Service": "ec2.amazonaws.com"}``.
        condition: under which it may; None: always.

    """
    trust: Statement = {"Effect": "Allow", "Principal": dict(principal), "Action": "sts:AssumeRole"}
    if condition is not None:
        trust["Condition"] = dict(condition)
    return document(trust)


#: A role for EC2's machines.
MACHINES = assumed_by({"Service": "ec2.amazonaws.com"})


def write_logs(sid: str, log_group_arn: str) -> Statement:
    """Return the statement that allows to write into one log group."""
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
        "Resource": [log_group_arn, f"{log_group_arn}:*"],
    }
