"""The newest commits of a table's log, read again and again: a list and the new versions each time."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lock_manager.table_records.pins import PINS_FOLDER, Pin
from sluice.audit.log_files import LogCommit, read_commits, versions_in
from sluice.audit.log_folder import open_log
from sluice.audit.pins import read_pins
from sluice.errors import LogAccessError
from sluice.ui.history import HISTORY_SECONDS

COMMITS = 200
"""Number of commits that are kept, and that are read at once."""
MAX_NEW_COMMITS = 1000
"""Number of commits that a call of :meth:`LogTail.read` returns at most."""

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
        """Read the commits since the last call, at first those of the last hour; return those that can be parsed.

        These are :data:`MAX_NEW_COMMITS` at most, the newest. The first of them may be older than an hour. After a
        DROP, or a DROP and CREATE, the commits of the dropped table are forgotten.

        Raises:
            LogAccessError: The store cannot be listed or read.

        """
        first = self._first_version() if self._newest is None else self._newest
        versions = versions_in(self._log.names(_name(first - 1)))
        if self._newest is not None and not self._is_same_table(versions):
            self._newest = None
            self.commits.clear()
            return self.read()
        new_versions = [version for version in versions if self._newest is None or version > self._newest]
        commits: list[LogCommit | str] = []
        newest_commit: LogCommit | str | None = None
        for end in range(len(new_versions), max(0, len(new_versions) - MAX_NEW_COMMITS), -COMMITS):
            older_commits: list[LogCommit | str] = []
            for commit in read_commits(self._log, new_versions[max(0, end - COMMITS) : end]):
                if end == len(new_versions):
                    newest_commit = commit
                # The files of a commit may be many.
                older_commits.append(commit if isinstance(commit, str) else replace(commit, adds=(), removes=()))
            commits = [*older_commits, *commits]
            if _goes_back_an_hour(commits):
                break
        if newest_commit is None:
            return []
        self._newest, self._newest_commit = new_versions[-1], newest_commit
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
        return max(0, checkpoint - MAX_NEW_COMMITS)


def _goes_back_an_hour(commits: Iterable[LogCommit | str]) -> bool:
    times = (commit.timestamp for commit in commits if isinstance(commit, LogCommit) and commit.timestamp is not None)
    oldest = next(times, None)
    return oldest is not None and oldest < time.time() - HISTORY_SECONDS


def _name(version: int) -> str:
    return f"{version:020}.json" if version >= 0 else ""
