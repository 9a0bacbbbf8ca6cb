"""The policies of a stack with locks on S3 allow the requests that the locks send to a real store, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from components.locks import queue_policy

from lock_manager import LockSettings, TableResource
from lock_manager.s3_lease.inspector import LeaseInspector
from lock_manager.s3_lease.manager import S3LeaseManager
from tests.support.graph import CONFIGURATIONS, INFRA, ROOT, Graph, graphs
from tests.support.iam_evaluator import Request, is_allowed, s3
from tests.support.lease_requests import lease_requests, request_kind
from tests.support.recording_s3 import RecordingS3
from tests.support.waiting import lock_timeout

TABLE = "s3://lake/flights"
ROLE, REPAIR = (f"arn:aws:iam::123456789012:role/{name}" for name in ("etl", "repair"))
BUCKET = "arn:aws:s3:::locks"
QUEUE = f"{BUCKET}/locks/tables/{64 * 'a'}.json"
#: The worst case: the caller's own policies allow everything.
ADMINISTRATOR = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
BUCKET_STATEMENTS = [ADMINISTRATOR, *queue_policy(BUCKET, [REPAIR])]
CONFIGURATIONS_WITH_LOCKS = [name for name in CONFIGURATIONS if name.startswith("locks on S3")]


@dataclass(frozen=True)
class Recorded:
    """Requests of the locks as IAM sees them, without a principal.

    Attributes:
        writers: Requests of managers that acquire locks and commit.
        operator: Requests of ``sluice status`` and ``sluice break``.
        commit: HTTP methods of a commit of a manager that has changed the queue last.
        commit_in_turn: HTTP methods of a commit of a manager after another has changed the queue.

    """

    writers: list[Request]
    operator: list[Request]
    commit: list[str]
    commit_in_turn: list[str]


@pytest.fixture(scope="module")
def stacks() -> Mapping[str, Graph]:
    names = CONFIGURATIONS_WITH_LOCKS
    results = graphs([(INFRA, CONFIGURATIONS[name]) for name in names])
    stacks = {name: stack for name, stack in zip(names, results, strict=True) if isinstance(stack, Graph)}
    assert list(stacks) == names
    return stacks


@pytest.fixture(scope="module")
def settings(stacks: Mapping[str, Graph], tmp_path_factory: pytest.TempPathFactory) -> LockSettings:
    """Settings that ``sluice config from-stack`` writes for a writer."""
    folder = tmp_path_factory.mktemp("settings")
    (folder / "outputs.json").write_text(json.dumps(stacks["locks on S3"].outputs))
    command = [sys.executable, "-m", "sluice", "config", "from-stack", str(folder / "outputs.json")]
    process = subprocess.run(
        [*command, "--output", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (process.returncode, "secret" in process.stdout) == (0, False), process.stderr + process.stdout
    return LockSettings.from_env(_variables(folder / "sluice.env"), timeout_seconds=30)


def _variables(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text(encoding="utf-8").splitlines())


@pytest.fixture(scope="module")
def recorded(settings: LockSettings) -> Iterator[Recorded]:
    with RecordingS3() as store, pytest.MonkeyPatch.context() as environment:
        for name, value in store.environment.items():
            environment.setenv(name, value)
        store.create_bucket("locks")
        store.forget()
        with S3LeaseManager(settings) as manager, S3LeaseManager(settings) as second_manager:
            # The first commits also create objects, and one that takes over a second also writes its time.
            commits = [_methods(store, manager, version) for version in range(4)]
            commits_in_turn = [
                _methods(store, (manager, second_manager)[version % 2], version) for version in range(4, 10)
            ]
            hold = manager.acquire(TABLE)
            hold.check()
            with ThreadPoolExecutor(1) as pool:
                lock_timeout(pool.submit(second_manager.acquire, TABLE, timeout_seconds=1).result)
            writers = store.requests
            store.forget()
            inspector = LeaseInspector(settings)
            (table,) = inspector.tables()
            assert inspector.remove(inspector.table(TableResource.of(TABLE)), table.entries[0])
            yield Recorded(writers, store.requests, min(commits, key=len), min(commits_in_turn[2:], key=len))


def _methods(store: RecordingS3, manager: S3LeaseManager, version: int) -> list[str]:
    """Commit; return the HTTP methods of the requests."""
    store.methods = []
    attempt = f"attempt {version}"
    with manager.acquire(TABLE) as hold:
        hold.intend(version, txn=None, attempt=attempt)
        hold.intents.settle([attempt])
    return store.methods


def statements(stack: Graph, role: str) -> list[Mapping[str, Any]]:
    """Return the statements of a role and of the bucket of the locks."""
    policies = stack.one("Policy", f"access-{role}"), stack.one("BucketPolicy", "locks")
    return [statement for policy in policies for statement in policy.document()["Statement"]]


@pytest.mark.parametrize("configuration", CONFIGURATIONS_WITH_LOCKS)
@pytest.mark.parametrize("role", ["appender", "maintenance", "operator"])
class TestARole:
    def test_may_send_each_request_of_the_locks(
        self, configuration: str, role: str, stacks: Mapping[str, Graph], recorded: Recorded
    ) -> None:
        requests = recorded.operator if role == "operator" else recorded.writers
        allowed_by = statements(stacks[configuration], role)
        assert [request for request in requests if not is_allowed(replace(request, principal=ROLE), allowed_by)] == []

    def test_may_do_nothing_else_with_the_locks(
        self, configuration: str, role: str, stacks: Mapping[str, Graph], recorded: Recorded
    ) -> None:
        allowed_by = statements(stacks[configuration], role)
        permissions = {
            (action, resource)
            for statement in allowed_by
            if statement["Effect"] == "Allow"
            for action in as_list(statement["Action"])
            for resource in as_list(statement["Resource"])
            if resource.startswith(BUCKET) or resource == "*"
        }
        objects = f"{BUCKET}/locks/*"
        assert permissions == {("s3:GetObject", objects), ("s3:PutObject", objects), ("s3:ListBucket", BUCKET)}
        assert {action for action, _ in permissions} == {request.action for request in recorded.writers}
        assert not is_allowed(s3(ROLE, "DeleteObject", QUEUE), allowed_by)
        assert not is_allowed(s3(ROLE, "PutObject", QUEUE), allowed_by)
        assert not is_allowed(s3(ROLE, "PutObject", f"{BUCKET}/other/x", **{"s3:if-none-match": "*"}), allowed_by)


def as_list(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


def test_the_listed_requests_are_those_of_the_locks(recorded: Recorded, settings: LockSettings) -> None:
    listed = {request_kind(request) for request in lease_requests(ROLE, settings.lock_url)}
    assert {request_kind(request) for request in recorded.writers + recorded.operator} == listed


def test_a_commit_takes_the_documented_requests(recorded: Recorded) -> None:
    assert Counter(recorded.commit) == {"PUT": 3}
    assert Counter(recorded.commit_in_turn) == {"PUT": 4, "GET": 1}
    documentation = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert "| 1,000 commits of one writer | 3,000 PUT | 0.015 |" in documentation
    assert "| 1,000 commits of writers that take turns | 4,000 PUT, 1,000 GET | 0.020 |" in documentation


class TestAQueue:
    @pytest.mark.parametrize("condition", [{"s3:if-match": '"etag"'}, {"s3:if-none-match": "*"}])
    def test_is_put_with_a_condition(self, condition: dict[str, str]) -> None:
        assert is_allowed(s3(ROLE, "PutObject", QUEUE, **condition), BUCKET_STATEMENTS)

    @pytest.mark.parametrize("creates", ["true", "false"])
    def test_is_not_put_without_a_condition(self, creates: str) -> None:
        request = s3(ROLE, "PutObject", QUEUE, **{"s3:ObjectCreationOperation": creates})
        assert not is_allowed(request, BUCKET_STATEMENTS)
        assert is_allowed(replace(request, principal=REPAIR), BUCKET_STATEMENTS)

    @pytest.mark.parametrize("action", ["DeleteObject", "DeleteObjectVersion"])
    def test_is_deleted_by_exempt_principals_only(self, action: str) -> None:
        assert not is_allowed(s3(ROLE, action, QUEUE, **{"s3:if-match": '"etag"'}), BUCKET_STATEMENTS)
        assert is_allowed(s3(REPAIR, action, QUEUE), BUCKET_STATEMENTS)
        assert not is_allowed(s3(REPAIR, action, QUEUE), [ADMINISTRATOR, *queue_policy(BUCKET)])

    def test_negative_control_without_the_policy_all_requests_pass(self) -> None:
        for action in ("PutObject", "DeleteObject", "DeleteObjectVersion"):
            assert is_allowed(s3(ROLE, action, QUEUE), [ADMINISTRATOR])
