"""The newest commits of a table's log, read again and again: a list and the new versions each time."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lock_manager.table_records.pins import PINS_FOLDER, Pin
from sluice.audit.log_files import LogCommit, read_commits, versions_in
from sluice.audit.log_folder import open_log
from sluice.audit.pins import read_pins
from sluice.errors import LogAccessError

COMMITS = 200
"""Number of commits that are kept."""

_LAST_CHECKPOINT = "_last_checkpoint"


class LogTail:
    """Reads a table's newest commits.

    Args:
        table: Canonical URI.
        storage_options: Options of ``deltalake``.
        client: Client of S3 that all tables share; None: a new one.

    Attributes:
        commits: The newest commits, the newest last, without their files; a sentence takes the place of one that cannot
            be parsed.

    Raises:
        LogAccessError: The location is of a kind that cannot be read.

    """

    def __init__(self, table: str, storage_options: Mapping[str, str], client: Any = None) -> None:
        self.commits: deque[LogCommit | str] = deque(maxlen=COMMITS)
        self._log = open_log(table, storage_options, client=client)
        self._pins = open_log(table, storage_options, folder=PINS_FOLDER, client=client)
        self._newest: int | None = None
        # The commit of the newest version, with its files.
        self._newest_commit: LogCommit | str = ""

    def read(self) -> list[LogCommit]:
        """Read the commits since the last call, or the newest commits; return those that can be parsed.

        After a DROP, or a DROP and CREATE, the commits of the dropped table are forgotten.

        Raises:
            LogAccessError: The store cannot be listed or read.

        """
        first = self._first_version() if self._newest is None else self._newest
        versions = versions_in(self._log.names(_name(first - 1)))
        if self._newest is not None and not self._is_same_table(versions):
            self._newest = None
            self.commits.clear()
            return self.read()
        new_versions = [version for version in versions if self._newest is None or version > self._newest][-COMMITS:]
        if not new_versions:
            return []
        commits = []
        for commit in read_commits(self._log, new_versions):
            self._newest_commit = commit
            # The files of a commit may be many.
            commits.append(commit if isinstance(commit, str) else replace(commit, adds=(), removes=()))
        self._newest = new_versions[-1]
        self.commits.extend(commits)
        return [commit for commit in commits if isinstance(commit, LogCommit)]

    def pins(self) -> list[Pin]:
        """Return the table's pins that have not expired.

        Raises:
            LogAccessError: The store cannot be listed or read.

        """
        return [pin for pin in read_pins(self._pins)[0] if not pin.has_expired()]

    def _is_same_table(self, versions: list[int]) -> bool:
        """Return whether the newest known version still exists, and is the same if there is a newer one."""
        if self._newest is None or self._newest not in versions:
            return False
        return versions[-1] == self._newest or [*read_commits(self._log, [self._newest])] == [self._newest_commit]

    def _first_version(self) -> int:
        """Return the first version to list; a list of the whole log may be long."""
        try:
            checkpoint = int(json.loads(self._log.read(_LAST_CHECKPOINT))["version"])
        except (LogAccessError, ValueError, TypeError, KeyError):
            return 0
        return max(0, checkpoint - COMMITS)


def _name(version: int) -> str:
    return f"{version:020}.json" if version >= 0 else ""
