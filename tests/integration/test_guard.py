"""The commit guard in a real Spark driver: allowed commits, refused commits, and their errors."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, QueryBuilder
from deltalake.schema import PrimitiveType
from kazoo.client import KazooClient
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from lock_manager import LockLostError, LockNotHeldError, TableResource, ZookeeperLockManager
from lock_manager.guard.guard_server import GuardServer
from lock_manager.releases import ALLOW_UNTESTED
from sluice.doctor.machine import machine_findings
from tests.support.at_the_gate import commit_info
from tests.support.lake import S3
from tests.support.lock_znodes import DEAD_HOLD, LockZnodes
from tests.support.new_thread import in_new_thread
from tests.support.spark_settings import spark_settings
from writer_jobs import (
    GuardMissingError,
    LockedDeltaWriter,
    TableError,
    UnsupportedSessionError,
    attach,
    build_session,
    locked,
)
from writer_jobs.commit.driver_guard import GUARD
from writer_jobs.commit.guarded import guarded
from writer_jobs.delta.releases import driver_releases
from writer_jobs.delta.table_log import DeltaTableLog

pytestmark = pytest.mark.spark


@dataclass
class Table:
    """A table, its lock and the znodes of the lock."""

    spark: SparkSession
    manager: ZookeeperLockManager
    client: KazooClient
    path: str

    @property
    def znodes(self) -> LockZnodes:
        return LockZnodes(self.client, self.path)

    def locked(self) -> AbstractContextManager[Any]:
        return locked(self.spark, self.path, manager=self.manager)

    def append(self, start: int, end: int) -> None:
        append(self.spark.range(start, end), self.path)

    def ids(self) -> list[int]:
        """Read the ids with delta-rs."""
        rows = QueryBuilder().register("t", DeltaTable(self.path)).execute("select id from t").read_all()
        return sorted(rows.column("id").to_pylist())

    def version(self) -> int:
        return int(DeltaTable(self.path).version())

    def stamp(self, version: int) -> dict[str, Any]:
        """Return the stamp of a commit."""
        stamp: dict[str, Any] = commit_info(self.path, version)["sluice"]
        return stamp

    def exists(self) -> bool:
        return any(Path(self.path).glob("_delta_log/*.json"))

    def leave_intent(self, version: int) -> None:
        """Leave the intent of a writer that was killed between the guard's check and the end of its PUT."""
        self.manager.acquire(self.path).release()
        self.znodes.leave_intent(version)


@pytest.fixture
def new_table(
    spark: SparkSession, manager: ZookeeperLockManager, ensemble_client: KazooClient, tmp_path: Path
) -> Table:
    """A table that does not exist yet."""
    return Table(spark, manager, ensemble_client, str(tmp_path / "table"))


@pytest.fixture
def table(new_table: Table, copy_of: Callable[..., Path]) -> Table:
    """A table with the ids 0 and 1 and one version."""
    path = copy_of("create table {t} using delta as select id from range(0, 2, 1, 1)")
    return replace(new_table, path=str(path))


def append(rows: DataFrame, path: str) -> None:
    rows.coalesce(1).write.format("delta").mode("append").save(path)


@pytest.mark.full
@pytest.mark.s3
def test_on_s3_a_commit_needs_the_lock(new_table: Table, s3: S3) -> None:
    table = replace(new_table, path=f"s3a://{s3.root}/guarded")
    with locked(table.spark, f"s3://{s3.root}//guarded/", manager=table.manager):
        table.append(0, 2)
        table.spark.sql(f"DELETE FROM delta.`{table.path}` WHERE id = 0")
    with pytest.raises(LockNotHeldError):
        table.append(0, 2)
    reader = replace(table, path=f"s3://{s3.root}/guarded")
    assert (reader.ids(), reader.version()) == ([1], 1)


@pytest.mark.full
def test_a_commit_needs_the_lock_of_its_own_table(new_table: Table, tmp_path: Path) -> None:
    table, second_table = (replace(new_table, path=str(tmp_path / name)) for name in "ab")
    with table.locked():
        with pytest.raises(LockNotHeldError, match="holds only file:"):
            second_table.append(0, 1)
        with second_table.locked():
            table.append(0, 1)
            second_table.append(0, 1)
        table.append(0, 1)
    with pytest.raises(LockNotHeldError):
        table.append(0, 1)
    assert (table.version(), second_table.version()) == (1, 0)


def test_only_an_inheritable_thread_inherits_the_hold(new_table: Table) -> None:
    errors: list[BaseException | None] = []

    def write() -> None:
        try:
            new_table.append(0, 1)
            errors.append(None)
        except LockNotHeldError as error:
            errors.append(error)

    with new_table.locked():
        for thread_class in (InheritableThread, threading.Thread):
            thread = thread_class(target=write)
            thread.start()
            thread.join()
    inheriting_error, plain_error = errors
    assert inheriting_error is None
    assert isinstance(plain_error, LockNotHeldError)


@pytest.mark.full
def test_another_hold_of_the_process_does_not_replace_a_lost_one(table: Table) -> None:
    with pytest.raises(LockLostError):
        with table.locked() as lost:
            assert len(table.znodes.contenders()) == 1
            table.znodes.delete_contenders()

            def append_under_another_hold() -> None:
                with table.locked():
                    table.append(2, 3)

            in_new_thread(append_under_another_hold).result()
            with pytest.raises(LockLostError) as refused:
                table.append(3, 4)
            assert refused.value.hold_id == lost.hold_id
    assert table.ids() == [0, 1, 2]


@pytest.mark.full
def test_a_lost_hold_names_its_commits(new_table: Table) -> None:
    uri = TableResource.of(new_table.path).uri
    with pytest.raises(LockLostError) as lost_after_commits, new_table.locked():
        new_table.append(0, 1)
        new_table.append(1, 2)
        new_table.znodes.delete_contenders()
    assert lost_after_commits.value.commits == {uri: (0, 1)}
    with pytest.raises(LockLostError) as lost_before_commit, new_table.locked():
        new_table.append(2, 3)
        new_table.znodes.delete_contenders()
        new_table.append(3, 4)
    assert lost_before_commit.value.commits == {uri: (2,)}
    assert new_table.ids() == [0, 1, 2]


def test_a_hold_beyond_its_bound_ends_and_commits_nothing(table: Table, zookeeper: Any) -> None:
    lost = threading.Event()
    with ZookeeperLockManager(zookeeper.hosts, 30, max_hold_seconds=1) as bounded:
        with pytest.raises(LockLostError, match="max_hold_seconds=1"):
            with replace(table, manager=bounded).locked() as hold:
                hold.on_loss(lambda _: lost.set())
                assert lost.wait(30)
                # The next holder does not wait for the end of the block.
                with table.manager.acquire(f"{table.path}/", timeout_seconds=30):
                    assert not hold.is_valid()
                table.append(2, 3)
        # The control: without the bound the same append is committed.
        with table.locked():
            table.append(3, 4)
    assert table.ids() == [0, 1, 3]


def test_ctrl_c_releases_the_lock_and_refuses_the_commit(
    table: Table, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    """The JVM is committing when the interrupt comes, and goes on."""
    check_began, check_may_continue, answers = threading.Event(), threading.Event(), list[dict[str, Any]]()
    check, main_thread = GUARD.check, threading.main_thread().ident
    assert main_thread is not None

    def check_late(request: str) -> str:
        check_began.set()
        check_may_continue.wait(60)
        answers.append(json.loads(check(request)))
        return json.dumps(answers[-1])

    def interrupt() -> None:
        check_began.wait(60)
        signal.pthread_kill(main_thread, signal.SIGINT)

    monkeypatch.setattr(GUARD, "check", check_late)
    interrupting = in_new_thread(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), table.locked():
            table.append(2, 3)
        assert table.znodes.contenders() == []
        assert table.znodes.intents() == {}
        table.manager.acquire(table.path, timeout_seconds=0).release()
    finally:
        check_may_continue.set()
        interrupting.result()
    eventually(lambda: answers, label="the answer to the interrupted commit")
    assert answers[0]["refused"] == "LockNotHeldError"
    monkeypatch.undo()
    with table.locked():
        table.append(3, 4)
    assert table.ids() == [0, 1, 3]


def shared_block(table: Table, hold: Any) -> AbstractContextManager[None]:
    """Open a guarded block under a shared hold."""
    return guarded(table.spark, hold, DeltaTableLog(table.spark, f"file:{table.path}"), {})


def test_a_shared_hold_commits_nothing(new_table: Table) -> None:
    with new_table.manager.acquire(new_table.path, shared=True) as hold, shared_block(new_table, hold):
        with pytest.raises(LockNotHeldError, match="shared"):
            new_table.append(0, 1)
    assert not new_table.exists()


def test_a_commit_contains_its_hold(new_table: Table) -> None:
    with new_table.locked() as hold:
        new_table.append(0, 1)
    stamp = new_table.stamp(0)
    assert (stamp["hold"], stamp["ensemble"]) == (hold.hold_id, hold.ensemble_id)
    assert stamp["nodes"] == [{"key": key, "mode": "exclusive", "token": token} for key, token in hold.tokens.items()]


@pytest.mark.full
def test_catalog_names_are_locked_before_the_table_exists(
    spark: SparkSession, manager: ZookeeperLockManager, new_table: Table, tmp_path: Path
) -> None:
    name = f"guarded_{tmp_path.name.replace('-', '_')}"
    with locked(spark, name, manager=manager):
        spark.range(1).coalesce(1).write.format("delta").saveAsTable(name)
    with locked(spark, f"default.{name}", manager=manager):
        spark.sql(f"INSERT INTO {name} VALUES (7)")
    with pytest.raises(LockNotHeldError):
        spark.sql(f"INSERT INTO {name} VALUES (8)")
    warehouse = spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")
    assert replace(new_table, path=f"{warehouse}/{name}").ids() == [0, 7]
    with locked(spark, name, manager=manager):
        spark.sql(f"DROP TABLE {name}")


@pytest.mark.full
def test_a_stream_raises_the_refusal_of_a_batch(table: Table, tmp_path: Path) -> None:
    sink = replace(table, path=str(tmp_path / "sink"))

    def append_with_and_without_the_lock(batch: DataFrame, _number: int) -> None:
        with locked(batch.sparkSession, sink.path, manager=sink.manager):
            append(batch, sink.path)
        append(batch, sink.path)

    rows = table.spark.readStream.format("delta").load(table.path)
    stream = rows.writeStream.foreachBatch(append_with_and_without_the_lock).trigger(availableNow=True)
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(LockNotHeldError):
        query.awaitTermination()
    assert (sink.ids(), sink.version()) == ([0, 1], 0)


@pytest.mark.full
def test_an_intended_version_is_filled_before_the_next_read(table: Table) -> None:
    table.leave_intent(1)
    with table.locked() as hold:
        assert table.version() == 1
        assert list(table.znodes.intents()) in ([hold.hold_id], [])
        table.append(2, 4)
    assert table.stamp(1)["occupies"] == [DEAD_HOLD]
    assert table.stamp(1)["hold"] == hold.hold_id
    assert table.znodes.intents() == {}
    assert table.ids() == [0, 1, 2, 3]
    assert table.version() == 2


def test_an_existing_version_is_not_filled(table: Table) -> None:
    table.leave_intent(0)
    with table.locked():
        pass
    assert table.version() == 0
    assert table.znodes.intents() == {}


def test_an_intent_that_does_not_fit_fills_the_next_version(table: Table) -> None:
    # The version is far ahead, as if the dead hold had dropped the table and a later hold had created it.
    table.leave_intent(7)
    with table.locked():
        assert table.version() == 1
    # The intent is unreadable.
    table.leave_intent(2)
    table.client.set(f"{table.znodes.intents_path}/{DEAD_HOLD}", b"of another release")
    with table.locked():
        assert table.version() == 2
    for version in (1, 2):
        assert table.stamp(version)["occupies"] == [DEAD_HOLD]
    assert table.znodes.intents() == {}


def test_a_shared_hold_warns_of_an_unfinished_intent(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    table.leave_intent(1)
    with table.manager.acquire(table.path, shared=True) as hold, shared_block(table, hold):
        assert table.ids() == [0, 1]
    assert "left an unfinished intent" in caplog.text
    assert list(table.znodes.intents()) == [DEAD_HOLD]


def test_an_intent_of_version_0_stays_until_the_table_exists(new_table: Table) -> None:
    new_table.leave_intent(0)
    with new_table.locked():
        new_table.append(0, 2)
    assert list(new_table.znodes.intents()) == [DEAD_HOLD]
    with new_table.locked():
        pass
    assert new_table.znodes.intents() == {}
    assert new_table.version() == 0


def test_an_intent_exists_until_the_end_of_its_block(new_table: Table) -> None:
    with new_table.locked() as hold:
        for version in range(2):
            new_table.append(0, 1)
            assert new_table.znodes.intents()[hold.hold_id].version == version
    assert new_table.znodes.intents() == {}


def test_attach_names_a_missing_setting(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    attach(spark)
    attach(spark)
    monkeypatch.setattr("writer_jobs.commit.driver_guard.LOG_STORE", "org.example.Another")
    with pytest.raises(GuardMissingError, match=r"--conf spark\.delta\.logStore\.class=org\.example\.Another"):
        attach(spark)


def test_the_driver_has_the_releases_that_doctor_finds(spark: SparkSession) -> None:
    (finding,) = (finding for finding in machine_findings() if finding.check == "spark")
    assert finding.message == str(driver_releases(spark._jvm))


def test_untested_releases_are_refused_unless_the_user_allows_them(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attach(spark)
    gateway, conf = vars(spark.sparkContext._gateway), spark.sparkContext._jsc.sc().conf()
    monkeypatch.delitem(gateway, "_sluice_guard")
    monkeypatch.setattr("lock_manager.releases.TESTED", {"3.9": {"3.9.0": "3.9.0"}})
    with pytest.raises(UnsupportedSessionError, match=r"the nearest tested pair: Spark 3\.9 with Delta 3\.9\.0"):
        attach(spark)
    assert "_sluice_guard" not in gateway
    conf.set(ALLOW_UNTESTED, "true")
    try:
        attach(spark)
        gateway["_sluice_guard"].close()
    finally:
        conf.remove(ALLOW_UNTESTED)
        monkeypatch.undo()
        attach(spark)
    assert f"{ALLOW_UNTESTED}=true accepts it" in caplog.text


def test_ctrl_c_raises_keyboard_interrupt_not_py4j_error(new_table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(_number: int, _frame: Any) -> None:
        raise Py4JError("An error occurred while calling o1.cancelAllJobs")

    def open_block() -> None:
        with new_table.locked():
            pass

    monkeypatch.setattr(handler, "__module__", "pyspark.core.context")
    for repair_handler in (lambda: attach(new_table.spark), lambda: build_session("another"), open_block):
        original = signal.signal(signal.SIGINT, handler)
        try:
            repair_handler()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, original)


def test_a_staged_commit_of_a_catalog_is_refused(new_table: Table) -> None:
    spark = new_table.spark
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    store = jvm.io.deltasluice.storage.GuardedLogStore(conf)
    lines = jvm.java.util.ArrayList()
    for name in ("_staged_commits/00000000000000000001.uuid.json", "_commits/00000000000000000001.uuid.json"):
        path = jvm.org.apache.hadoop.fs.Path(f"file:{new_table.path}/_delta_log/{name}")
        with pytest.raises(TableError, match="catalog or a coordinator"):
            store.write(path, lines.iterator(), False, conf)


def test_a_driver_without_pinned_threads_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    # PySpark uses this gateway if PYSPARK_PIN_THREAD is false.
    monkeypatch.setattr(spark.sparkContext, "_gateway", JavaGateway())
    with pytest.raises(GuardMissingError, match="PYSPARK_PIN_THREAD"):
        attach(spark)


def test_observe_mode_commits_and_counts_refusals(
    new_table: Table, without_guard: Callable[..., AbstractContextManager[None]], caplog: pytest.LogCaptureFixture
) -> None:
    attach(new_table.spark)
    observed = GUARD.observed
    with without_guard("observe"):
        new_table.append(0, 1)
        with new_table.locked() as hold:
            new_table.append(0, 1)
    assert GUARD.observed == observed + 1
    assert f"required mode would refuse (number {observed + 1} in this driver): version 0 of" in caplog.text
    assert new_table.stamp(0)["observed"] == "LockNotHeldError"
    assert new_table.stamp(1)["hold"] == hold.hold_id


def test_off_mode_asks_nothing_and_overwrites_nothing(
    new_table: Table, without_guard: Callable[..., AbstractContextManager[None]]
) -> None:
    jvm: Any = new_table.spark._jvm
    version_file = Path(new_table.path) / "_delta_log" / f"{0:020d}.json"
    path = jvm.org.apache.hadoop.fs.Path(f"file:{version_file}")
    conf = new_table.spark._jsparkSession.sessionState().newHadoopConf()
    lines = jvm.java.util.ArrayList()
    lines.add('{"commitInfo":{"txnId":"another"}}')
    with without_guard():
        new_table.append(0, 1)
        assert set(new_table.stamp(0)) == {"attempt"}
        content = version_file.read_bytes()
        for overwrite, message in ((False, "FileAlreadyExistsException"), (True, "never overwritten")):
            with pytest.raises(Exception, match=message):
                jvm.io.deltasluice.storage.GuardedLogStore(conf).write(path, lines.iterator(), overwrite, conf)
    assert version_file.read_bytes() == content


def test_an_unknown_mode_is_refused(
    new_table: Table, without_guard: Callable[..., AbstractContextManager[None]]
) -> None:
    with without_guard("on"), pytest.raises(GuardMissingError, match="required, observe or off"):
        new_table.append(0, 1)


def test_a_guard_that_answers_too_late_refuses_the_commit(new_table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = new_table.spark
    attach(spark)
    server: GuardServer = spark.sparkContext._gateway._sluice_guard  # type: ignore[union-attr]
    may_answer = threading.Event()
    server.install(spark._jvm, answer_seconds=0.3)
    monkeypatch.setattr(GUARD, "check", lambda _: str(may_answer.wait(60)))
    try:
        with new_table.locked(), pytest.raises(LockLostError, match="did not answer"):
            new_table.append(0, 1)
    finally:
        may_answer.set()
        server.install(spark._jvm, answer_seconds=60)
    assert not new_table.exists()


def test_a_commit_without_commit_info_is_stamped(new_table: Table) -> None:
    without_commit_info = spark_settings(new_table.spark.conf, {"spark.databricks.delta.commitInfo.enabled": "false"})
    with without_commit_info, new_table.locked() as hold:
        new_table.append(0, 3)
    assert new_table.stamp(0)["hold"] == hold.hold_id
    assert new_table.ids() == [0, 1, 2]


def test_a_write_is_repeated_after_a_commit_without_the_lock(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LockedDeltaWriter(table.spark, table.manager, table.path)
    check, columns = GUARD.check, [Field("later", PrimitiveType("string"))]

    def check_after_another_commit(request: str) -> str:
        if columns:
            DeltaTable(table.path).alter.add_columns([columns.pop()])
        return check(request)

    monkeypatch.setattr(GUARD, "check", check_after_another_commit)
    result = writer.append(table.spark.range(2, 4))
    assert (result.version, columns) == (2, [])
    assert table.ids() == [0, 1, 2, 3]


def test_the_writer_fills_an_intended_version(table: Table) -> None:
    writer = LockedDeltaWriter(table.spark, table.manager, table.path)
    table.leave_intent(1)
    versions: list[int] = []
    result = writer.append(table.spark.range(2, 3), before_write=lambda _: versions.append(table.version()))
    assert (versions, result.version) == ([1], 2)
