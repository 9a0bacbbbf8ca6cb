"""The evidence for the verdict: the history, the log, the rows, the store's own record."""

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
from sluice.audit.log_files import LogCommit, read_commits, version_files
from sluice.audit.log_folder import open_log
from soak.s3_faults import Put

Event = Mapping[str, Any]
"""One line of the history."""


@dataclass(frozen=True, kw_only=True)
class TableState:
    """What one table looks like at the end.

    Attributes:
        commits: of its log, in order.
        unreadable: sentences about version files that could not be parsed.
        versions: whose files are there.
        rows: the column ``id``, as the ``deltalake`` package reads it.
        unread: why ``deltalake`` could not read the table; empty if it could.
        history_versions: versions in ``deltalake``'s own history of it.
        transactions: newest version of each application's ``txn``, as ``deltalake`` reads it.

    """

    commits: Sequence[LogCommit]
    unreadable: Sequence[str] = ()
    versions: Sequence[int]
    rows: Sequence[int]
    unread: str = ""
    history_versions: Sequence[int] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that a verdict goes by.

    Attributes:
        history: what writers and faults said, in order of arrival.
        tables: by URI.
        puts: PUTs of version files that reached the store; empty for a store that is not ours.
        session_seconds: session time-out that was granted.
        tick_seconds: ZooKeeper's unit of time.
        engine: how ``engineInfo`` begins in commits of writers whose every attempt is in the history; empty if there
            are none.

    """

    history: Sequence[Event]
    tables: Mapping[str, TableState]
    puts: Sequence[Put] = field(default_factory=tuple)
    session_seconds: float
    tick_seconds: float
    engine: str = "sluice-soak"


def read_table(table: str, storage_options: Mapping[str, str], applications: Collection[str] = ()) -> TableState:
    """Read a table, with readers that are not the writers' own.

    Args:
        table: URI.
        storage_options: as ``deltalake`` takes them.
        applications: ids of the applications whose transactions are read.

    """
    uri = table.replace("s3a://", "s3://", 1)
    log = open_log(uri, storage_options)
    versions = version_files(log.names())
    read = list(read_commits(log, versions))
    found: dict[str, Any] = {"rows": [], "versions": [], "transactions": {}}
    unread = ""
    if versions:
        command = [sys.executable, "-m", "soak.reader", uri, *applications]
        path = os.pathsep.join([str(Path(sluice.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, **storage_options, "PYTHONPATH": path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found = json.loads(done.stdout)
        else:
            unread = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
    return TableState(
        commits=[each for each in read if isinstance(each, LogCommit)],
        unreadable=[each for each in read if isinstance(each, str)],
        versions=versions,
        rows=found["rows"],
        unread=unread,
        history_versions=found["versions"],
        transactions=found["transactions"],
    )
