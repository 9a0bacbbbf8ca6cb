"""Finds znodes whose ACL lets strangers delete contenders; the ACL of a contender's *parent* decides that."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import NoNodeError

from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleRefusedError
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.znodes import intents_node, is_table_name, partition_in, partitions_node, table_node_of

_MOST_TABLES = 20
_MOST_PARTITIONS = 100
"""Of all these tables together; with more than that, some are chosen by chance."""


@dataclass(frozen=True)
class AclSurvey:
    """What was found.

    Attributes:
        tables: how many there are.
        tables_seen: how many of them were looked at.
        partitions_seen: likewise, of partitions.
        open_node: the first node below which everybody may delete, as far as was looked; None: there is none.
        open_table: URI of its table, if its znode says which it is.

    """

    tables: int
    tables_seen: int
    partitions_seen: int
    open_node: str | None
    open_table: str | None


def survey_acls(session: Session, deadline: Deadline) -> AclSurvey:
    """Look at the lock root, at some tables and at some of their partitions.

    Raises:
        KazooException: the connection broke meanwhile.

    """
    root = session.settings.lock_root
    keys = [name for name in _children(session, [root], deadline).get(root, []) if is_table_name(name)]
    tables = [table_node_of(root, key) for key in _some(keys, _MOST_TABLES)]
    partitions = _partitions(session, tables, deadline)
    intents = [intents_node(table) for table in tables]
    looked = _answers(
        {node: session.client.get_acls_async(node) for node in (root, *tables, *partitions, *intents)},
        session,
        deadline,
    )
    is_open = (
        node for node, (acls, _) in looked.items() if any(acl.id.scheme == "world" and _may_delete(acl) for acl in acls)
    )
    first = next(is_open, None)
    named = None if first is None else _table_named(session, first, deadline)
    return AclSurvey(len(keys), len(tables), len(partitions), first, named)


def _may_delete(acl: Any) -> bool:
    # With ADMIN, one may give oneself the rest.
    return bool({"ALL", "DELETE", "ADMIN"} & set(acl.acl_list))


def _some(names: Sequence[str], most: int) -> list[str]:
    return list(names) if len(names) <= most else random.sample(names, most)


def _partitions(session: Session, tables: Iterable[str], deadline: Deadline) -> list[str]:
    found: list[str] = []
    level = [partitions_node(table) for table in tables]
    while level and len(found) < _MOST_PARTITIONS:
        children = _children(session, level, deadline)
        nodes = [partition_in(folder, name) for folder, names in children.items() for name in names]
        nodes = _some(nodes, _MOST_PARTITIONS - len(found))
        found += nodes
        level = [partitions_node(node) for node in nodes]
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


def _table_named(session: Session, node: str, deadline: Deadline) -> str | None:
    with suppress(NoNodeError, EnsembleRefusedError, ValueError, KeyError, TypeError):
        data, _ = session.wait(session.client.get_async(node), deadline)
        return str(json.loads(data)["uri"])
    return None
