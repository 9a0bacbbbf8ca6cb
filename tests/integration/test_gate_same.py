"""Through the gate a table gets what a plain append gives it: rows, schema, statistics, history; see docs/gate.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
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

Commits = list[list[dict[str, Any]]]


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
    "partitioned by text": Kind(more="PARTITIONED BY (word)"),
    "not null": Kind(columns="id LONG NOT NULL, word STRING, day DATE"),
    "generated column": Kind(columns=PLAIN + ", month INT GENERATED ALWAYS AS (month(day))"),
    "identity column": Kind(columns=PLAIN + ", number LONG GENERATED ALWAYS AS IDENTITY", staged=WHOLE),
    "column mapping": Kind(properties={"delta.columnMapping.mode": "name"}),
    "deletion vectors": Kind(properties={"delta.enableDeletionVectors": "true"}),
    "row tracking": Kind(properties={"delta.enableRowTracking": "true"}),
    "change data feed": Kind(properties={"delta.enableChangeDataFeed": "true"}),
    "in-commit timestamps": Kind(properties={"delta.enableInCommitTimestamps": "true"}, staged=WHOLE),
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
    """Two copies of an empty table of one kind."""

    spark: SparkSession
    manager: ZookeeperLockManager
    kind: Kind
    plain: Path
    gated: Path

    def rows(self) -> DataFrame:
        every = self.spark.createDataFrame(ROWS, "id long, word string, day string")
        return every.withColumn("day", F.to_date("day")).selectExpr(*self.kind.select).coalesce(1)

    def append_to_both(self, rows: DataFrame) -> bool:
        """Append, and tell whether files were written before the lock was acquired."""
        with locked(self.spark, str(self.plain), manager=self.manager):
            rows.write.format("delta").mode("append").options(**self.kind.options).save(str(self.plain))
        before = len(list(self.gated.rglob("*.parquet")))
        seen: list[int] = []

        def count(_: HeldLock) -> None:
            seen.append(len(list(self.gated.rglob("*.parquet"))))

        writer = LockedDeltaWriter(self.spark, self.manager, str(self.gated))
        writer.append(rows, lock_during="commit", options=self.kind.options, before_write=count)
        (files,) = seen
        return files > before


@pytest.fixture
def pair_of(
    spark: SparkSession, manager: ZookeeperLockManager, copy_of: Callable[..., Path], tmp_path: Path
) -> Iterator[Callable[..., Pair]]:
    changed: list[str] = []

    def make(kind: Kind, *statements: str) -> Pair:
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in kind.properties.items())
        with_properties = f"TBLPROPERTIES ({properties})" if properties else ""
        plain = copy_of(
            f"CREATE TABLE {{t}} ({kind.columns}) USING delta {kind.more} {with_properties}", *statements, to="plain"
        )
        for name, value in kind.session.items():
            spark.conf.set(name, value)
            changed.append(name)
        return Pair(spark, manager, kind, plain, Path(shutil.copytree(plain, tmp_path / "gated")))

    yield make
    for name in changed:
        spark.conf.unset(name)


def commits_of(table: Path) -> Commits:
    """Return the actions of each commit."""
    return [
        [json.loads(line) for line in path.read_text().splitlines()] for path in sorted(table.glob("_delta_log/*.json"))
    ]


def without_unique(commits: Commits) -> list[Any]:
    """Return the actions of each commit in order, without what is unique."""

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: bare(each) for name, each in value.items() if name not in UNIQUE}
        return json.loads(value) if isinstance(value, str) and value.startswith("{") else value

    return [sorted(map(bare, actions), key=json.dumps) for actions in commits]


def contents_of(table: Path, commits: Commits) -> list[list[str]]:
    """Return schema and rows of each data file that the log adds, in order."""
    added = [action["add"]["path"] for actions in commits for action in actions if "add" in action]
    found = [pq.ParquetFile(table / unquote(path)).read() for path in added]
    return sorted([str(each.schema), *map(str, each.to_pylist())] for each in found)


def assert_same(pair: Pair) -> None:
    """Make sure that both logs say the same, and that the files of both have the same rows."""
    gated, plain = commits_of(pair.gated), commits_of(pair.plain)
    assert without_unique(gated) == without_unique(plain)
    assert contents_of(pair.gated, gated) == contents_of(pair.plain, plain)


@pytest.mark.full
@pytest.mark.parametrize("name", KINDS)
def test_it_is_as_a_plain_append(name: str, pair_of: Callable[..., Pair], spark: SparkSession) -> None:
    pair = pair_of(KINDS[name])
    for staged in KINDS[name].staged:
        assert pair.append_to_both(pair.rows()) == staged
    assert_same(pair)
    assert len(commits_of(pair.gated)) == 1 + len(KINDS[name].staged)
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


def test_a_constraint_is_kept(pair_of: Callable[..., Pair], spark: SparkSession) -> None:
    pair = pair_of(Kind(), "ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 100)")
    assert pair.append_to_both(pair.rows())
    assert_same(pair)
    large = pair.rows().withColumn("id", F.col("id") + 90)
    with pytest.raises(WriteFailedError, match="small"):
        LockedDeltaWriter(spark, pair.manager, str(pair.gated)).append(large, lock_during="commit")
    assert_same(pair)


def test_rows_of_another_schema_are_refused_before_anything_is_written(
    pair_of: Callable[..., Pair], spark: SparkSession
) -> None:
    pair = pair_of(Kind())
    wider = pair.rows().withColumn("more", F.lit(1))
    with pytest.raises(SchemaMismatchError, match="no column more"):
        LockedDeltaWriter(spark, pair.manager, str(pair.gated)).append(wider, lock_during="commit")
    assert not list(pair.gated.glob("*.parquet"))
