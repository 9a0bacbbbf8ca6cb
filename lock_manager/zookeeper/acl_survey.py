"""Find znodes whose ACL lets every client delete contenders or intents. The ACL of their *parent* decides that."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kazoo.exceptions import NoNodeError

from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleRefusedError
from lock_manager.zookeeper.responses import wait_for_each
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.znodes import child_node, intents_node, is_table_name, partitions_node, table_uri

_MAX_TABLES = 20
_MAX_PARTITIONS = 100
"""Maximum number of partitions of all these tables. If there are more, the survey takes a random sample."""

_DELETE_PERMISSIONS = {"ALL", "DELETE", "ADMIN"}
"""Permissions with which a client can delete children. A client with ADMIN can grant itself DELETE."""

_UNREADABLE = (NoNodeError, EnsembleRefusedError)


@dataclass(frozen=True)
class AclSurvey:
    """The result of a survey.

    Attributes:
        tables: Number of tables below the lock root.
        tables_checked: Number of tables whose ACL was requested. An ACL that cannot be read does not count as open.
        partitions_checked: Number of partitions whose ACL was requested.
        open_node: A znode below which every client may delete; None if the survey found none.
        open_table: Canonical URI in the data of ``open_node``; None if it contains none.

    """

    tables: int
    tables_checked: int
    partitions_checked: int
    open_node: str | None
    open_table: str | None


def survey_acls(session: Session, deadline: Deadline) -> AclSurvey:
    """Read the ACLs of the lock root, of some tables and their intents, and of some of their partitions.

    Raises:
        KazooException, KazooTimeoutError: The ensemble did not respond, see ``session.UNANSWERED``.

    """
    root = session.settings.lock_root
    keys = [name for name in _children(session, [root], deadline).get(root, []) if is_table_name(name)]
    tables = [child_node(root, key) for key in _sample(keys, _MAX_TABLES)]
    partitions = _partitions(session, tables, deadline)
    nodes = (root, *tables, *partitions, *map(intents_node, tables))
    acls = dict(wait_for_each(session, session.client.get_acls_async, nodes, deadline, skip=_UNREADABLE))
    open_nodes = (
        node
        for node, (entries, _) in acls.items()
        if any(entry.id.scheme == "world" and _DELETE_PERMISSIONS & set(entry.acl_list) for entry in entries)
    )
    open_node = next(open_nodes, None)
    open_table = None
    if open_node is not None:
        with suppress(*_UNREADABLE):
            open_table = table_uri(session.wait(session.client.get_async(open_node), deadline)[0])
    return AclSurvey(len(keys), len(tables), len(partitions), open_node, open_table)


def _sample(names: Sequence[str], limit: int) -> list[str]:
    return list(names) if len(names) <= limit else random.sample(names, limit)


def _partitions(session: Session, tables: Iterable[str], deadline: Deadline) -> list[str]:
    partitions: list[str] = []
    folders = [partitions_node(table) for table in tables]
    while folders and len(partitions) < _MAX_PARTITIONS:
        children = _children(session, folders, deadline)
        level = [child_node(folder, name) for folder, names in children.items() for name in names]
        level = _sample(level, _MAX_PARTITIONS - len(partitions))
        partitions += level
        folders = [partitions_node(partition) for partition in level]
    return partitions


def _children(session: Session, nodes: Iterable[str], deadline: Deadline) -> dict[str, list[str]]:
    return dict(wait_for_each(session, session.client.get_children_async, nodes, deadline, skip=_UNREADABLE))
