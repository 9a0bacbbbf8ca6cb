"""The queues of the locks on S3, read and changed from outside the writers."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress

from lock_manager import LockSettings, LockTimeoutError, TableResource
from lock_manager.managers import inspector_of, manager_of
from lock_manager.queue_entry import TableLocks


class LeaseQueues:
    """The queues of a coordinator on S3, read by an inspector.

    Args:
        url: URL of the coordinator.
        lease_seconds: Lease of the writers, in seconds.
        environment: Variables for boto3, such as the endpoint, in addition to those of this process.

    """

    def __init__(self, url: str, lease_seconds: float, environment: Mapping[str, str]) -> None:
        self._settings = LockSettings(lock_url=url, session_timeout_seconds=lease_seconds, job="soak")
        self._environment = environment
        self._inspector = inspector_of(self._settings)
        # boto3 reads the variables at the first request.
        with environment_variables(environment):
            self._inspector.ensemble_id()

    def contenders(self, table: str, job: str | None = None) -> list[str]:
        """Return the ids of the entries in a table's queue, optionally of one job only."""
        return [entry.hold_id for entry in self._locks(table).entries if job is None or entry.data.get("job") == job]

    def delete(self, table: str, token: int) -> None:
        """Remove the holder with this token, as ``sluice break`` does, if it holds the lock."""
        locks = self._locks(table)
        for entry in locks.holders:
            if entry.token == token:
                self._inspector.remove(locks, entry)

    def remove_dead(self, table: str, living: Collection[int], timeout_seconds: float) -> None:
        """Remove the entries of dead processes by a request that waits for longer than their lease.

        It sends no request if a living process has an entry: that entry is left from a request that has ended.

        Args:
            table: The table.
            living: Process ids of the writers.
            timeout_seconds: Time limit of the request, in seconds.

        """
        pids = {entry.data.get("pid") for entry in self._locks(table).entries}
        if not pids or pids & set(living):
            return
        with manager_of(self._settings) as manager:
            with environment_variables(self._environment):
                manager.connect()
            with suppress(LockTimeoutError):
                manager.acquire(table, timeout_seconds=timeout_seconds).release()

    @staticmethod
    def paths(table: str) -> re.Pattern[str]:
        """Return a pattern of the path of a table's queue on S3."""
        return re.compile(rf"/.*{TableResource.of(table).key}\.json")

    def _locks(self, table: str) -> TableLocks:
        return self._inspector.table(TableResource.of(table))


@contextmanager
def environment_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process until the block ends."""
    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
