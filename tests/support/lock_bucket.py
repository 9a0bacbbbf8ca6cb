"""A bucket for locks on S3, behind a gate that injects faults into requests for queues."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lock_manager import LockSettings, TableResource
from lock_manager.s3_lease.held_lease import HeldLease
from lock_manager.s3_lease.inspector import LeaseInspector
from lock_manager.s3_lease.manager import S3LeaseManager
from soak.s3_faults import FaultyS3, S3Fault

ROOT = Path(__file__).parents[2]
BUCKET = "locks"
QUEUES = re.compile(r"/locks/.*tables/[0-9a-f]{64}\.json")
NAME = "writer-1"
"""Name of the manager that faults strike."""
LEASE = 2.0
"""Shortest lease of the tests, in seconds."""
RENEWED_LEASE = 6.0
"""Lease of holders that have to renew it, also on a busy machine, in seconds."""


@contextmanager
def serving(s3: FaultyS3) -> Iterator[FaultyS3]:
    """Start an S3 with a bucket for locks, which boto3 finds by the environment."""
    with s3, pytest.MonkeyPatch.context() as environment:
        s3.create_bucket(BUCKET)
        for name, value in s3.environment.items():
            environment.setenv(name, value)
        yield s3


class LockBucket:
    """A prefix of a bucket for locks.

    Attributes:
        url: URL of a coordinator that no other test uses.
        prefix: Prefix of its objects.
        gate: The gate that injects faults into requests for queues.

    """

    def __init__(self, s3: FaultyS3, stack: ExitStack) -> None:
        self.prefix = uuid.uuid4().hex
        self.url = f"s3-lease://{BUCKET}/{self.prefix}"
        self.table = "s3://lake/table"
        self.gate = s3.gate
        self._stack = stack

    def manager(self, *, name: str = "", **settings: Any) -> S3LeaseManager:
        """Return a connected manager. With a name such as ``writer-1``, faults of that name strike it alone."""
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("AWS_SDK_UA_APP_ID", name)
            manager = self._stack.enter_context(S3LeaseManager(self.settings(**settings)))
            manager.connect()
        return manager

    @property
    def queue_key(self) -> str:
        """Key of the table's queue."""
        return f"{self.prefix}/tables/{TableResource.of(self.table).key}.json"

    def settings(self, **settings: Any) -> LockSettings:
        return LockSettings(lock_url=self.url, **{"timeout_seconds": 20, "session_timeout_seconds": 30, **settings})

    @contextmanager
    def striking(
        self,
        name: str = NAME,
        methods: Collection[str] = ("PUT",),
        keys: re.Pattern[str] = QUEUES,
        **fault: Any,
    ) -> Iterator[S3Fault]:
        """Let a fault strike the next requests of a manager, by default for a queue, until the block ends."""
        try:
            yield self.gate.arm(name, S3Fault(keys=keys, methods=frozenset(methods), **fault))
        finally:
            self.gate.disarm(name)

    @property
    def entries(self) -> list[str]:
        """Hold ids in the queue."""
        locks = LeaseInspector(self.settings()).table(TableResource.of(self.table))
        return [entry.hold_id for entry in locks.entries]

    def revoke(self, hold: HeldLease) -> None:
        """Remove a hold, as ``sluice break`` does."""
        inspector = LeaseInspector(self.settings())
        locks = inspector.table(TableResource.of(self.table))
        (entry,) = [entry for entry in locks.entries if entry.hold_id == hold.hold_id]
        assert inspector.remove(locks, entry)

    @contextmanager
    def holder_process(self, lease_seconds: float) -> Iterator[HolderProcess]:
        """Start a process that requests the lock and holds it."""
        command = [sys.executable, "-m", "tests.support.lease_holder", self.url, self.table, str(lease_seconds)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield HolderProcess(process)
            finally:
                process.send_signal(signal.SIGCONT)
                process.kill()


class HolderProcess:
    """A process of ``tests.support.lease_holder``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def intend(self, version: int) -> str:
        """Let the holder store an intent; return its answer."""
        print(version, file=self._process.stdin, flush=True)
        return self.answer()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()
