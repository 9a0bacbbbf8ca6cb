"""Automatic tickets: programs that request no lock queue for it at each commit (``attach(lock="commit")``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import Adoption, EnsembleMismatchError, ZookeeperLockManager
from lock_manager.guard import automatic_ticket
from lock_manager.guard.automatic_ticket import AutomaticTicket, AutomaticTickets
from tests.integration.test_every_way import Operation, sql, version_files
from tests.integration.test_gate_hooks import ONE_ROW, WITH_MANIFEST, with_property
from tests.support.at_the_gate import TableAtTheGate, commit_info
from tests.support.new_thread import in_new_thread
from tests.support.releases import (
    ConcurrentAppendException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
)
from tests.support.waiting import lock_timeout
from writer_jobs.commit.driver_guard import GUARD
from writer_jobs.commit.guarded import guarded
from writer_jobs.delta.adoption import adoption_under, commit_adoption
from writer_jobs.delta.table_log import DeltaTableLog

pytestmark = pytest.mark.spark


@dataclass
class Program(TableAtTheGate):
    """A table, and a program that requests no lock."""

    def insert(self, row: int) -> None:
        self.spark.sql(f"INSERT INTO delta.`{self.path}` VALUES ({row})")

    def update(self) -> None:
        self.spark.sql(f"UPDATE delta.`{self.path}` SET id = id + 10")

    def append_from_version_0(self) -> None:
        """Append rows that depend on an old version of the table, which Delta does not register as a read."""
        old_rows = self.spark.read.format("delta").option("versionAsOf", 0).load(str(self.path))
        old_rows.selectExpr("id + 100 AS id").write.format("delta").mode("append").save(str(self.path))

    def adopt(self) -> Adoption:
        """Bind the table to the ensemble of its lock manager."""
        log = DeltaTableLog(self.spark, str(self.path))
        with self.manager.acquire(self.writer.table) as hold, guarded(self.spark, hold, log, {}, any_ensemble=True):
            adoption = adoption_under(hold, log)
            commit_adoption(self.spark, log, adoption)
        return adoption

    def adoption(self) -> Adoption | None:
        state = DeltaTableLog(self.spark, str(self.path)).state()
        return None if state is None else state.adoption

    def holds_turn(self, request: dict[str, Any]) -> bool:
        """Send a request of a waiting commit to the guard until it is decided; return whether it got the lock."""
        answers: list[dict[str, Any]] = []

        def is_decided() -> bool:
            answers.append(json.loads(GUARD.check(json.dumps(request))))
            return answers[-1].get("turn", True) is not False

        self.eventually(is_decided, within=30, label="a decision")
        return bool(answers[-1].get("turn"))

    def newest(self) -> int:
        return max(int(Path(name).stem) for name in version_files(self.path.parent))

    def tokens(self) -> list[int | None]:
        """Return the fencing token of each version; None for a commit without a lock."""
        stamps = [commit_info(self.path, version).get("sluice", {}) for version in range(self.newest() + 1)]
        return [next((node["token"] for node in stamp.get("nodes", ())), None) for stamp in stamps]

    @contextmanager
    def waiting(self, statement: Callable[[], object]) -> Iterator[Future[object]]:
        """Start a statement whose commit waits: this thread holds the lock until the end of the block."""
        with self.locked():
            running = in_new_thread(statement)
            self.eventually(lambda: self.queue_length() == 2 or running.done(), within=60, label="a commit that waits")
            yield running
        running.exception(120)


@pytest.fixture(autouse=True)
def automatic(set_lock: Callable[[str], None]) -> None:
    set_lock("commit")


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Program:
    return Program.create(request, getattr(request, "param", ONE_ROW))


def test_a_statement_waits_behind_a_holder(program: Program) -> None:
    with program.waiting(lambda: program.insert(1)):
        program.spark.sql(f"INSERT INTO delta.`{program.path}` VALUES (2)")
        assert program.ids() == [0, 2]
    assert program.ids() == [0, 1, 2]
    tokens = program.tokens()[1:]
    assert tokens == sorted(tokens)


def test_a_timeout_names_the_holder(program: Program, make_manager: Callable[..., ZookeeperLockManager]) -> None:
    with make_manager(job="nightly").acquire(program.writer.table):
        GUARD.automatic = AutomaticTickets(make_manager(timeout_seconds=0.5), "program")
        assert "nightly" in str(lock_timeout(lambda: program.insert(1)))
    assert program.ids() == [0]


def test_a_real_conflict_is_delta_s_own_error_and_frees_the_lock(program: Program) -> None:
    with program.waiting(program.update) as running:
        program.update()
    with pytest.raises(ConcurrentAppendException):
        running.result()
    assert program.queue_length() == 0
    program.update()
    assert program.ids() == [20]


def increase_in_stream(spark: SparkSession, table: str) -> None:
    spark.range(1).write.mode("overwrite").parquet(f"{table}-source")
    rows = spark.readStream.schema("id LONG").parquet(f"{table}-source")
    batches = rows.writeStream.foreachBatch(lambda *_: INCREASES["UPDATE"](spark, table))
    batches.trigger(availableNow=True).start().awaitTermination()


# Each way to change rows that Delta reads first.
INCREASES: dict[str, Operation] = {
    "UPDATE": sql("UPDATE {t} SET id = id + 10"),
    "MERGE": sql("MERGE INTO {t} t USING (SELECT 10 AS n) ON true WHEN MATCHED THEN UPDATE SET id = t.id + n"),
    "INSERT OVERWRITE": sql("INSERT OVERWRITE {t} SELECT id + 10 FROM {t}"),
    "overwrite": lambda spark, table: (
        spark.sql(f"SELECT id + 10 AS id FROM delta.`{table}`").write.format("delta").mode("overwrite").save(table)
    ),
    "DeltaTable.update": lambda spark, table: DeltaTable.forPath(spark, table).update(set={"id": "id + 10"}),
    "DeltaTable.merge": lambda spark, table: (
        DeltaTable.forPath(spark, table).alias("t").merge(spark.range(1), "true")
        .whenMatchedUpdate(set={"id": "t.id + 10"}).execute()
    ),
    "stream by foreachBatch": increase_in_stream,
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", INCREASES)
def test_a_statement_with_a_conflict_is_right_when_it_runs_again(program: Program, name: str) -> None:
    def increase() -> None:
        INCREASES[name](program.spark, str(program.path))

    with program.waiting(increase) as running:
        program.update()
    with pytest.raises(Exception, match=r"(?i)concurrent"):
        running.result()
    increase()
    assert program.ids() == [20]


def test_rows_of_an_old_version_are_appended_only_if_the_table_has_not_changed(program: Program) -> None:
    program.append_from_version_0()
    assert program.ids() == [0, 100]
    with program.waiting(program.append_from_version_0) as running:
        program.insert(1)
    with pytest.raises(ConcurrentWriteException, match="the write reads the table itself: run the statement again"):
        running.result()
    assert program.ids() == [0, 1, 100]


def test_negative_control_without_the_rule_on_reads_the_append_succeeds(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automatic_ticket, "own_read_reason", lambda *_: None)
    with program.waiting(program.append_from_version_0) as running:
        program.insert(1)
    running.result()
    assert program.ids() == [0, 1, 100]


PARTITIONED = "CREATE TABLE {t} USING delta PARTITIONED BY (part) AS SELECT id, id AS part FROM range(3)"


@pytest.mark.parametrize("program", [PARTITIONED], ids=["partitioned"], indirect=True)
def test_a_change_of_other_partitions_is_committed_after_other_writers(program: Program) -> None:
    # A cached DataFrame of the driver does not matter to the rows that a statement changes.
    cached = program.spark.read.format("delta").load(str(program.path)).cache()
    delete = f"DELETE FROM delta.`{program.path}` WHERE part = 0"
    with program.waiting(lambda: program.spark.sql(delete)) as running:
        program.spark.sql(f"INSERT INTO delta.`{program.path}` VALUES (7, 7)")
    cached.unpersist()
    running.result()
    assert program.ids() == [1, 2, 7]


@pytest.mark.full
@pytest.mark.parametrize("program", [PARTITIONED], ids=["partitioned"], indirect=True)
def test_a_stale_read_of_the_table_by_another_name_is_refused(program: Program, tmp_path: Path) -> None:
    other_name = tmp_path / "link"
    other_name.symlink_to(program.path)
    rows = program.spark.sql(f"SELECT id, 1L AS part FROM delta.`{other_name}` WHERE part = 2")
    write = rows.write.format("delta").mode("overwrite").option("replaceWhere", "part = 1")
    with program.waiting(lambda: write.save(str(program.path))) as running:
        program.spark.sql(f"DELETE FROM delta.`{program.path}` WHERE part = 2")
    with pytest.raises(ConcurrentWriteException, match="the write reads the table itself"):
        running.result()


@pytest.mark.full
def test_a_new_session_blocks_no_other_while_its_commit_waits(program: Program) -> None:
    session = program.spark.newSession()
    with program.waiting(lambda: session.sql(f"INSERT INTO delta.`{program.path}` VALUES (1)")) as running:
        # Delta's own lock would make this statement wait for the commit, which waits for this thread's lock.
        program.insert(2)
    running.result()
    assert program.ids() == [0, 1, 2]


def test_a_stopped_stream_leaves_the_queue(program: Program, tmp_path: Path) -> None:
    source = tmp_path / "source"
    program.spark.range(5, 7).write.parquet(str(source))
    rows = program.spark.readStream.schema("id LONG").parquet(str(source))
    sink = rows.writeStream.format("delta").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with program.manager.acquire(program.writer.table):
        query = sink.start(str(program.path))
        program.eventually(lambda: program.queue_length() == 2, within=60, label="a commit that waits")
        query.stop()
        program.eventually(lambda: program.queue_length() == 1, within=30, label="the end of the wait")
    assert program.ids() == [0]


@pytest.mark.full
def test_rows_of_other_tables_are_appended_after_other_writers(program: Program, tmp_path: Path) -> None:
    source = tmp_path / "source"
    program.spark.range(5, 7).write.parquet(str(source))
    with program.waiting(lambda: program.spark.read.parquet(str(source)).write.insertInto(f"delta.`{program.path}`")):
        program.insert(1)
    assert program.ids() == [0, 1, 5, 6]


@pytest.mark.full
def test_a_stream_is_appended_once_after_other_writers(
    program: Program, copy_of: Callable[..., Path], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    program.spark.range(5, 7).write.parquet(str(source))
    # Each micro-batch also reads another table.
    other_table = copy_of("CREATE TABLE {t} USING delta AS SELECT 0L AS zero", to="other")

    def stream() -> None:
        other_rows = program.spark.read.format("delta").load(str(other_table))
        rows = program.spark.readStream.schema("id LONG").parquet(str(source)).crossJoin(other_rows).select("id")
        sink = rows.writeStream.format("delta").option("checkpointLocation", str(tmp_path / "checkpoint"))
        sink.trigger(availableNow=True).start(str(program.path)).awaitTermination()

    with program.waiting(stream):
        program.insert(1)
    # As if the query had been killed after its commit: the next run has the batch again.
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    program.spark.range(7, 8).write.mode("append").parquet(str(source))
    stream()
    assert program.ids() == [0, 1, 5, 6, 7]


@pytest.mark.parametrize(
    "program",
    [with_property("enableInCommitTimestamps", "true")],
    ids=["in-commit timestamps"],
    indirect=True,
)
def test_a_too_old_in_commit_timestamp_is_refused(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program.insert(1)
    monkeypatch.setattr(automatic_ticket, "_TIMESTAMP_SECONDS", 0.0)
    with program.waiting(lambda: program.insert(2)) as running:
        pass
    with pytest.raises(ConcurrentWriteException, match="the in-commit timestamp of the commit"):
        running.result()
    assert program.ids() == [0, 1]


@pytest.mark.parametrize("program", [WITH_MANIFEST], ids=["manifest"], indirect=True)
def test_the_lock_is_kept_until_hooks_have_run(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    release, manifests = AutomaticTicket.end, []

    def record_manifest(ticket: AutomaticTicket, puts: Any = ()) -> None:
        manifest = program.path / "_symlink_format_manifest" / "manifest"
        manifests.append({Path(line).name for line in manifest.read_text().splitlines()} == program.files())
        release(ticket, puts)

    monkeypatch.setattr(AutomaticTicket, "end", record_manifest)
    program.insert(1)
    program.eventually(lambda: bool(manifests), within=30, label="the end of the ticket")
    assert manifests == [True]
    program.eventually(lambda: program.queue_length() == 0, within=30, label="the release of the lock")


def test_replace_keeps_the_adoption(program: Program) -> None:
    adoption = program.adopt()
    program.spark.sql(f"CREATE OR REPLACE TABLE delta.`{program.path}` USING delta AS SELECT 5L AS id")
    assert program.adoption() == adoption
    assert all(program.tokens()[1:]), "a commit was made without a lock"
    program.spark.sql(f"ALTER TABLE delta.`{program.path}` UNSET TBLPROPERTIES ('sluice.ensemble', 'sluice.table')")
    assert program.adoption() is None


def test_a_table_of_another_ensemble_is_refused(
    program: Program, without_guard: Callable[..., AbstractContextManager[None]]
) -> None:
    with without_guard():
        program.spark.sql(f"ALTER TABLE delta.`{program.path}` SET TBLPROPERTIES ('sluice.ensemble' = 'another')")
    with pytest.raises(EnsembleMismatchError):
        program.insert(1)
    assert program.ids() == [0]


def test_a_commit_settles_the_unfinished_intent_of_an_earlier_writer(
    program: Program, make_manager: Callable[..., ZookeeperLockManager]
) -> None:
    with make_manager() as dead:
        hold = dead.acquire(program.writer.table)
        hold.intend(1, txn="dead", attempt="dead", table=program.writer.table)
        dead._session.client.stop()
    program.insert(1)
    assert program.newest() == 1, "the version was filled with an empty commit"
    with program.manager.acquire(program.writer.table) as next_hold:
        assert next_hold.intents.unfinished == ()


def test_in_observe_mode_a_commit_does_not_wait(
    program: Program,
    make_manager: Callable[..., ZookeeperLockManager],
    without_guard: Callable[..., AbstractContextManager[None]],
) -> None:
    with without_guard("observe"):
        with make_manager().acquire(program.writer.table):
            program.insert(1)
        program.insert(2)
    assert program.ids() == [0, 1, 2]
    assert commit_info(program.path, 1)["sluice"]["observed"] == "LockTimeoutError"
    assert program.tokens()[2] is not None


def test_the_end_of_the_jvm_frees_the_lock(program: Program) -> None:
    """The JVM ends after its ticket got the lock."""
    table = program.writer.table
    turn = {
        "kind": "turn", "ticket": "automatic-test", "automatic": True, "table": table, "version": 1, "attempt": "a",
        "staged": {
            "blind": True, "removes": False, "dated": False, "actions": [], "hooks": [], "reads": [],
            "read": {"version": 0, "properties": {}},
        },
    }  # fmt: skip
    assert program.holds_turn(turn)
    assert program.queue_length() == 1
    GUARD.client_ended()
    program.eventually(lambda: program.queue_length() == 0, within=30, label="the release of the lock")
    # A late request of the same ticket opens no other one.
    assert not program.holds_turn(turn)
    assert program.queue_length() == 0


@pytest.mark.parametrize("name", ["UPDATE", *(pytest.param(name, marks=pytest.mark.full) for name in [*INCREASES][1:])])
def test_statements_that_lock_from_the_beginning_have_no_conflict(
    program: Program, set_lock: Callable[[str], None], name: str
) -> None:
    set_lock("write")
    with program.waiting(lambda: INCREASES[name](program.spark, str(program.path))) as running:
        program.update()
    running.result()
    assert program.ids() == [20]


@pytest.mark.full
def test_a_compaction_that_has_read_an_older_version_waits_at_its_commit(
    program: Program, set_lock: Callable[[str], None]
) -> None:
    program.insert(1)
    set_lock("write")
    statement = f"OPTIMIZE delta.`{program.path}`"
    with program.waiting(lambda: program.spark.sql(statement)) as running:
        program.update()
    with pytest.raises(ConcurrentDeleteReadException):
        running.result()
    program.eventually(lambda: program.queue_length() == 0, within=30, label="the release of the lock")
    program.spark.sql(statement)
    assert program.ids() == [10, 11]


def test_a_statement_without_a_commit_frees_the_lock(program: Program, set_lock: Callable[[str], None]) -> None:
    set_lock("write")
    program.spark.sql(f"DELETE FROM delta.`{program.path}` WHERE id = 7")
    program.eventually(lambda: program.queue_length() == 0, within=30, label="the release of the lock")


@pytest.mark.full
def test_the_lock_from_the_beginning_times_out(
    program: Program, make_manager: Callable[..., ZookeeperLockManager], set_lock: Callable[[str], None]
) -> None:
    set_lock("write")
    GUARD.automatic = AutomaticTickets(make_manager(timeout_seconds=0.5), "program")
    with make_manager(job="nightly").acquire(program.writer.table):
        assert "nightly" in str(lock_timeout(lambda: program.insert(1)))
    assert program.ids() == [0]
