"""Every operation of a driver that writes a version file of a Delta table is refused without the lock, or waits for it.

Each operation runs twice on a copy of one table. First it is refused. Then it commits: with an automatic ticket, or,
through Delta Kernel, which has none, with the guard off.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from lock_manager import LockNotHeldError, ZookeeperLockManager
from tests.support.at_the_gate import commit_info
from tests.support.lake import S3
from tests.support.releases import needs_delta
from tests.support.spark_settings import spark_settings
from writer_jobs import GuardMissingError, attach, locked
from writer_jobs.delta.session import KERNEL_LOG_STORE_SETTINGS

pytestmark = pytest.mark.spark

# Operations that read Parquet footers. For that they call a constructor of Spark that Spark 4.0.1 changed.
READ_FOOTERS = ("REORG", "CONVERT TO DELTA")
SPARK_4_0_1 = needs_delta((4, 0, 1), "way to read Parquet footers with Spark 4.0.1")
KERNEL_WRITES = needs_delta((4, 4), "writes through Delta Kernel")
ENABLE_MODE = "spark.databricks.delta.v2.enableMode"
KERNEL_KEY = "io.delta.kernel.logStore.{}.impl"
GUARDED_LOG_STORE = "io.deltasluice.storage.GuardedLogStore"
WithoutGuard = Callable[..., AbstractContextManager[None]]
Operation = Callable[[SparkSession, str], object]


def sql(statement: str) -> Operation:
    """Run a statement; ``{t}`` is the table, ``{new}`` a table next to it."""
    return lambda spark, table: spark.sql(statement.format(t=f"delta.`{table}`", new=f"delta.`{table}-new`"))


def rows(spark: SparkSession) -> Any:
    return spark.sql("SELECT 7L AS id, 'seven' AS name, 1L AS part")


def writer(spark: SparkSession, mode: str, **options: str) -> Any:
    return rows(spark).write.format("delta").mode(mode).options(**options)


def stream(spark: SparkSession, table: str, *, by_batch: bool = False) -> None:
    source = f"{table}-source"
    rows(spark).write.mode("overwrite").parquet(source)
    read = spark.readStream.schema(rows(spark).schema).parquet(source)
    sink = read.writeStream.option("checkpointLocation", f"{table}-checkpoint").trigger(availableNow=True)
    if by_batch:
        query = sink.foreachBatch(lambda df, _: df.write.format("delta").mode("append").save(table)).start()
    else:
        query = sink.format("delta").start(table)
    query.awaitTermination()


def convert(spark: SparkSession, table: str) -> None:
    rows(spark).write.mode("overwrite").parquet(f"{table}-new")
    spark.sql(f"CONVERT TO DELTA parquet.`{table}-new`")


def manual_commit(spark: SparkSession, table: str) -> None:
    """Commit with Delta's own classes, as a Scala program would."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table)
    operation = getattr(getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
    no_actions = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
    log.startTransaction().commit(no_actions, operation)


def kernel_commit(spark: SparkSession, table: str) -> None:
    """Commit with Delta Kernel, as a Java program would."""
    jvm: Any = spark._jvm
    engine = jvm.io.delta.kernel.defaults.engine.DefaultEngine.create(
        spark._jsparkSession.sessionState().newHadoopConf()
    )
    kernel = jvm.io.delta.kernel
    kernel_table = kernel.Table.forPath(engine, table)
    transaction = kernel_table.createTransactionBuilder(engine, "test", kernel.Operation.WRITE).build(engine)
    transaction.commit(engine, kernel.utils.CloseableIterable.emptyIterable())


CLASSIC: dict[str, Operation] = {
    "INSERT": sql("INSERT INTO {t} VALUES (7, 'seven', 1)"),
    "INSERT OVERWRITE": sql("INSERT OVERWRITE {t} VALUES (7, 'seven', 1)"),
    "INSERT REPLACE WHERE": sql("INSERT INTO {t} REPLACE WHERE part = 1 VALUES (7, 'seven', 1)"),
    "append": lambda spark, table: writer(spark, "append").save(table),
    "append with a new column": lambda spark, table: (
        rows(spark).withColumn("more", lit(1)).write.format("delta").mode("append").save(table, mergeSchema="true")
    ),
    "overwrite": lambda spark, table: writer(spark, "overwrite").save(table),
    "replaceWhere": lambda spark, table: writer(spark, "overwrite", replaceWhere="part = 1").save(table),
    "saveAsTable": lambda spark, table: writer(spark, "append").saveAsTable(f"delta.`{table}`"),
    "insertInto": lambda spark, table: rows(spark).write.insertInto(f"delta.`{table}`"),
    "writeTo.append": lambda spark, table: rows(spark).writeTo(f"delta.`{table}`").append(),
    "writeTo.overwrite": lambda spark, table: rows(spark).writeTo(f"delta.`{table}`").overwrite(lit(True)),
    "writeTo.overwritePartitions": lambda spark, table: rows(spark).writeTo(f"delta.`{table}`").overwritePartitions(),
    "writeTo.create": lambda spark, table: rows(spark).writeTo(f"delta.`{table}-new`").using("delta").create(),
    "DELETE": sql("DELETE FROM {t} WHERE id = 1"),
    "UPDATE": sql("UPDATE {t} SET name = 'x' WHERE id = 1"),
    "MERGE": sql(
        "MERGE INTO {t} t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'merged'"
    ),
    "OPTIMIZE": sql("OPTIMIZE {t}"),
    "ZORDER": sql("OPTIMIZE {t} ZORDER BY (id)"),
    "REORG": sql("REORG TABLE {t} APPLY (PURGE)"),
    "VACUUM": sql("VACUUM {t}"),
    "RESTORE": sql("RESTORE TABLE {t} TO VERSION AS OF 0"),
    "CREATE TABLE": sql("CREATE TABLE {new} (id LONG) USING delta"),
    "CREATE TABLE AS SELECT": sql("CREATE TABLE {new} USING delta AS SELECT 1 AS id"),
    "CREATE OR REPLACE TABLE": sql("CREATE OR REPLACE TABLE {t} USING delta AS SELECT 1 AS id"),
    "DeltaTable.create": lambda spark, table: (
        DeltaTable.create(spark).location(f"{table}-new").addColumn("id", "LONG").execute()
    ),
    "DeltaTable.update": lambda spark, table: DeltaTable.forPath(spark, table).update("id = 1", {"name": lit("x")}),
    "DeltaTable.delete": lambda spark, table: DeltaTable.forPath(spark, table).delete("id = 1"),
    "DeltaTable.merge": lambda spark, table: (
        DeltaTable.forPath(spark, table)
        .alias("t")
        .merge(rows(spark).alias("s"), "t.id = s.id")
        .whenMatchedUpdateAll()
        .whenNotMatchedInsertAll()
        .execute()
    ),
    "DeltaTable.optimize": lambda spark, table: DeltaTable.forPath(spark, table).optimize().executeCompaction(),
    "DeltaTable.restoreToVersion": lambda spark, table: DeltaTable.forPath(spark, table).restoreToVersion(0),
    "SHALLOW CLONE": sql("CREATE TABLE {new} SHALLOW CLONE {t}"),
    "CONVERT TO DELTA": convert,
    "SET TBLPROPERTIES": sql("ALTER TABLE {t} SET TBLPROPERTIES ('a' = 'b')"),
    "UNSET TBLPROPERTIES": sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('note')"),
    "ADD COLUMN": sql("ALTER TABLE {t} ADD COLUMN more INT"),
    "ALTER COLUMN": sql("ALTER TABLE {t} ALTER COLUMN name COMMENT 'x'"),
    "RENAME COLUMN": sql("ALTER TABLE {t} RENAME COLUMN name TO title"),
    "DROP COLUMN": sql("ALTER TABLE {t} DROP COLUMN name"),
    "ADD CONSTRAINT": sql("ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id > 0)"),
    "DROP CONSTRAINT": sql("ALTER TABLE {t} DROP CONSTRAINT small"),
    "DROP FEATURE": sql("ALTER TABLE {t} DROP FEATURE inCommitTimestamp"),
    "COMMENT": sql("COMMENT ON TABLE {t} IS 'x'"),
    "stream": stream,
    "stream by foreachBatch": lambda spark, table: stream(spark, table, by_batch=True),
    "Delta's classes": manual_commit,
}

# Operations of Delta's second connector, which refuses all others itself.
STRICT: dict[str, Operation] = {
    "INSERT": CLASSIC["INSERT"],
    "writeTo.append": CLASSIC["writeTo.append"],
    "append": CLASSIC["append"],
    "CREATE TABLE": CLASSIC["CREATE TABLE"],
    "CREATE TABLE AS SELECT": CLASSIC["CREATE TABLE AS SELECT"],
    "stream": stream,
    "Delta Kernel": kernel_commit,
}


def statements_with(properties: str, *statements: str) -> tuple[str, ...]:
    """Return statements that create a table with two files in a partition and a deleted row, and these statements."""
    return (
        f"CREATE TABLE {{t}} (id LONG, name STRING, part LONG) USING delta PARTITIONED BY (part) {properties}",
        *(f"INSERT INTO {{t}} SELECT id, 'n', 1 FROM range({start}, {start + 2}, 1, 1)" for start in (1, 3)),
        "DELETE FROM {t} WHERE id = 4",
        *statements,
    )


# FULL has work for each operation. PLAIN has no feature that Delta Kernel cannot write.
FULL = statements_with(
    "TBLPROPERTIES ('note' = 'x', 'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true', "
    "'delta.enableInCommitTimestamps' = 'true')",
    "ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 1000)",
)
PLAIN = statements_with("TBLPROPERTIES ('note' = 'x')")


@pytest.fixture(scope="module", autouse=True)
def originals(spark: SparkSession, original: Callable[..., Path]) -> None:
    """Create both tables before a test turns on Delta's second connector, which cannot create them."""
    # VACUUM lists folders in this number of tasks.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "1")
    for statements in (FULL, PLAIN):
        original(*statements)


def version_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/_delta_log/*.json"))


def check_refusal(spark: SparkSession, operation: Operation, table: Path) -> None:
    """Check that an operation of a thread without a lock commits nothing."""
    initial_versions = version_files(table.parent)
    with pytest.raises(LockNotHeldError, match="bound to no lock"):
        operation(spark, str(table))
    assert version_files(table.parent) == initial_versions
    # Delta creates the folder of a table's log before it commits.
    shutil.rmtree(table.parent / "table-new", ignore_errors=True)


def new_versions(operation: Callable[[], object], folder: Path) -> list[str]:
    """Return the version files that an operation creates; fail if it creates none."""
    initial_versions = version_files(folder)
    operation()
    versions = sorted(set(version_files(folder)) - set(initial_versions))
    assert versions, "the operation commits nothing"
    return versions


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SPARK_4_0_1 if name in READ_FOOTERS else ()) for name in CLASSIC]
)
def test_an_operation_is_refused_or_queues_for_its_lock(
    name: str, spark: SparkSession, copy_of: Callable[..., Path], set_lock: Callable[[str], None]
) -> None:
    table = copy_of(*FULL)
    check_refusal(spark, CLASSIC[name], table)
    set_lock("commit")
    for file in new_versions(lambda: CLASSIC[name](spark, str(table)), table.parent):
        folder, _, version_file = Path(file).parts
        stamp = commit_info(table.parent / folder, int(Path(version_file).stem)).get("sluice", {})
        assert stamp.get("nodes"), f"{file} was committed without a lock"


@pytest.fixture
def strict(spark: SparkSession) -> Iterator[None]:
    """Let Delta use its second connector, which commits through Delta Kernel."""
    with spark_settings(spark.conf, {ENABLE_MODE: "STRICT"}):
        yield


@KERNEL_WRITES
@pytest.mark.full
@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("name", STRICT)
def test_delta_s_second_connector_commits_nothing_without_lock(
    name: str, spark: SparkSession, copy_of: Callable[..., Path], without_guard: WithoutGuard
) -> None:
    table = copy_of(*PLAIN)
    check_refusal(spark, STRICT[name], table)
    with without_guard():
        assert new_versions(lambda: STRICT[name](spark, str(table)), table.parent)


@pytest.fixture
def set_kernel_log_store(spark: SparkSession) -> Iterator[Callable[[str, str | None], None]]:
    """Set the log store of Delta Kernel for a scheme; None removes the setting."""
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()

    def set_log_store(scheme: str, name: str | None) -> None:
        key = KERNEL_KEY.format(scheme)
        conf.unset(key) if name is None else conf.set(key, name)

    yield set_log_store
    for scheme in ("s3a", "viewfs"):
        set_log_store(scheme, GUARDED_LOG_STORE)


@KERNEL_WRITES
@pytest.mark.s3
@pytest.mark.usefixtures("strict")
def test_on_s3_delta_s_second_connector_is_guarded(
    spark: SparkSession, manager: ZookeeperLockManager, s3: S3, set_kernel_log_store: Callable[[str, str | None], None]
) -> None:
    table = f"s3a://{s3.root}/strict"
    with locked(spark, table, manager=manager):
        rows(spark).write.format("delta").save(table)
    insert = f"INSERT INTO delta.`{table}` VALUES (8, 'eight', 1)"
    with pytest.raises(LockNotHeldError, match="bound to no lock"):
        spark.sql(insert)
    with locked(spark, table, manager=manager) as hold:
        spark.sql(insert)
    history = DeltaTable.forPath(spark, table).history()
    assert [row["version"] for row in history.collect()] == [1, 0]
    assert hold.commits == {f"s3://{s3.root}/strict": (1,)}
    # The control: Kernel's default log store has no guard.
    set_kernel_log_store("s3a", None)
    spark.sql(insert)
    assert DeltaTable.forPath(spark, table).history(1).collect()[0]["version"] == 2


def test_attach_sets_the_log_store_of_kernel_and_refuses_another(
    spark: SparkSession, set_kernel_log_store: Callable[[str, str | None], None]
) -> None:
    conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
    for scheme in ("s3a", "viewfs"):
        set_kernel_log_store(scheme, None)
    conf.unset("io.deltasluice.kernel.searched")
    attach(spark)
    assert [conf.get(KERNEL_KEY.format(scheme)) for scheme in ("s3a", "viewfs")] == [
        GUARDED_LOG_STORE,
        GUARDED_LOG_STORE,
    ]
    schemes = spark._jvm.io.deltasluice.storage.GuardedLogStore.SCHEMES
    assert {f"spark.hadoop.{KERNEL_KEY.format(scheme)}" for scheme in schemes} == {*KERNEL_LOG_STORE_SETTINGS}
    for scheme in ("s3a", "viewfs"):
        conf.unset("io.deltasluice.kernel.searched")
        set_kernel_log_store(scheme, "io.delta.storage.S3SingleDriverLogStore")
        # Also at a second attempt.
        for _ in range(2):
            with pytest.raises(GuardMissingError, match=rf"logStore\.{scheme}\.impl=io\.delta\.storage\.S3Single"):
                attach(spark)
        set_kernel_log_store(scheme, GUARDED_LOG_STORE)
