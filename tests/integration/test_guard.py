"""The commit guard in a real Spark driver: what it lets pass, what it refuses, and with which error."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable as OtherTable
from deltalake import Field, QueryBuilder
from deltalake.schema import PrimitiveType
from kazoo.client import KazooClient
from py4j.java_gateway import JavaGateway
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from lock_manager import HeldLock, LockLostError, LockNotHeldError, TableResource, ZookeeperLockManager
from lock_manager.guard.guard_server import GuardServer
from lock_manager.intents import Intent
from lock_manager.zookeeper.znodes import intents_node, table_node
from tests.support.lake import S3
from writer_jobs import GuardMissingError, LockedDeltaWriter, TableError, attach, locked
from writer_jobs.commit.driver_guard import GUARD

pytestmark = pytest.mark.spark

ROOT = "/locks/delta_tables"


@pytest.fixture
def disk_table(tmp_path: Path) -> str:
    """Where no table is yet."""
    return str(tmp_path / "table")


@pytest.fixture
def made_table(copy_of: Callable[..., Path]) -> str:
    """A table with the ids 0 and 1, of one version."""
    return str(copy_of("create table {t} using delta as select id from range(0, 2, 1, 1)"))


def append(df: DataFrame, table: str) -> None:
    df.coalesce(1).write.format("delta").mode("append").save(table)


def ids(table: str) -> list[int]:
    """As a reader sees them that is not Spark's."""
    found = QueryBuilder().register("t", OtherTable(table)).execute("select id from t").read_all()
    return sorted(found.column("id").to_pylist())


def newest(table: str) -> int:
    return int(OtherTable(table).version())


def commit_info(table: str, version: int) -> dict[str, Any]:
    first = (Path(table) / "_delta_log" / f"{version:020d}.json").read_text().splitlines()[0]
    found: dict[str, Any] = json.loads(first)["commitInfo"]
    return found


def node_of(table: str) -> str:
    return table_node(ROOT, TableResource.of(table))


def contenders(client: KazooClient, table: str) -> list[str]:
    return [f"{node_of(table)}/{name}" for name in client.get_children(node_of(table)) if "lock__" in name]


def intents(client: KazooClient, table: str) -> list[str]:
    folder = intents_node(node_of(table))
    return list(client.get_children(folder)) if client.exists(folder) else []


@pytest.mark.full
@pytest.mark.s3
def test_on_s3_a_commit_passes_under_the_lock_and_not_without(
    spark: SparkSession, manager: ZookeeperLockManager, s3: S3
) -> None:
    table = f"s3a://{s3.root}/guarded"
    with locked(spark, f"s3://{s3.root}//guarded/", manager=manager):
        append(spark.range(2), table)
        spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 0")
    with pytest.raises(LockNotHeldError):
        append(spark.range(2), table)
    assert ids(f"s3://{s3.root}/guarded") == [1]
    assert newest(f"s3://{s3.root}/guarded") == 1


@pytest.mark.full
def test_a_commit_passes_under_the_lock_of_its_own_table_only(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    one, other = str(tmp_path / "a"), str(tmp_path / "b")
    with locked(spark, one, manager=manager):
        with pytest.raises(LockNotHeldError, match="it holds file:"):
            append(spark.range(1), other)
        with locked(spark, other, manager=manager):
            append(spark.range(1), one)
            append(spark.range(1), other)
        append(spark.range(1), one)
    with pytest.raises(LockNotHeldError):
        append(spark.range(1), one)
    assert (newest(one), newest(other)) == (1, 0)


def test_a_thread_inherits_the_hold_only_if_it_is_told_to(
    spark: SparkSession, manager: ZookeeperLockManager, disk_table: str
) -> None:
    found: list[BaseException | None] = []

    def write() -> None:
        try:
            append(spark.range(1), disk_table)
            found.append(None)
        except LockNotHeldError as error:
            found.append(error)

    with locked(spark, disk_table, manager=manager):
        for kind in (InheritableThread, threading.Thread):
            thread = kind(target=write)
            thread.start()
            thread.join()
    assert found[0] is None
    assert isinstance(found[1], LockNotHeldError)


@pytest.mark.full
def test_a_lost_hold_refuses_the_commit_and_a_new_hold_of_the_same_process_does_not_help(
    spark: SparkSession, manager: ZookeeperLockManager, made_table: str, ensemble_client: KazooClient
) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(LockLostError):
        with locked(spark, made_table, manager=manager) as lost:
            (contender,) = contenders(ensemble_client, made_table)
            ensemble_client.delete(contender)

            def other() -> None:
                with locked(spark, made_table, manager=manager):
                    append(spark.range(2, 3), made_table)

            pool.submit(other).result()
            with pytest.raises(LockLostError) as refused:
                append(spark.range(3, 4), made_table)
            assert refused.value.hold_id == lost.hold_id
    assert ids(made_table) == [0, 1, 2]


@pytest.mark.full
def test_a_hold_that_is_lost_names_what_was_committed_under_it(
    spark: SparkSession, manager: ZookeeperLockManager, disk_table: str, ensemble_client: KazooClient
) -> None:
    def lose() -> None:
        (contender,) = contenders(ensemble_client, disk_table)
        ensemble_client.delete(contender)

    with pytest.raises(LockLostError) as at_the_end, locked(spark, disk_table, manager=manager):
        append(spark.range(1), disk_table)
        append(spark.range(1, 2), disk_table)
        lose()
    assert at_the_end.value.commits == {TableResource.of(disk_table).uri: (0, 1)}
    with pytest.raises(LockLostError) as at_a_commit, locked(spark, disk_table, manager=manager):
        append(spark.range(2, 3), disk_table)
        lose()
        append(spark.range(3, 4), disk_table)
    assert at_a_commit.value.commits == {TableResource.of(disk_table).uri: (2,)}
    assert ids(disk_table) == [0, 1, 2]


def test_a_hold_beyond_its_bound_is_given_up_and_its_commit_refused(
    spark: SparkSession, zookeeper: Any, manager: ZookeeperLockManager, made_table: str
) -> None:
    hangs = threading.Event()
    with ZookeeperLockManager(zookeeper.hosts, 30, max_hold_seconds=1) as bounded:
        with pytest.raises(LockLostError, match="max_hold_seconds=1"):
            with locked(spark, made_table, manager=bounded) as hold:
                hold.on_loss(lambda _: hangs.set())
                assert hangs.wait(30)
                # The next one is in already.
                with manager.acquire(f"{made_table}/", timeout_seconds=30):
                    assert not hold.is_valid()
                append(spark.range(2, 3), made_table)
        # The control: without the bound the same is committed.
        with locked(spark, made_table, manager=manager):
            append(spark.range(3, 4), made_table)
    assert ids(made_table) == [0, 1, 3]


def test_ctrl_c_in_a_block_gives_the_lock_back_and_what_the_jvm_still_does_commits_nothing(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    made_table: str,
    ensemble_client: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> None:
    asked, go_on, answers = threading.Event(), threading.Event(), list[dict[str, Any]]()
    check, main = GUARD.check, threading.main_thread().ident
    assert main is not None

    def late(request: str) -> str:
        asked.set()
        go_on.wait(60)
        answers.append(json.loads(check(request)))
        return json.dumps(answers[-1])

    def interrupt() -> None:
        asked.wait(60)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    monkeypatch.setattr(GUARD, "check", late)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt), locked(spark, made_table, manager=manager):
            append(spark.range(2, 3), made_table)
        assert contenders(ensemble_client, made_table) == []
        assert intents(ensemble_client, made_table) == []
        manager.acquire(made_table, timeout_seconds=0).release()
    finally:
        go_on.set()
        thread.join()
    eventually(lambda: answers, what="the answer to the commit that was under way")
    assert answers[0]["refused"] == "LockNotHeldError"
    monkeypatch.undo()
    with locked(spark, made_table, manager=manager):
        append(spark.range(3, 4), made_table)
    assert ids(made_table) == [0, 1, 3]


def test_a_shared_hold_commits_nothing(spark: SparkSession, manager: ZookeeperLockManager, disk_table: str) -> None:
    from writer_jobs.commit.guarded import guarded
    from writer_jobs.delta.table_log import DeltaTableLog

    log = DeltaTableLog(spark, f"file:{disk_table}")
    with manager.acquire(disk_table, shared=True) as hold, guarded(spark, hold, log, {}):
        with pytest.raises(LockNotHeldError, match="shared"):
            append(spark.range(1), disk_table)
    assert not list(Path(disk_table).glob("_delta_log/*.json"))


def test_the_commit_says_under_which_hold_it_was_made(
    spark: SparkSession, manager: ZookeeperLockManager, disk_table: str
) -> None:
    with locked(spark, disk_table, manager=manager) as hold:
        append(spark.range(1), disk_table)
    noted = commit_info(disk_table, 0)["sluice"]
    assert (noted["hold"], noted["ensemble"]) == (hold.hold_id, hold.ensemble_id)
    assert noted["nodes"] == [{"key": key, "mode": "exclusive", "token": token} for key, token in hold.tokens.items()]


@pytest.mark.full
def test_names_of_the_catalog_are_covered_also_of_tables_that_do_not_exist_yet(
    spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    name = f"guarded_{tmp_path.name.replace('-', '_')}"
    with locked(spark, name, manager=manager):
        spark.range(1).coalesce(1).write.format("delta").saveAsTable(name)
    with locked(spark, f"default.{name}", manager=manager):
        spark.sql(f"INSERT INTO {name} VALUES (7)")
    with pytest.raises(LockNotHeldError):
        spark.sql(f"INSERT INTO {name} VALUES (8)")
    assert ids(f"{spark.conf.get('spark.sql.warehouse.dir').removeprefix('file:')}/{name}") == [0, 7]
    with locked(spark, name, manager=manager):
        spark.sql(f"DROP TABLE {name}")


@pytest.mark.full
def test_a_stream_s_batches_commit_under_a_lock_and_a_refusal_is_typed(
    spark: SparkSession, manager: ZookeeperLockManager, made_table: str, tmp_path: Path
) -> None:
    sink = str(tmp_path / "sink")

    def under_the_lock_and_without(batch: DataFrame, _number: int) -> None:
        with locked(batch.sparkSession, sink, manager=manager):
            append(batch, sink)
        append(batch, sink)

    source = spark.readStream.format("delta").load(made_table).writeStream.foreachBatch(under_the_lock_and_without)
    checkpoint = str(tmp_path / "checkpoint")
    query = source.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    with pytest.raises(LockNotHeldError):
        query.awaitTermination()
    assert ids(sink) == [0, 1]
    assert newest(sink) == 0


@pytest.fixture
def unfinished(manager: ZookeeperLockManager, ensemble_client: KazooClient, disk_table: str) -> Callable[[int], None]:
    """Leave an intent behind, as a writer does that is killed between the check and the end of its put."""

    def leave(version: int) -> None:
        manager.acquire(disk_table).release()
        intent = Intent(hold_id="0" * 32, version=version, txn="lost", attempt="lost", token=1)
        ensemble_client.ensure_path(intents_node(node_of(disk_table)))
        ensemble_client.create(f"{intents_node(node_of(disk_table))}/{intent.hold_id}", intent.data())

    return leave


@pytest.mark.full
def test_a_version_that_was_about_to_be_put_is_filled_before_anything_is_read(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    ensemble_client: KazooClient,
    made_table: str,
    unfinished: Callable[[int], None],
) -> None:
    unfinished(1)
    with locked(spark, made_table, manager=manager) as hold:
        assert newest(made_table) == 1
        assert intents(ensemble_client, made_table) in ([hold.hold_id], [])
        append(spark.range(2, 4), made_table)
    assert commit_info(made_table, 1)["sluice"]["occupies"] == ["0" * 32]
    assert commit_info(made_table, 1)["sluice"]["hold"] == hold.hold_id
    assert intents(ensemble_client, made_table) == []
    assert ids(made_table) == [0, 1, 2, 3]
    assert newest(made_table) == 2


def test_a_version_that_exists_is_not_filled(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    ensemble_client: KazooClient,
    made_table: str,
    unfinished: Callable[[int], None],
) -> None:
    unfinished(0)
    with locked(spark, made_table, manager=manager):
        pass
    assert newest(made_table) == 0
    assert intents(ensemble_client, made_table) == []


def test_an_intent_that_does_not_fit_has_the_next_version_filled(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    ensemble_client: KazooClient,
    made_table: str,
    unfinished: Callable[[int], None],
) -> None:
    # Of a version far ahead: a table that was dropped and made again under that hold had it.
    unfinished(7)
    with locked(spark, made_table, manager=manager):
        assert newest(made_table) == 1
    # Unreadable.
    unfinished(2)
    ensemble_client.set(f"{intents_node(node_of(made_table))}/{'0' * 32}", b"of another release")
    with locked(spark, made_table, manager=manager):
        assert newest(made_table) == 2
    for version in (1, 2):
        assert commit_info(made_table, version)["sluice"]["occupies"] == ["0" * 32]
    assert intents(ensemble_client, made_table) == []


def test_a_shared_hold_behind_an_unfinished_intent_reads_and_says_that_it_is_not_fenced(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    ensemble_client: KazooClient,
    made_table: str,
    unfinished: Callable[[int], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from writer_jobs.commit.guarded import guarded
    from writer_jobs.delta.table_log import DeltaTableLog

    unfinished(1)
    log = DeltaTableLog(spark, f"file:{made_table}")
    with manager.acquire(made_table, shared=True) as hold, guarded(spark, hold, log, {}):
        assert spark.read.format("delta").load(made_table).count() == 2
    assert "left an unfinished intent" in caplog.text
    assert intents(ensemble_client, made_table) == ["0" * 32]


def test_an_intent_of_the_first_version_stays_until_there_is_a_table(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    ensemble_client: KazooClient,
    disk_table: str,
    unfinished: Callable[[int], None],
) -> None:
    unfinished(0)
    with locked(spark, disk_table, manager=manager):
        append(spark.range(2), disk_table)
    assert intents(ensemble_client, disk_table) == ["0" * 32]
    with locked(spark, disk_table, manager=manager):
        pass
    assert intents(ensemble_client, disk_table) == []
    assert newest(disk_table) == 0


def test_an_intent_is_there_while_the_version_is_put_and_gone_afterwards(
    spark: SparkSession, manager: ZookeeperLockManager, ensemble_client: KazooClient, disk_table: str
) -> None:
    with locked(spark, disk_table, manager=manager) as hold:
        append(spark.range(1), disk_table)
        path = f"{intents_node(node_of(disk_table))}/{hold.hold_id}"
        assert Intent.parse(ensemble_client.get(path)[0]).version == 0
        append(spark.range(1), disk_table)
        assert Intent.parse(ensemble_client.get(path)[0]).version == 1
    assert intents(ensemble_client, disk_table) == []


def test_attach_names_what_is_missing(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    attach(spark)
    attach(spark)
    monkeypatch.setattr("writer_jobs.commit.driver_guard.LOG_STORE", "org.example.Another")
    with pytest.raises(GuardMissingError, match=r"--conf spark\.delta\.logStore\.class=org\.example\.Another"):
        attach(spark)


def test_a_catalog_s_staged_commit_is_refused(spark: SparkSession, disk_table: str) -> None:
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    store = jvm.io.deltasluice.storage.GuardedLogStore(conf)
    lines = jvm.java.util.ArrayList()
    for name in ("_staged_commits/00000000000000000001.uuid.json", "_commits/00000000000000000001.uuid.json"):
        path = jvm.org.apache.hadoop.fs.Path(f"file:{disk_table}/_delta_log/{name}")
        with pytest.raises(TableError, match="catalog or a coordinator"):
            store.write(path, lines.iterator(), False, conf)


def test_a_driver_whose_java_threads_are_not_python_s_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What PySpark makes of PYSPARK_PIN_THREAD=false.
    monkeypatch.setattr(spark.sparkContext, "_gateway", JavaGateway())
    with pytest.raises(GuardMissingError, match="PYSPARK_PIN_THREAD"):
        attach(spark)


@pytest.fixture
def mode(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    conf = spark.sparkContext._jsc.sc().conf()
    yield lambda name: conf.set("spark.sluice.guard", name)
    conf.set("spark.sluice.guard", "required")


def test_observe_commits_counts_and_notes_what_would_be_refused(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    disk_table: str,
    mode: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    attach(spark)
    before = GUARD.observed
    mode("observe")
    append(spark.range(1), disk_table)
    with locked(spark, disk_table, manager=manager) as hold:
        append(spark.range(1), disk_table)
    assert GUARD.observed == before + 1
    assert f"required mode would refuse (the {before + 1}. time in this driver): version 0 of" in caplog.text
    assert commit_info(disk_table, 0)["sluice"]["observed"] == "LockNotHeldError"
    assert commit_info(disk_table, 1)["sluice"]["hold"] == hold.hold_id


def test_off_asks_nobody_and_still_overwrites_nothing(
    spark: SparkSession, disk_table: str, mode: Callable[[str], None]
) -> None:
    mode("off")
    append(spark.range(1), disk_table)
    assert set(commit_info(disk_table, 0)["sluice"]) == {"attempt"}
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"file:{disk_table}/_delta_log/{0:020d}.json")
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    lines = jvm.java.util.ArrayList()
    lines.add('{"commitInfo":{"txnId":"another"}}')
    before = Path(path.toUri().getPath()).read_bytes()
    for overwrite, kind in ((False, "FileAlreadyExistsException"), (True, "never overwritten")):
        with pytest.raises(Exception, match=kind):
            jvm.io.deltasluice.storage.GuardedLogStore(conf).write(path, lines.iterator(), overwrite, conf)
    assert Path(path.toUri().getPath()).read_bytes() == before


def test_a_mode_that_is_none_is_refused(spark: SparkSession, disk_table: str, mode: Callable[[str], None]) -> None:
    mode("on")
    with pytest.raises(GuardMissingError, match="required, observe or off"):
        append(spark.range(1), disk_table)


def test_a_guard_that_does_not_answer_in_time_is_a_refusal(
    spark: SparkSession, manager: ZookeeperLockManager, disk_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(spark)
    server: GuardServer = spark.sparkContext._gateway._sluice_guard  # type: ignore[union-attr]
    answered = threading.Event()
    server.install(spark._jvm, answer_seconds=0.3)
    monkeypatch.setattr(GUARD, "check", lambda _: str(answered.wait(60)))
    try:
        with locked(spark, disk_table, manager=manager), pytest.raises(LockLostError, match="did not answer"):
            append(spark.range(1), disk_table)
    finally:
        answered.set()
        server.install(spark._jvm, answer_seconds=60)
    assert not list(Path(disk_table).glob("_delta_log/*.json"))


def test_a_commit_without_commit_info_is_stamped_too(
    spark: SparkSession, manager: ZookeeperLockManager, disk_table: str
) -> None:
    spark.conf.set("spark.databricks.delta.commitInfo.enabled", "false")
    try:
        with locked(spark, disk_table, manager=manager) as hold:
            append(spark.range(3), disk_table)
    finally:
        spark.conf.unset("spark.databricks.delta.commitInfo.enabled")
    assert commit_info(disk_table, 0)["sluice"]["hold"] == hold.hold_id
    assert ids(disk_table) == [0, 1, 2]


def test_a_write_that_a_writer_without_the_lock_was_faster_than_is_done_again(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    made_table: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = LockedDeltaWriter(spark, manager, made_table)
    check, columns = GUARD.check, [Field("later", PrimitiveType("string"))]

    def faster(request: str) -> str:
        if columns:
            OtherTable(made_table).alter.add_columns([columns.pop()])
        return check(request)

    monkeypatch.setattr(GUARD, "check", faster)
    result = writer.append(spark.range(2, 4))
    assert (result.version, columns) == (2, [])
    assert ids(made_table) == [0, 1, 2, 3]


def test_the_writer_fills_too(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    made_table: str,
    unfinished: Callable[[int], None],
) -> None:
    writer = LockedDeltaWriter(spark, manager, made_table)
    unfinished(1)

    def seen(_hold: HeldLock) -> None:
        assert newest(made_table) == 1

    assert writer.append(spark.range(2, 3), before_write=seen).version == 2
