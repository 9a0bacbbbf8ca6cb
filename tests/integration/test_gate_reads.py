"""Plans and conditions that read the table they write: the lock is held over the whole write."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import StructType

from tests.support.at_the_gate import TableAtTheGate
from writer_jobs import WriteFailedError
from writer_jobs.commit import gate_rules
from writer_jobs.commit.gate_rules import reason_for_whole_write
from writer_jobs.commit.operation import Operation
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.inputs.sources import SourceReader

pytestmark = pytest.mark.spark

WITH_CHANGES = (
    "CREATE TABLE {t} (id LONG, p LONG) USING delta PARTITIONED BY (p) "
    "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
)
FIRST_ROW = "INSERT INTO {t} VALUES (0, 0)"
READS_THE_TABLE = "the write reads the table itself"


@dataclass(kw_only=True)
class Table(TableAtTheGate):
    """A table with a change feed and one row, and a second table of the same kind next to it."""

    neighbor: Path

    @property
    def name(self) -> str:
        return f"delta.`{self.path}`"

    def rows(self, *ids: int) -> DataFrame:
        return self.spark.createDataFrame([(number, 0) for number in ids], "id long, p long").coalesce(1)

    def changes(self, path: Path | None = None) -> DataFrame:
        feed = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
        return feed.load(str(path or self.path)).select("id", "p")

    def not_in_the_feed(self, *ids: int) -> DataFrame:
        """Return the rows that the table's change feed does not contain."""
        self.changes().createOrReplaceTempView("feed_of_table")
        self.rows(*ids).createOrReplaceTempView("new_rows")
        return self.spark.sql("SELECT * FROM new_rows WHERE id NOT IN (SELECT id FROM feed_of_table)").coalesce(1)

    def append_in_block(self, *ids: int) -> None:
        """Append with Spark's own writer, under the hold of this thread."""
        with self.locked():
            self.rows(*ids).write.format("delta").mode("append").save(str(self.path))

    def counted(self) -> DataFrame:
        """Return a row of partition 1, whose id is the number of changes in the feed."""
        return self.changes().groupBy().agg(F.count("*").alias("id"), F.lit(1).cast("long").alias("p"))

    def ids_of_partition_1(self) -> list[int]:
        return [number for number, p in self.values("id", "p") if p == 1]

    def reason(self, *reads: DataFrame | Column | str) -> str | None:
        """Return the reason why a write that reads these plans needs the lock over the whole write."""
        return reason_for_whole_write(self.spark, self.writer.log, Operation(lambda *_: None, reads=reads))


@pytest.fixture
def table(request: pytest.FixtureRequest, copy_of: Callable[..., Path]) -> Table:
    neighbor = copy_of(WITH_CHANGES, FIRST_ROW.replace("0, 0", "5, 0"), to="other")
    return Table.create(request, WITH_CHANGES, FIRST_ROW, neighbor=neighbor)


def test_rows_that_the_change_feed_lacks_are_appended_once(table: Table) -> None:
    with table.waiting_write(lambda: table.writer.append(table.not_in_the_feed(0, 1), lock_during="commit")) as running:
        table.append_in_block(1)
    running.result()
    assert table.ids() == [0, 1]


def test_concurrent_appends_of_missing_rows_add_them_once(table: Table) -> None:
    rows = table.not_in_the_feed(0, 1, 2)
    with ThreadPoolExecutor(2) as pool:
        for append in [pool.submit(table.writer.append, rows, lock_during="commit") for _ in range(2)]:
            append.result()
    assert table.ids() == [0, 1, 2]


def append_counted(table: Table, **options: Any) -> Any:
    return table.writer.append(table.counted(), **options)


def overwrite_with_counted(table: Table, **options: Any) -> Any:
    return table.writer.overwrite(table.counted(), replace_where="p = 1", **options)


def merge_counted(table: Table, **options: Any) -> Any:
    merge = table.writer.merge(table.counted().alias("s"), "t.p = 1 AND t.id = s.id", alias="t")
    return merge.whenNotMatchedInsert(values={"id": "s.id", "p": "1"}).execute(**options)


def update_to_counted(table: Table, **options: Any) -> Any:
    table.changes().createOrReplaceTempView("feed_of_table")
    return table.writer.update({"id": "(SELECT count(*) FROM feed_of_table)"}, "p = 1", **options)


COUNTING = [append_counted, overwrite_with_counted, merge_counted, update_to_counted]


@pytest.mark.full
@pytest.mark.parametrize("write", COUNTING)
def test_plans_that_read_the_feed_see_all_earlier_commits(table: Table, write: Callable[..., Any]) -> None:
    if write is update_to_counted:
        table.writer.append(table.rows(7).withColumn("p", F.lit(1).cast("long")))
    row_count = len(table.ids())
    with table.waiting_write(lambda: write(table, lock_during="commit")) as running:
        # Delta sees no conflict with a commit to another partition.
        table.append_in_block(100)
    running.result()
    assert table.ids_of_partition_1() == [row_count + 1]


@pytest.mark.full
@pytest.mark.parametrize("write", COUNTING[:3])
def test_negative_control_without_the_rule_commits_are_not_counted(
    table: Table, write: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta's conflict check does not see that the change feed was read."""
    monkeypatch.setattr(gate_rules, "own_read_reason", lambda *_: None)
    with table.waiting_write(lambda: write(table, lock_during="commit")) as running:
        table.append_in_block(100)
    running.result()
    assert table.ids_of_partition_1() == [1]


def test_the_lock_is_held_over_a_plan_that_reads_the_table(table: Table, tmp_path: Path) -> None:
    spark, name = table.spark, table.name
    (tmp_path / "link").symlink_to(table.path)
    direct = spark.read.format("delta").load(str(table.path))
    direct.createOrReplaceTempView("view_of_table")
    table.rows(1).createOrReplaceTempView("new_rows")
    spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION newest() RETURNS LONG RETURN (SELECT max(id) FROM {name})")
    cached = direct.where("id >= 0").cache()
    cached.count()
    plans = {
        "direct": direct,
        "other name": spark.read.format("delta").load(str(tmp_path / "link")),
        "older version": spark.read.format("delta").option("versionAsOf", 1).load(str(table.path)),
        "view": spark.sql("SELECT * FROM view_of_table"),
        "cache": cached,
        "union": table.rows(1).union(direct),
        "scalar": spark.sql(f"SELECT id + (SELECT max(id) FROM {name}) AS id, p FROM new_rows"),
        "in": spark.sql("SELECT * FROM new_rows WHERE id NOT IN (SELECT id FROM view_of_table)"),
        "exists": spark.sql(f"SELECT * FROM new_rows n WHERE NOT EXISTS (SELECT 1 FROM {name} t WHERE t.id = n.id)"),
        "nested": spark.sql(
            f"SELECT * FROM new_rows WHERE id IN (SELECT id FROM new_rows WHERE id > (SELECT max(id) FROM {name}))"
        ),
        "lateral": spark.sql(
            f"SELECT n.id, l.p FROM new_rows n, LATERAL (SELECT t.p FROM {name} t WHERE t.id = n.id) l"
        ),
        "with": spark.sql(f"WITH c AS (SELECT * FROM {name}) SELECT a.* FROM c a JOIN c b ON a.id = b.id"),
        "function": spark.sql("SELECT newest() AS id, 0L AS p"),
        "scalar column": table.rows(1).select(direct.groupBy().max("id").scalar().alias("id"), "p"),
        "changes": table.changes(),
        "changes by function": spark.sql(f"SELECT id, p FROM table_changes_by_path('{table.path}', 0)"),
        "files": spark.read.parquet(f"{table.path}/p=0"),
        "folder above": spark.read.option("recursiveFileLookup", "true").text(str(table.path.parent)),
    }
    assert {kind: table.reason(plan) for kind, plan in plans.items()} == dict.fromkeys(plans, READS_THE_TABLE)
    cached.unpersist()


def test_the_lock_is_held_over_a_plan_that_may_read_the_table(table: Table) -> None:
    spark = table.spark
    table.rows(1).createOrReplaceTempView("new_rows")
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION twice(x LONG) RETURNS LONG RETURN x * 2")
    other_session = spark.newSession()
    other_session.conf.set("spark.sql.sources.useV1SourceList", "")
    unknown: dict[str, DataFrame | Column | str] = {
        "result of a command": spark.sql(f"DESCRIBE HISTORY {table.name}"),
        "connector": other_session.read.parquet(str(table.neighbor / "p=0")),
        "subquery": "id IN (SELECT id FROM new_rows)",
        "subquery in a column": F.expr("id > (SELECT max(id) FROM new_rows)"),
        "scalar column": F.col("id") > table.rows(1).groupBy().max("id").scalar(),
        "function of the session": "twice(id) = 2",
        "syntax error": "id = = 1",
    }
    reasons = {kind: table.reason(read) for kind, read in unknown.items()}
    assert all(reason is not None and "may read the table" in reason for reason in reasons.values()), reasons


@pytest.mark.full
def test_other_plans_go_through_the_gate(table: Table, tmp_path: Path) -> None:
    spark = table.spark
    table.rows(1).write.parquet(str(tmp_path / "files"))
    table.rows(1).write.csv(str(tmp_path / "csv"), header=True)
    spark.read.format("delta").load(str(table.neighbor)).createOrReplaceTempView("other_table")
    table.rows(1).createOrReplaceTempView("new_rows")
    lines = SourceReader(spark, find_sources(HadoopFiles.of(spark), [str(tmp_path / "csv")]), "csv", {}, "t")
    derby = "jdbc:derby:memory:gate;create=true"
    table.rows(1).write.jdbc(derby, "numbers", properties={"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"})
    harmless: dict[str, DataFrame | Column | str] = {
        "local rows": table.rows(1),
        "values": spark.sql("SELECT * FROM VALUES (1L, current_timestamp()) AS v(id, at)"),
        "one row": spark.sql("SELECT 1L AS id"),
        "range": spark.range(3),
        "RDD": spark.sparkContext.parallelize([(1, 2)]).toDF(["id", "p"]),
        "checkpoint of the table": spark.read.format("delta").load(str(table.path)).localCheckpoint(),
        "parquet": spark.read.parquet(str(tmp_path / "files")),
        "csv": spark.read.csv(str(tmp_path / "csv"), header=True),
        "csv that is cast exactly": lines.read(StructType.fromDDL("id decimal(10,2), p double")),
        "JDBC": spark.read.jdbc(derby, "numbers"),
        "other table": spark.sql("SELECT * FROM new_rows WHERE id NOT IN (SELECT id FROM other_table)"),
        "other table's changes": table.changes(table.neighbor),
        "with": spark.sql("WITH c AS (SELECT * FROM new_rows) SELECT a.* FROM c a JOIN c b ON a.id = b.id"),
        "recursion": spark.sql(
            "WITH RECURSIVE r AS (SELECT 1L AS id UNION ALL SELECT id + 1 FROM r WHERE id < 3) SELECT id FROM r"
        ),
        "condition": "t.id = s.id AND abs(t.p) IN (1, 2) AND t.word RLIKE 'x'",
        "column": F.col("id").isin(1, 2) & F.expr("p BETWEEN 0 AND 1"),
    }
    assert {kind: table.reason(read) for kind, read in harmless.items()} == dict.fromkeys(harmless)


@pytest.mark.parametrize("operation", ["delete", "update", "merge"])
def test_delta_refuses_subqueries_in_conditions(table: Table, operation: str) -> None:
    subquery = f"id IN (SELECT id FROM {table.name})"
    with pytest.raises(WriteFailedError, match=r"[Ss]ubquery|[Ss]ubqueries"):
        if operation == "delete":
            table.writer.delete(subquery, lock_during="commit")
        elif operation == "update":
            table.writer.update({"id": "1"}, subquery, lock_during="commit")
        else:
            table.writer.merge(table.rows(1).alias("s"), f"t.{subquery}", alias="t").whenMatchedDelete().execute(
                lock_during="commit"
            )


@pytest.mark.full
def test_operations_with_harmless_plans_go_through_the_gate(table: Table) -> None:
    merge = table.writer.merge(table.rows(0).alias("s"), "t.id = s.id", alias="t")
    operations: list[Callable[..., Any]] = [
        merge.whenMatchedUpdate("t.p = 0", {"id": "s.id + 1"}).whenNotMatchedInsertAll().execute,
        partial(table.writer.update, {"id": F.col("id") + 1}, "p = 0"),
        partial(table.writer.overwrite, table.rows(8, 9)),
        partial(table.writer.delete, "id = 8"),
    ]
    for operation in operations:
        previous_files = table.files()
        operation(lock_during="commit", before_write=table.record_files)
        assert table.files_at_lock.pop() - previous_files, operation
    assert table.ids() == [9]
