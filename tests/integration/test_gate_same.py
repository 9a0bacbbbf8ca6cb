"""Through the gate a table gets what a plain append gives it: rows, schema, statistics, history; see docs/gate.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import HeldLock, ZookeeperLockManager
from tests.support.checksums import checksum_file, files_of, read_as
from writer_jobs import LockedDeltaWriter, SchemaMismatchError, WriteFailedError, locked

pytestmark = pytest.mark.spark

PLAIN = "id LONG, word STRING, day DATE"
WHOLE = (False,)
ROWS = [(number, f"word {number % 3}", f"2013-0{number % 4 + 1}-01") for number in range(40)]
# Of one commit these differ from those of another.
UNIQUE = {
    "path", "modificationTime", "timestamp", "txnId", "sluice", "userMetadata", "inCommitTimestamp", "id",
    "createdTime",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of table, or of append, and whether its commits are separated from their work."""

    columns: str = PLAIN
    more: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    session: dict[str, str] = field(default_factory=dict)
    select: tuple[str, ...] = ("id", "word", "day")
    staged: tuple[bool, ...] = (True,)


KINDS = {
    "plain": Kind(),
    "partitioned": Kind(more="PARTITIONED BY (day)"),
    "not null": Kind(columns="id LONG NOT NULL, word STRING, day DATE"),
    "generated column": Kind(columns=PLAIN + ", month INT GENERATED ALWAYS AS (month(day))"),
    "identity column": Kind(columns=PLAIN + ", number LONG GENERATED ALWAYS AS IDENTITY", staged=WHOLE),
    "column mapping": Kind(properties={"delta.columnMapping.mode": "name"}),
    "deletion vectors": Kind(properties={"delta.enableDeletionVectors": "true"}),
    "row tracking": Kind(properties={"delta.enableRowTracking": "true"}),
    "change data feed": Kind(properties={"delta.enableChangeDataFeed": "true"}),
    "in-commit timestamps": Kind(properties={"delta.enableInCommitTimestamps": "true"}),
    "append only": Kind(properties={"delta.appendOnly": "true"}),
    "optimized write": Kind(more="PARTITIONED BY (day)", properties={"delta.autoOptimize.optimizeWrite": "true"}),
    "option of the writer": Kind(options={"maxRecordsPerFile": "7"}),
    "schema that may be merged": Kind(
        options={"mergeSchema": "true"}, select=("id", "word", "day", "id * 2 AS twice"), staged=WHOLE
    ),
    "schema that is merged by the session": Kind(
        session={"spark.databricks.delta.schema.autoMerge.enabled": "true"},
        select=("id", "word", "day", "id * 2 AS twice"),
        staged=(False, True),
    ),
    "schema that might be": Kind(session={"spark.databricks.delta.schema.autoMerge.enabled": "true"}),
}


@dataclass
class Pair:
    """Two tables of one kind."""

    spark: SparkSession
    manager: ZookeeperLockManager
    kind: Kind
    plain: Path
    gated: Path

    def make(self) -> None:
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in self.kind.properties.items())
        for path in (self.plain, self.gated):
            with locked(self.spark, str(path), manager=self.manager):
                self.spark.sql(
                    f"CREATE TABLE delta.`{path}` ({self.kind.columns}) USING delta {self.kind.more} "
                    + (f"TBLPROPERTIES ({properties})" if properties else "")
                )

    def rows(self) -> DataFrame:
        every = self.spark.createDataFrame(ROWS, "id long, word string, day string")
        return every.withColumn("day", F.to_date("day")).selectExpr(*self.kind.select).coalesce(1)

    def append_to_both(self, rows: DataFrame) -> bool:
        """Append, and tell whether files were written before the lock was had."""
        with locked(self.spark, str(self.plain), manager=self.manager):
            rows.write.format("delta").mode("append").options(**self.kind.options).save(str(self.plain))
        before = len(list(self.gated.rglob("*.parquet")))
        seen: list[int] = []

        def count(_: HeldLock) -> None:
            seen.append(len(list(self.gated.rglob("*.parquet"))))

        writer = LockedDeltaWriter(self.spark, self.manager, str(self.gated))
        writer.append(rows, hold="commit", options=self.kind.options, before_write=count)
        (files,) = seen
        return files > before


@pytest.fixture
def pair_of(spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path) -> Any:
    changed: list[str] = []

    def make(kind: Kind) -> Pair:
        for name, value in kind.session.items():
            spark.conf.set(name, value)
            changed.append(name)
        pair = Pair(spark, manager, kind, tmp_path / "plain", tmp_path / "gated")
        pair.make()
        return pair

    yield make
    for name in changed:
        spark.conf.unset(name)


def newest_commit(table: Path) -> list[Any]:
    """Return the actions of the newest commit, without what is unique."""

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: bare(each) for name, each in value.items() if name not in UNIQUE}
        return json.loads(value) if isinstance(value, str) and value.startswith("{") else value

    newest = max(table.glob("_delta_log/*.json"))
    first = next(
        json.loads(line)
        for line in (table / f"_delta_log/{0:020d}.json").read_text().splitlines()
        if "metaData" in line
    )
    text = newest.read_text()
    for column in json.loads(first["metaData"]["schemaString"])["fields"]:
        text = text.replace(column["metadata"].get("delta.columnMapping.physicalName", column["name"]), column["name"])
    actions = [bare(json.loads(line)) for line in text.splitlines()]
    return sorted(actions, key=json.dumps)


@pytest.mark.parametrize("name", KINDS)
def test_it_is_as_a_plain_append(name: str, pair_of: Callable[[Kind], Pair], spark: SparkSession) -> None:
    pair = pair_of(KINDS[name])
    for staged in KINDS[name].staged:
        assert pair.append_to_both(pair.rows()) == staged
    assert newest_commit(pair.gated) == newest_commit(pair.plain)
    one, other = (spark.read.format("delta").load(str(path)) for path in (pair.plain, pair.gated))
    assert one.schema == other.schema
    assert sorted(map(repr, one.collect())) == sorted(map(repr, other.collect()))
    # Whoever comes before its checksum is written derives it.
    newest = checksum_file(pair.gated, len(KINDS[name].staged))
    written = json.loads(newest.read_text())
    newest.unlink()
    derived = read_as(spark, "t", newest)
    # The files are left out if the version before has none: Delta writes none where the metadata changes.
    files = written.pop("allFiles", None)
    if "allFiles" in derived:
        assert files_of(derived) == files_of({"allFiles": files})
    else:
        before = json.loads(checksum_file(pair.gated, len(KINDS[name].staged) - 1).read_text())
        assert files is None or "allFiles" not in before
    assert derived == written


def test_a_constraint_is_kept_and_its_files_are_not(pair_of: Callable[[Kind], Pair], spark: SparkSession) -> None:
    pair = pair_of(Kind())
    for path in (pair.plain, pair.gated):
        with locked(spark, str(path), manager=pair.manager):
            spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT small CHECK (id < 100)")
    assert pair.append_to_both(pair.rows())
    assert newest_commit(pair.gated) == newest_commit(pair.plain)
    large = pair.rows().withColumn("id", F.col("id") + 90)
    with locked(spark, str(pair.plain), manager=pair.manager), pytest.raises(Exception, match="small"):
        large.write.format("delta").mode("append").save(str(pair.plain))
    with pytest.raises(WriteFailedError, match="small"):
        LockedDeltaWriter(spark, pair.manager, str(pair.gated)).append(large, hold="commit")
    assert newest_commit(pair.gated) == newest_commit(pair.plain)


def test_rows_of_another_schema_are_refused_before_anything_is_written(
    pair_of: Callable[[Kind], Pair], spark: SparkSession
) -> None:
    pair = pair_of(Kind())
    wider = pair.rows().withColumn("more", F.lit(1))
    with pytest.raises(SchemaMismatchError, match="no column more"):
        LockedDeltaWriter(spark, pair.manager, str(pair.gated)).append(wider, hold="commit")
    assert not list(pair.gated.glob("*.parquet"))
