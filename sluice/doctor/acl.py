"""Checks who may delete contenders, in the znodes that were read."""

from __future__ import annotations

from lock_manager.deadline import Deadline
from lock_manager.zookeeper.acl_survey import survey_acls
from lock_manager.zookeeper.session import Session
from sluice.doctor.finding import Finding, note, ok

_WHAT = "ACL"


def acl_finding(session: Session, deadline: Deadline) -> Finding:
    """Look at the lock root, at some tables and at some of their partitions.

    Raises:
        KazooException: the connection broke meanwhile.

    """
    found = survey_acls(session, deadline)
    seen = f"{found.tables_checked} of {found.tables} tables and {found.partitions_checked} partitions were looked at"
    if found.open_node is None:
        return ok(_WHAT, f"not everybody may delete contenders; {seen}")
    named = "" if found.open_table is None else f", {found.open_table}"
    return note(
        _WHAT,
        f"whoever can connect may delete contenders, and so break any lock, below {found.open_node}{named} ({seen}): "
        "restrict who can connect, or set an ACL there, and for new ones in the settings (docs/security.md)",
    )
