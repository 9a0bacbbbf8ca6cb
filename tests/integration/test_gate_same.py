"""A gated append has the same rows, schema, statistics and history as a plain append; see docs/gate.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import ZookeeperLockManager
from tests.support.checksums import checksum_file, pop_files, read_as
from tests.support.releases import needs_delta
from tests.support.spark_settings import spark_settings
from writer_jobs import LockedDeltaWriter, SchemaMismatchError, WriteFailedError, locked

pytestmark = pytest.mark.spark

PLAIN = "id LONG, word STRING, day DATE"
UNDER_LOCK = (False,)
SQL_OF_COLUMNS = (4, 4)
ROWS = [(number, f"word {number % 3}", f"2013-0{number % 4 + 1}-01") for number in range(40)]
# Fields that differ between two commits.
UNIQUE = {
    "path", "modificationTime", "timestamp", "txnId", "sluice", "userMetadata", "inCommitTimestamp", "id",
    "createdTime",
}  # fmt: skip

Commits = list[list[dict[str, Any]]]


@dataclass(frozen=True)
class AppendCase:
    """A table and the options of the appends to it.

    ``staged`` has one value for each append: whether it writes its files before it acquires the lock. ``since`` is the
    Delta release that introduced the SQL.
    """

    columns: str = PLAIN
    clause: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    session: dict[str, str] = field(default_factory=dict)
    select: tuple[str, ...] = ("id", "word", "day")
    staged: tuple[bool, ...] = (True,)
    since: tuple[int, ...] = (4, 0)


CASES = {
    "plain": AppendCase(),
    "partitioned": AppendCase(clause="PARTITIONED BY (day)"),
    "partitioned by text": AppendCase(clause="PARTITIONED BY (word)"),
    "not null": AppendCase(columns="id LONG NOT NULL, word STRING, day DATE"),
    "generated column": AppendCase(
        columns=PLAIN + ", month INT GENERATED ALWAYS AS (month(day))", since=SQL_OF_COLUMNS
    ),
    "identity column": AppendCase(
        columns=PLAIN + ", number LONG GENERATED ALWAYS AS IDENTITY", staged=UNDER_LOCK, since=SQL_OF_COLUMNS
    ),
    "column mapping": AppendCase(properties={"delta.columnMapping.mode": "name"}),
    "deletion vectors": AppendCase(properties={"delta.enableDeletionVectors": "true"}),
    "row tracking": AppendCase(properties={"delta.enableRowTracking": "true"}),
    "change data feed": AppendCase(properties={"delta.enableChangeDataFeed": "true"}),
    "in-commit timestamps": AppendCase(properties={"delta.enableInCommitTimestamps": "true"}, staged=UNDER_LOCK),
    "append only": AppendCase(properties={"delta.appendOnly": "true"}),
    "optimized write": AppendCase(
        clause="PARTITIONED BY (day)", properties={"delta.autoOptimize.optimizeWrite": "true"}
    ),
    "option of the writer": AppendCase(options={"maxRecordsPerFile": "7"}),
    "schema that is merged by an option": AppendCase(
        options={"mergeSchema": "true"}, select=("id", "word", "day", "id * 2 AS twice"), staged=UNDER_LOCK
    ),
    "schema that is merged by the session": AppendCase(
        session={"spark.databricks.delta.schema.autoMerge.enabled": "true"},
        select=("id", "word", "day", "id * 2 AS twice"),
        staged=(False, True),
    ),
    "schema that could be merged": AppendCase(session={"spark.databricks.delta.schema.autoMerge.enabled": "true"}),
}


@dataclass
class Pair:
    """Two copies of the empty table of a case."""

    spark: SparkSession
    manager: ZookeeperLockManager
    case: AppendCase
    plain: Path
    gated: Path

    def rows(self) -> DataFrame:
        rows = self.spark.createDataFrame(ROWS, "id long, word string, day string")
        return rows.withColumn("day", F.to_date("day")).selectExpr(*self.case.select).coalesce(1)

    def append_to_both(self, rows: DataFrame) -> bool:
        """Append; return whether files were written before the lock was acquired."""
        with locked(self.spark, str(self.plain), manager=self.manager):
            rows.write.format("delta").mode("append").options(**self.case.options).save(str(self.plain))
        counts = [self.gated_file_count()]
        self.append_gated(
            rows, options=self.case.options, before_write=lambda _: counts.append(self.gated_file_count())
        )
        previous, at_lock = counts
        return at_lock > previous

    def gated_file_count(self) -> int:
        return len(list(self.gated.rglob("*.parquet")))

    def append_gated(self, rows: DataFrame, **options: Any) -> None:
        LockedDeltaWriter(self.spark, self.manager, str(self.gated)).append(rows, lock_during="commit", **options)

    def check_equal(self) -> None:
        """Check that both logs contain the same actions, and the files of both the same rows."""
        gated, plain = commits_of(self.gated), commits_of(self.plain)
        assert without_unique(gated) == without_unique(plain)
        assert contents_of(self.gated, gated) == contents_of(self.plain, plain)


@pytest.fixture
def pair_of(
    spark: SparkSession, manager: ZookeeperLockManager, copy_of: Callable[..., Path], tmp_path: Path
) -> Iterator[Callable[..., Pair]]:
    """Create the two tables of a case, and apply its session settings until the end of the test."""

    def make(case: AppendCase, *statements: str) -> Pair:
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in case.properties.items())
        with_properties = f"TBLPROPERTIES ({properties})" if properties else ""
        plain = copy_of(
            f"CREATE TABLE {{t}} ({case.columns}) USING delta {case.clause} {with_properties}", *statements, to="plain"
        )
        session.enter_context(spark_settings(spark.conf, case.session))
        return Pair(spark, manager, case, plain, Path(shutil.copytree(plain, tmp_path / "gated")))

    with ExitStack() as session:
        yield make


def commits_of(table: Path) -> Commits:
    """Return the actions of each commit."""
    return [
        [json.loads(line) for line in path.read_text().splitlines()] for path in sorted(table.glob("_delta_log/*.json"))
    ]


def without_unique(commits: Commits) -> list[Any]:
    """Return the actions of each commit, sorted, without the fields that differ between commits."""

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: bare(content) for name, content in value.items() if name not in UNIQUE}
        return json.loads(value) if isinstance(value, str) and value.startswith("{") else value

    return [sorted(map(bare, actions), key=json.dumps) for actions in commits]


def contents_of(table: Path, commits: Commits) -> list[list[str]]:
    """Return schema and rows of each data file that the log adds, sorted."""
    added = [action["add"]["path"] for actions in commits for action in actions if "add" in action]
    contents = [pq.ParquetFile(table / unquote(path)).read() for path in added]
    return sorted([str(content.schema), *map(str, content.to_pylist())] for content in contents)


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_delta(case.since, name)) for name, case in CASES.items()]
)
def test_a_gated_append_equals_a_plain_append(name: str, pair_of: Callable[..., Pair], spark: SparkSession) -> None:
    pair = pair_of(CASES[name])
    for staged in CASES[name].staged:
        assert pair.append_to_both(pair.rows()) == staged
    pair.check_equal()
    assert len(commits_of(pair.gated)) == 1 + len(CASES[name].staged)
    # A reader that finds no checksum file derives the checksum.
    newest = checksum_file(pair.gated, len(CASES[name].staged))
    written = json.loads(newest.read_text())
    newest.unlink()
    derived = read_as(spark, "t", newest)
    # Delta's checksum of a commit that changes metadata lists no files; nor does a checksum that is derived from it.
    files = written.pop("allFiles", None)
    if "allFiles" in derived:
        assert pop_files(derived) == pop_files({"allFiles": files})
    else:
        previous = json.loads(checksum_file(pair.gated, len(CASES[name].staged) - 1).read_text())
        assert files is None or "allFiles" not in previous
    assert derived == written


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("partitioned", "column mapping", "row tracking")),
    ],
)
def test_appends_without_a_new_listing_equal_plain_appends(name: str, pair_of: Callable[..., Pair]) -> None:
    """The second append begins with the snapshot of the first one (``LightTransaction.java``)."""
    pair = pair_of(CASES[name])
    for _ in range(3):
        assert pair.append_to_both(pair.rows())
    pair.check_equal()


def test_a_gated_append_checks_a_constraint(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(AppendCase(), "ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 100)")
    assert pair.append_to_both(pair.rows())
    pair.check_equal()
    large = pair.rows().withColumn("id", F.col("id") + 90)
    with pytest.raises(WriteFailedError, match="small"):
        pair.append_gated(large)
    pair.check_equal()


def test_rows_of_another_schema_are_refused_before_a_write(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(AppendCase())
    wider = pair.rows().withColumn("more", F.lit(1))
    with pytest.raises(SchemaMismatchError, match="no column more"):
        pair.append_gated(wider)
    assert not list(pair.gated.glob("*.parquet"))
