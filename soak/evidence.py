"""The evidence for the verdict: the history, the logs, the rows, and the store's record of PUTs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sluice
from sluice.audit.log_files import LogCommit, read_commits, versions_in
from sluice.audit.log_folder import open_log
from soak.s3_faults import Put

Event = Mapping[str, Any]
"""One line of the history."""


@dataclass(frozen=True, kw_only=True)
class TableState:
    """The final state of one table.

    Attributes:
        commits: Commits of its log, in order.
        unreadable: Messages about version files that cannot be parsed.
        versions: Versions with a version file.
        row_ids: Values of the column ``id``, as the ``deltalake`` package reads them.
        read_error: Reason why ``deltalake`` cannot read the table; empty if it can.
        history_versions: Versions in ``deltalake``'s history of the table.
        transactions: Newest version of each application's ``txn``, as ``deltalake`` reads it.

    """

    commits: Sequence[LogCommit]
    unreadable: Sequence[str] = ()
    versions: Sequence[int]
    row_ids: Sequence[int]
    read_error: str = ""
    history_versions: Sequence[int] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that the verdict depends on.

    Attributes:
        history: Events of writers and faults, in order of arrival.
        tables: Final state of each table, by URI.
        puts: PUTs of version files that reached the embedded S3; empty for another S3.
        session_seconds: Session timeout that ZooKeeper granted, or the lease on S3, in seconds.
        tick_seconds: ZooKeeper's tick, or the time between three reads of a waiter on S3, in seconds.
        engine_info: Prefix of ``engineInfo`` in the commits of writers that record each attempt; empty if there are
            no such writers.

    """

    history: Sequence[Event]
    tables: Mapping[str, TableState]
    puts: Sequence[Put] = field(default_factory=tuple)
    session_seconds: float
    tick_seconds: float
    engine_info: str = "sluice-soak"


def read_table(table: str, storage_options: Mapping[str, str], applications: Collection[str] = ()) -> TableState:
    """Read a table with ``sluice.audit`` and ``deltalake``, which the writers do not use.

    Args:
        table: URI.
        storage_options: Options of ``deltalake``.
        applications: Ids of the applications whose transactions are read.

    """
    uri = table.replace("s3a://", "s3://", 1)
    log = open_log(uri, storage_options)
    versions = versions_in(log.names())
    commits = list(read_commits(log, versions))
    content: dict[str, Any] = {"rows": [], "versions": [], "transactions": {}}
    read_error = ""
    if versions:
        command = [sys.executable, "-m", "soak.reader", uri, *applications]
        path = os.pathsep.join([str(Path(sluice.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, **storage_options, "PYTHONPATH": path}
        reader = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if reader.returncode == 0:
            content = json.loads(reader.stdout)
        else:
            read_error = (reader.stderr.strip().splitlines() or ["the reader gave no reason"])[-1]
    return TableState(
        commits=[commit for commit in commits if isinstance(commit, LogCommit)],
        unreadable=[message for message in commits if isinstance(message, str)],
        versions=versions,
        row_ids=content["rows"],
        read_error=read_error,
        history_versions=content["versions"],
        transactions=content["transactions"],
    )
