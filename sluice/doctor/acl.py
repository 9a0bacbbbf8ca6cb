"""Checks the ACLs of a sample of znodes: whether every client may delete contenders."""

from __future__ import annotations

from lock_manager.deadline import Deadline
from lock_manager.zookeeper.acl_survey import survey_acls
from lock_manager.zookeeper.session import Session
from sluice.doctor.finding import Finding, note, ok

_CHECK = "ACL"


def acl_finding(session: Session, deadline: Deadline) -> Finding:
    """Check the ACLs of the lock root, of some tables and of some of their partitions.

    Raises:
        KazooException: The connection broke during the check.

    """
    survey = survey_acls(session, deadline)
    sample = (
        f"{survey.tables_checked} of {survey.tables} tables and {survey.partitions_checked} partitions were checked"
    )
    if survey.open_node is None:
        return ok(_CHECK, f"not every client may delete contenders; {sample}")
    table = "" if survey.open_table is None else f", {survey.open_table}"
    return note(
        _CHECK,
        f"every client may delete contenders, and so break any lock, below {survey.open_node}{table} ({sample}): "
        "restrict the clients that can connect, or set an ACL there, and in the settings for new znodes "
        "(docs/security.md)",
    )
