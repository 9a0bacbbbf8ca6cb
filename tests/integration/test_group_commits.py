"""A holder commits the appends that wait behind it together with its own, in one version."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from kazoo.client import KazooClient
from pyarrow import table as arrow_table
from pyspark.sql import DataFrame, SparkSession

from lock_manager import EnsembleUnavailableError, LockCancelledError, ZookeeperLockManager
from lock_manager.events import Event, observe
from lock_manager.guard.group_commit import OfferedAppend
from lock_manager.table_records.commit_stamp import writer_infos
from lock_manager.zookeeper.held_lock import HeldLock
from tests.integration.test_gate_same import SQL_OF_COLUMNS, commits_of, contents_of, without_unique
from tests.support.at_the_gate import TableAtTheGate, commit_info
from tests.support.checksums import checksum_file
from tests.support.lock_znodes import LockZnodes
from tests.support.releases import needs_delta
from writer_jobs import CommitResult, LockedDeltaWriter, locked

pytestmark = pytest.mark.spark

SETTING = "spark.sluice.groupCommits"


@pytest.fixture(autouse=True)
def group_commits(spark: SparkSession) -> Iterator[None]:
    conf: Any = spark.sparkContext._jsc.sc().conf()
    conf.set(SETTING, "true")
    yield
    conf.remove(SETTING)


@pytest.fixture(autouse=True)
def no_hidden_failure(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """For Delta, the commit of a member succeeds, too."""
    yield
    assert "failed afterwards" not in caplog.text


@dataclass
class Table(TableAtTheGate):
    """A table whose appends wait in its queue until the test lets them pass."""

    def rows(self, number: int) -> DataFrame:
        return self.spark.createDataFrame([(number, number % 2)], "id long, part long").coalesce(1)

    def append(self, number: int, **options: Any) -> CommitResult:
        return self.writer.append(self.rows(number), **options)

    @contextmanager
    def queued(self, *appends: Callable[[], CommitResult]) -> Iterator[list[Future[CommitResult]]]:
        """Start appends that wait in the queue in this order until the end of the block."""
        with ThreadPoolExecutor(len(appends)) as pool:
            with self.manager.acquire(self.writer.table):
                running: list[Future[CommitResult]] = []
                for append in appends:
                    running.append(pool.submit(append))
                    length = len(running) + 1
                    self.eventually(
                        lambda length=length: self.queue_length() == length or running[-1].done(),
                        within=60,
                        label="an append in the queue",
                    )
                yield running
            for append in running:
                append.exception(120)

    def version(self) -> int:
        return DeltaTable(str(self.path)).version()

    def writers(self, version: int) -> list[Any]:
        """Return the write ids that the stamp of a version records."""
        stamp = commit_info(self.path, version)["sluice"]
        return [writer["sluice"]["commit_id"] for writer in stamp.get("group", [])] or [stamp["commit_id"]]

    def lines(self, version: int) -> list[dict[str, Any]]:
        text = (self.path / "_delta_log" / f"{version:020d}.json").read_text()
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    """A table with this driver's append as its version 1."""
    table = Table.create(request, "CREATE TABLE {t} (id LONG, part LONG) USING delta")
    table.append(0)
    return table


def test_appends_that_wait_are_committed_in_one_version(table: Table) -> None:
    events: Counter[Event] = Counter()
    with ExitStack() as on_exit:
        on_exit.callback(observe(lambda event, *_, **__: events.update([event])))
        running = on_exit.enter_context(
            table.queued(*(lambda number=number: table.append(number) for number in (1, 2, 3)))
        )
    results = [append.result() for append in running]
    assert (events[Event.COMMITTED], events[Event.GROUPED]) == (3, 2)
    assert [result.version for result in results] == [2, 2, 2]
    assert [result.rows for result in results] == [1, 1, 1]
    assert table.version() == 2
    assert table.writers(2) == [result.commit_id for result in results]
    assert table.ids() == [0, 1, 2, 3]
    assert table.append(4).version == 3
    assert table.ids() == [0, 1, 2, 3, 4]


def test_each_writer_has_its_record(table: Table) -> None:
    appends = [
        lambda: table.append(1, metadata={"part": "first"}, txn=("first", 7)),
        lambda: table.append(2, metadata={"part": "second"}, txn=("second", 8), options={"userMetadata": "mine"}),
    ]
    with table.queued(*appends) as running:
        pass
    first, second = (append.result() for append in running)
    lines = table.lines(2)
    info = lines[0]["commitInfo"]
    holder, member = info["sluice"]["group"]
    assert info["operationMetrics"]["numOutputRows"] == "2"
    assert holder["operationMetrics"]["numOutputRows"] == member["operationMetrics"]["numOutputRows"] == "1"
    assert member["sluice"]["job"] == info["sluice"]["job"]
    assert json.loads(info["userMetadata"])["sluice"]["part"] == "first"
    note = json.loads(member["userMetadata"])
    assert (note["sluice"]["part"], note["sluice"]["commit_id"], note["user"]) == ("second", second.commit_id, "mine")
    marks = {line["txn"]["appId"]: line["txn"]["version"] for line in lines if "txn" in line}
    assert marks == {"first": 7, "second": 8}
    assert (first.hold_id is None, second.hold_id, second.token) == (False, None, None)
    assert second.waited_seconds > 0
    assert table.append(2, txn=("second", 8)).already_committed


def test_the_checksum_of_a_group_commit_covers_all_of_its_files(table: Table) -> None:
    with table.queued(lambda: table.append(1), lambda: table.append(2)):
        pass
    checksum = json.loads(checksum_file(table.path, 2).read_text())
    files = DeltaTable(str(table.path)).get_add_actions(flatten=True)
    assert checksum["numFiles"] == 3
    assert checksum["tableSizeBytes"] == sum(files["size_bytes"].to_pylist())
    # Delta and this driver continue from that state.
    assert table.append(3).version == 3
    assert json.loads(checksum_file(table.path, 3).read_text())["numFiles"] == 4
    assert table.spark.read.format("delta").load(str(table.path)).count() == 4


@pytest.mark.parametrize(
    ("options", "versions"),
    [
        (None, [2, 3, 4]),
        pytest.param({"options": {"fs.sluice.test": "1"}}, [2, 3, 4], marks=pytest.mark.full),
        # More than 32 KiB.
        pytest.param({"metadata": {"text": "x" * 32_768}}, [2, 3, 4], marks=pytest.mark.full),
        # As the holder it takes the last append.
        pytest.param({"before_write": lambda _: None}, [2, 3, 3], marks=pytest.mark.full),
    ],
    ids=["delete", "option of a file system", "large", "before_write"],
)
def test_a_writer_that_cannot_join_ends_the_group(
    table: Table, options: dict[str, Any] | None, versions: list[int]
) -> None:
    """The lock is first come, first served: the last append does not overtake the one before it."""

    def write() -> CommitResult:
        return table.writer.delete("id = 0") if options is None else table.append(5, **options)

    with table.queued(lambda: table.append(1), write, lambda: table.append(2)) as running:
        pass
    assert [append.result().version for append in running] == versions
    assert table.ids() == ([1, 2] if options is None else [0, 1, 2, 5])


@pytest.fixture
def misfit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no holder take the appends with the metadata ``bad``."""
    real_data = OfferedAppend.data

    def data(append: OfferedAppend) -> dict[str, Any]:
        is_bad = json.loads(append.info["userMetadata"])["sluice"].get("bad")
        return {**real_data(append), **({"state": "other metadata"} if is_bad else {})}

    monkeypatch.setattr(OfferedAppend, "data", data)


def with_misfit(table: Table) -> list[Callable[[], CommitResult]]:
    """Return three appends; with the fixture ``misfit`` no holder takes the second one."""
    return [lambda: table.append(1), lambda: table.append(2, metadata={"bad": True}), lambda: table.append(3)]


@pytest.mark.usefixtures("misfit")
def test_a_member_that_does_not_fit_commits_in_its_turn(table: Table) -> None:
    with table.queued(*with_misfit(table)) as running:
        pass
    assert [append.result().version for append in running] == [2, 3, 2]
    assert table.ids() == [0, 1, 2, 3]


@pytest.mark.usefixtures("misfit")
def test_a_committed_append_is_not_taken_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first holder takes the third append, and does not remove it from the queue before the second one commits."""
    monkeypatch.setattr(HeldLock, "dismiss", lambda *_: None)
    with table.queued(*with_misfit(table)) as running:
        pass
    first, second, third = (append.result() for append in running)
    assert [first.version, second.version, third.version] == [2, 3, 2]
    assert table.writers(2) == [first.commit_id, third.commit_id]
    assert table.writers(3) == [second.commit_id]


@pytest.mark.usefixtures("misfit")
def test_no_append_overtakes_one_of_its_application(table: Table) -> None:
    """Else the table would have the later transaction, and the earlier one would count as a repetition."""
    appends = [
        lambda: table.append(1),
        lambda: table.append(2, txn=("loads", 1), metadata={"bad": True}),
        lambda: table.append(3, txn=("loads", 2)),
    ]
    with table.queued(*appends) as running:
        pass
    assert [append.result().version for append in running] == [2, 3, 4]
    assert table.ids() == [0, 1, 2, 3]


def test_a_member_with_a_transaction_finds_its_commit_in_its_turn(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta's check for conflicts finds the transaction in the version of the group, and takes it for another one."""
    monkeypatch.setattr(HeldLock, "dismiss", lambda *_: None)
    with table.queued(lambda: table.append(1), lambda: table.append(2, txn=("loads", 1))) as running:
        pass
    assert [append.result().version for append in running] == [2, 2]
    assert table.version() == 2
    assert table.ids() == [0, 1, 2]


def test_two_appends_of_one_transaction_are_in_two_versions_or_one_is_skipped(table: Table) -> None:
    """A version may have only one mark of an application."""
    appends = [lambda number=number: table.append(number, txn=("loads", number)) for number in (1, 2)]
    with table.queued(*appends) as running:
        pass
    assert [append.result().version for append in running] == [2, 3]
    assert table.ids() == [0, 1, 2]


def test_without_metrics_of_operations_the_writers_have_their_records(table: Table) -> None:
    setting = "spark.databricks.delta.history.metricsEnabled"
    table.spark.conf.set(setting, "false")
    try:
        with table.queued(lambda: table.append(1), lambda: table.append(2)) as running:
            pass
    finally:
        table.spark.conf.unset(setting)
    results = [append.result() for append in running]
    assert [(result.version, result.rows) for result in results] == [(2, None), (2, None)]
    assert table.writers(2) == [result.commit_id for result in results]


def test_a_member_continues_with_the_version_of_the_group(table: Table) -> None:
    with table.queued(lambda: table.append(1), lambda: table.append(2)):
        pass
    write_deltalake(str(table.path), arrow_table({"id": [5], "part": [1]}), mode="append")
    assert table.append(3).version == 4
    # Its last listing of the log was that after the group commit.
    assert commit_info(table.path, 4)["readVersion"] == 2


def test_a_removed_request_joins_the_queue_again(table: Table, ensemble_client: KazooClient) -> None:
    znodes = LockZnodes(ensemble_client, table.writer.table)
    with table.queued(lambda: table.append(1), lambda: table.append(2)) as running:
        removed = max(znodes.contenders(), key=lambda path: int(path[-10:]))
        ensemble_client.delete(removed)
        table.eventually(lambda: table.queue_length() == 3 and removed not in znodes.contenders(), within=30)
    # Its second request has no offer.
    assert [append.result().version for append in running] == [2, 3]
    assert table.ids() == [0, 1, 2]


def test_without_an_ensemble_an_append_is_not_committed(table: Table) -> None:
    with ZookeeperLockManager("127.0.0.1:1") as manager:
        writer = LockedDeltaWriter(table.spark, manager, str(table.path))
        rows = table.spark.createDataFrame([(1, 1)], "id long, part long").coalesce(1)
        with pytest.raises(EnsembleUnavailableError):
            writer.append(rows, lock_timeout_seconds=1)
    assert len(table.files()) == 1


def test_a_cancelled_append_is_not_in_the_group(table: Table) -> None:
    with ZookeeperLockManager(table.manager.settings) as manager:
        canceller = LockedDeltaWriter(table.spark, manager, str(table.path))
        appends = [lambda: table.append(1), lambda: canceller.append(table.spark.range(5, 6)), lambda: table.append(3)]
        with table.queued(*appends) as running:
            canceller.cancel()
            assert isinstance(running[1].exception(60), LockCancelledError)
    assert [running[index].result().version for index in (0, 2)] == [2, 2]
    assert table.ids() == [0, 1, 3]


def test_a_table_that_was_changed_meanwhile_gets_no_group(table: Table) -> None:
    with table.queued(lambda: table.append(1), lambda: table.append(2)) as running:
        # A writer without the lock adds a column, so Delta finds a conflict, and both write again.
        DeltaTable(str(table.path)).alter.add_columns([Field("word", PrimitiveType("string"))])
    assert sorted(append.result().version or 0 for append in running) == [3, 4]
    assert table.values("id", "word") == [(0, None), (1, None), (2, None)]


def test_a_change_by_another_writer_without_new_metadata_is_no_obstacle(table: Table) -> None:
    with table.queued(lambda: table.append(1), lambda: table.append(2)) as running:
        write_deltalake(str(table.path), arrow_table({"id": [5], "part": [1]}), mode="append")
    assert [append.result().version for append in running] == [3, 3]
    assert table.ids() == [0, 1, 2, 5]


def create(clause: str, columns: str = "id LONG, part LONG") -> str:
    return f"CREATE TABLE {{t}} ({columns}) USING delta {clause}"


PARTITIONED = create("PARTITIONED BY (part)")
ONE_VERSION, TWO_VERSIONS = [1, 1], [1, 2]
# The statements that create the table, and the versions of two appends that wait, after the table's.
TABLES = {
    "partitions": ([PARTITIONED], ONE_VERSION),
    "change data feed and deletion vectors": (
        [create("TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')")],
        ONE_VERSION,
    ),
    "append only": ([create("TBLPROPERTIES ('delta.appendOnly' = 'true')")], ONE_VERSION),
    "checkpoints and VACUUM": (
        [create("TBLPROPERTIES ('delta.checkpointPolicy' = 'v2', 'delta.feature.vacuumProtocolCheck' = 'supported')")],
        ONE_VERSION,
    ),
    "constraints": (
        [create("", "id LONG NOT NULL, part LONG"), "ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 100)"],
        ONE_VERSION,
    ),
    "generated column": ([create("", "id LONG, part LONG, twice LONG GENERATED ALWAYS AS (id * 2)")], ONE_VERSION),
    "column default": (
        [
            create(
                "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
                "id LONG, part LONG, word STRING DEFAULT 'a'",
            )
        ],
        ONE_VERSION,
    ),
    "column mapping": ([create("TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")], ONE_VERSION),
    "clustering": ([create("CLUSTER BY (id)")], ONE_VERSION),
    "wider type": (
        [
            create("TBLPROPERTIES ('delta.enableTypeWidening' = 'true')", "id LONG, part INT"),
            "ALTER TABLE {t} ALTER COLUMN part TYPE LONG",
        ],
        ONE_VERSION,
    ),
    "time without zone": ([create("", "id LONG, part LONG, at TIMESTAMP_NTZ")], ONE_VERSION),
    # Delta assigns row ids in the order of the versions.
    "row tracking": ([create("TBLPROPERTIES ('delta.enableRowTracking' = 'true')")], TWO_VERSIONS),
    "in-commit timestamps": ([create("TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')")], TWO_VERSIONS),
    "identity column": ([create("", "id LONG, part LONG, number LONG GENERATED ALWAYS AS IDENTITY")], TWO_VERSIONS),
}


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    marks = [] if name == "partitions" else [pytest.mark.full]
    return [*marks, needs_delta(SQL_OF_COLUMNS, name)] if name in ("generated column", "identity column") else marks


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in TABLES])
def test_a_group_has_the_actions_of_plain_appends(request: pytest.FixtureRequest, name: str) -> None:
    statements, versions = TABLES[name]
    table = Table.create(request, *statements)
    plain = request.getfixturevalue("copy_of")(*statements, to="plain")
    created = len(statements) - 1
    with table.queued(lambda: table.append(1), lambda: table.append(2)) as running:
        pass
    assert [append.result().version for append in running] == [created + version for version in versions]
    for number in (1, 2):
        with locked(table.spark, str(plain), manager=table.manager):
            table.rows(number).write.format("delta").mode("append").save(str(plain))
    assert actions_after(table.path, created) == actions_after(plain, created)


def actions_after(table: Path, version: int) -> tuple[list[Any], list[Any]]:
    """Return the actions after a version, without fields that differ between commits, and the rows of their files."""
    commits = commits_of(table)[version + 1 :]
    actions = [action for commit in commits for action in commit if "commitInfo" not in action]
    infos = [info for commit in commits for action in commit for info in writer_infos(action.get("commitInfo", {}))]
    records = [{name: info[name] for name in ("operationMetrics", "operationParameters")} for info in infos if info]
    return without_unique([actions, records]), contents_of(table, commits)


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "versions"),
    [
        # The control.
        ({"txn": ("a" * 20_000, 1)}, [1, 1, 1]),
        ({"txn": ("a" * 32_768, 1)}, [1, 2, 3]),
        ({"lock": [{"part": 0}]}, [1, 2, 3]),
        # It takes the append behind it along.
        ({"before_write": lambda _: None}, [1, 2, 2]),
    ],
    ids=["small", "large", "lock on a partition", "before_write"],
)
def test_limits_of_a_member(request: pytest.FixtureRequest, options: dict[str, Any], versions: list[int]) -> None:
    """An append that cannot be a member ends the group."""
    table = Table.create(request, PARTITIONED)
    appends = [lambda: table.append(1), lambda: table.append(2, **options), lambda: table.append(3)]
    with table.queued(*appends) as running:
        pass
    assert [append.result().version for append in running] == versions
    assert table.ids() == [1, 2, 3]


def test_without_the_setting_each_append_has_a_version(table: Table, spark: SparkSession) -> None:
    conf: Any = spark.sparkContext._jsc.sc().conf()
    conf.set(SETTING, "false")
    with table.queued(lambda: table.append(1), lambda: table.append(2)) as running:
        pass
    assert [append.result().version for append in running] == [2, 3]
