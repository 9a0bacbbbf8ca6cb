"""Who may delete contenders: the ACL of their *parent* decides that, so every table and partition has its own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from kazoo.exceptions import NoNodeError

from lock_manager.errors import EnsembleRefusedError
from lock_manager.partitions import PARTITIONS
from lock_manager.zookeeper.hold_intents import intents_node
from lock_manager.zookeeper.session import Deadline, Session
from sluice.doctor.finding import Finding, note, ok

MOST_TABLES = 20
MOST_PARTITIONS = 100
"""Of all these tables together; with more than that, some are chosen by chance."""

_WHAT = "ACL"
_KEY_DIGITS = 64


def acl_finding(session: Session, deadline: Deadline) -> Finding:
    """Look at the lock root, at some tables and at some of their partitions.

    Raises:
        KazooException: the connection broke meanwhile.

    """
    root = session.settings.lock_root
    keys = [name for name in _children(session, [root], deadline).get(root, []) if len(name) == _KEY_DIGITS]
    tables = [f"{root}/{key}" for key in _some(keys, MOST_TABLES)]
    partitions = _partitions(session, tables, deadline)
    intents = [intents_node(table) for table in tables]
    looked = _answers(
        {node: session.client.get_acls_async(node) for node in (root, *tables, *partitions, *intents)},
        session,
        deadline,
    )
    seen = f"{len(tables)} of {len(keys)} tables and {len(partitions)} partitions were looked at"
    for node, (acls, _) in looked.items():
        if any(acl.id.scheme == "world" and _may_delete(acl) for acl in acls):
            return note(
                _WHAT,
                f"whoever can connect may delete contenders, and so break any lock, below {node}"
                f"{_table_named(session, node, deadline)} ({seen}): restrict who can connect, or set an ACL there, and "
                "for new ones in the settings (docs/security.md)",
            )
    return ok(_WHAT, f"not everybody may delete contenders; {seen}")


def _may_delete(acl: Any) -> bool:
    # With ADMIN, one may give oneself the rest.
    return bool({"ALL", "DELETE", "ADMIN"} & set(acl.acl_list))


def _some(names: Sequence[str], most: int) -> list[str]:
    return list(names) if len(names) <= most else random.sample(names, most)


def _partitions(session: Session, tables: Iterable[str], deadline: Deadline) -> list[str]:
    found: list[str] = []
    level = [f"{table}/{PARTITIONS}" for table in tables]
    while level and len(found) < MOST_PARTITIONS:
        children = _children(session, level, deadline)
        nodes = [f"{folder}/{name}" for folder, names in children.items() for name in names]
        nodes = _some(nodes, MOST_PARTITIONS - len(found))
        found += nodes
        level = [f"{node}/{PARTITIONS}" for node in nodes]
    return found


def _children(session: Session, nodes: Iterable[str], deadline: Deadline) -> dict[str, list[str]]:
    return _answers({node: session.client.get_children_async(node) for node in nodes}, session, deadline)


def _answers(asked: dict[str, Any], session: Session, deadline: Deadline) -> dict[str, Any]:
    """Return the answers; what is not there (any more) or may not be read is left out."""
    answers = {}
    for node, each in asked.items():
        with suppress(NoNodeError, EnsembleRefusedError):
            answers[node] = session.wait(each, deadline)
    return answers


def _table_named(session: Session, node: str, deadline: Deadline) -> str:
    """Name the table, if its znode says which it is."""
    with suppress(NoNodeError, EnsembleRefusedError, ValueError, KeyError, TypeError):
        data, _ = session.wait(session.client.get_async(node), deadline)
        return f", {json.loads(data)['uri']}"
    return ""
