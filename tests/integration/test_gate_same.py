"""A gated append has the same rows, schema, statistics and history as a plain append.

Each row of the table in docs/gate.md, which lists the light appends, has a case here or another test.
"""

from __future__ import annotations

import json
import re
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
from tests.support.at_the_gate import commit_info
from tests.support.checksums import checksum_file, pop_files, read_as
from tests.support.releases import needs_delta
from tests.support.spark_settings import spark_settings
from tests.support.test_names import exists
from writer_jobs import LockedDeltaWriter, SchemaMismatchError, WriteFailedError, locked

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PLAIN = "id LONG, word STRING, day DATE"
# Each append: whether it writes its files before it acquires the lock, and ``light`` in its commit stamp.
LIGHT = ((True, "listed"), (True, "known"))
NOT_LIGHT = ((True, None), (True, None))
UNDER_LOCK = ((False, None),)
SQL_OF_COLUMNS = (4, 4)
ROWS = [(number, f"word {number % 3}", f"2013-0{number % 4 + 1}-01") for number in range(40)]
# Fields that differ between two commits.
UNIQUE = {
    "path", "modificationTime", "timestamp", "txnId", "sluice", "userMetadata", "inCommitTimestamp", "id",
    "createdTime", "lastUpdated",
}  # fmt: skip
# The writer version of protocols without a list of features that introduced a feature.
LEGACY_FEATURES = {
    "appendOnly": 2, "invariants": 2, "checkConstraints": 3, "changeDataFeed": 4, "generatedColumns": 4,
    "columnMapping": 5,
}  # fmt: skip

Commits = list[list[dict[str, Any]]]


@dataclass(frozen=True)
class AppendCase:
    """A table and the options of the appends to it.

    Attributes:
        row: Words that only one row of the table in docs/gate.md contains.
        statements: SQL statements after the creation of the table.
        txn: Application id of the appends' transactions.
        appends: For each append, whether it writes its files before the lock, and ``light`` in its commit stamp.
        features: Table features that the case tests.
        since: The Delta release that introduced the SQL.

    """

    row: str
    columns: str = PLAIN
    clause: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    statements: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    txn: str | None = None
    session: dict[str, str] = field(default_factory=dict)
    select: tuple[str, ...] = ("id", "word", "day")
    appends: tuple[tuple[bool, str | None], ...] = LIGHT
    features: tuple[str, ...] = ()
    since: tuple[int, ...] = (4, 0)


CASES = {
    "plain": AppendCase("local rows"),
    "partitioned": AppendCase("partitions, generated", clause="PARTITIONED BY (day)"),
    "partitioned by text": AppendCase("partitions, generated", clause="PARTITIONED BY (word)"),
    "not null": AppendCase(
        "NOT NULL", columns="id LONG NOT NULL, word STRING, day DATE", features=("appendOnly", "invariants")
    ),
    "constraint": AppendCase(
        "constraints",
        statements=("ALTER TABLE {t} ADD CONSTRAINT small CHECK (id < 100)",),
        features=("checkConstraints",),
    ),
    "generated column": AppendCase(
        "generated columns",
        columns=PLAIN + ", month INT GENERATED ALWAYS AS (month(day))",
        features=("generatedColumns",),
        since=SQL_OF_COLUMNS,
    ),
    "column default": AppendCase(
        "column defaults",
        columns=PLAIN + ", number LONG DEFAULT 7",
        properties={"delta.feature.allowColumnDefaults": "supported"},
        features=("allowColumnDefaults",),
    ),
    "identity column": AppendCase(
        "identity columns: each append",
        columns=PLAIN + ", number LONG GENERATED ALWAYS AS IDENTITY",
        appends=UNDER_LOCK,
        since=SQL_OF_COLUMNS,
    ),
    "column mapping": AppendCase(
        "column mapping", properties={"delta.columnMapping.mode": "name"}, features=("columnMapping",)
    ),
    "deletion vectors": AppendCase(
        "deletion vectors", properties={"delta.enableDeletionVectors": "true"}, features=("deletionVectors",)
    ),
    "row tracking": AppendCase(
        "row tracking", properties={"delta.enableRowTracking": "true"}, features=("rowTracking", "domainMetadata")
    ),
    "change data feed": AppendCase(
        "change data feed", properties={"delta.enableChangeDataFeed": "true"}, features=("changeDataFeed",)
    ),
    "clustered": AppendCase("clustering", clause="CLUSTER BY (day)", features=("clustering", "domainMetadata")),
    "types": AppendCase(
        "`TIMESTAMP_NTZ`",
        columns=PLAIN + ", at TIMESTAMP_NTZ",
        properties={"delta.enableTypeWidening": "true"},
        select=("id", "word", "day", "CAST(day AS TIMESTAMP_NTZ) AS at"),
        features=("timestampNtz", "typeWidening"),
    ),
    "variant": AppendCase(
        "`VARIANT`",
        columns=PLAIN + ", value VARIANT",
        select=("id", "word", "day", "parse_json('[1]') AS value"),
        features=("variantType",),
        since=(4, 4),
    ),
    "checkpoints": AppendCase(
        "V2 checkpoints",
        properties={
            "delta.checkpointPolicy": "v2",
            "delta.feature.vacuumProtocolCheck": "supported",
            "delta.feature.checkpointProtection": "supported",
        },
        features=("v2Checkpoint", "vacuumProtocolCheck", "checkpointProtection"),
    ),
    "another feature": AppendCase(
        "any other table feature",
        properties={"delta.feature.identityColumns": "supported"},
        appends=NOT_LIGHT,
        features=("identityColumns",),
    ),
    "in-commit timestamps": AppendCase(
        "[in-commit timestamps]", properties={"delta.enableInCommitTimestamps": "true"}, appends=UNDER_LOCK
    ),
    "append only": AppendCase("append-only tables", properties={"delta.appendOnly": "true"}),
    "optimized write": AppendCase(
        "optimized write", clause="PARTITIONED BY (day)", properties={"delta.autoOptimize.optimizeWrite": "true"}
    ),
    "option of the writer": AppendCase("`maxRecordsPerFile`", options={"maxRecordsPerFile": "7"}),
    "option of the file system": AppendCase(
        "option of a file system", options={"fs.sluice.test": "1"}, appends=NOT_LIGHT
    ),
    "transaction": AppendCase("a transaction (`txn`)", txn="nightly"),
    "schema that is merged by an option": AppendCase(
        "`mergeSchema`",
        options={"mergeSchema": "true"},
        select=("id", "word", "day", "id * 2 AS twice"),
        appends=UNDER_LOCK,
    ),
    "schema that is merged by the session": AppendCase(
        "`mergeSchema`",
        session={"spark.databricks.delta.schema.autoMerge.enabled": "true"},
        select=("id", "word", "day", "id * 2 AS twice"),
        appends=(*UNDER_LOCK, *LIGHT),
    ),
    "schema that could be merged": AppendCase(
        "local rows", session={"spark.databricks.delta.schema.autoMerge.enabled": "true"}
    ),
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

    def append_to_both(self, number: int = 1) -> tuple[bool, str | None]:
        """Append; return whether files were written before the lock was acquired, and ``light`` in the stamp.

        ``number`` is the version of the transaction, if the case has one.
        """
        rows, txn = self.rows(), None if self.case.txn is None else (self.case.txn, number)
        transaction = {} if txn is None else {"txnAppId": txn[0], "txnVersion": str(txn[1])}
        with locked(self.spark, str(self.plain), manager=self.manager):
            writer = rows.write.format("delta").mode("append").options(**self.case.options, **transaction)
            writer.save(str(self.plain))
        counts = [self.gated_file_count()]
        version = self.append_gated(
            rows, options=self.case.options, txn=txn, before_write=lambda _: counts.append(self.gated_file_count())
        )
        previous, at_lock = counts
        return at_lock > previous, commit_info(self.gated, version)["sluice"].get("light")

    def gated_file_count(self) -> int:
        return len(list(self.gated.rglob("*.parquet")))

    def append_gated(self, rows: DataFrame, **options: Any) -> int | None:
        """Append through the gate; return the version."""
        writer = LockedDeltaWriter(self.spark, self.manager, str(self.gated))
        return writer.append(rows, lock_during="commit", **options).version

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

    def make(case: AppendCase) -> Pair:
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in case.properties.items())
        with_properties = f"TBLPROPERTIES ({properties})" if properties else ""
        plain = copy_of(
            f"CREATE TABLE {{t}} ({case.columns}) USING delta {case.clause} {with_properties}",
            *case.statements,
            to="plain",
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


def features_of(commits: Commits) -> set[str]:
    """Return the table features of the newest protocol."""
    protocol = [action["protocol"] for actions in commits for action in actions if "protocol" in action][-1]
    legacy = {name for name, version in LEGACY_FEATURES.items() if version <= protocol["minWriterVersion"]}
    return {*protocol["writerFeatures"]} if "writerFeatures" in protocol else legacy


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[needs_delta(case.since, name), *([pytest.mark.full] if name != "plain" else [])])
        for name, case in CASES.items()
    ],
)
def test_a_gated_append_equals_a_plain_append(name: str, pair_of: Callable[..., Pair], spark: SparkSession) -> None:
    case = CASES[name]
    pair = pair_of(case)
    created = len(commits_of(pair.gated))
    assert features_of(commits_of(pair.gated)).issuperset(case.features)
    assert tuple(pair.append_to_both(number) for number, _ in enumerate(case.appends, 1)) == case.appends
    pair.check_equal()
    newest_version = created + len(case.appends) - 1
    assert len(commits_of(pair.gated)) == newest_version + 1
    # A reader that finds no checksum file derives the checksum.
    newest = checksum_file(pair.gated, newest_version)
    written = json.loads(newest.read_text())
    newest.unlink()
    derived = read_as(spark, "t", newest)
    # Delta's checksum of a commit that changes metadata lists no files; nor does a checksum that is derived from it.
    files = written.pop("allFiles", None)
    if "allFiles" in derived:
        assert pop_files(derived) == pop_files({"allFiles": files})
    else:
        previous = json.loads(checksum_file(pair.gated, newest_version - 1).read_text())
        assert files is None or "allFiles" not in previous
    assert derived == written


def test_a_gated_append_checks_a_constraint(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(CASES["constraint"])
    large = pair.rows().withColumn("id", F.col("id") + 90)
    with pytest.raises(WriteFailedError, match="small"):
        pair.append_gated(large)
    pair.check_equal()


def test_rows_of_another_schema_are_refused_before_a_write(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(CASES["plain"])
    wider = pair.rows().withColumn("more", F.lit(1))
    with pytest.raises(SchemaMismatchError, match="no column more"):
        pair.append_gated(wider)
    assert not list(pair.gated.glob("*.parquet"))


def page() -> str:
    return (ROOT / "docs/gate.md").read_text(encoding="utf-8")


def test_each_feature_of_light_appends_has_a_case() -> None:
    source = (ROOT / "log_store/src/io/deltasluice/storage/LightTransaction.java").read_text(encoding="utf-8")
    constants = re.findall(r"Set<String> (?:GROUP_)?FEATURES =(.*?);", source, re.DOTALL)
    allowed = {name for constant in constants for name in re.findall(r'"(\w+)"', constant)}
    assert {feature for case in CASES.values() if case.appends == LIGHT for feature in case.features} == allowed
    assert allowed <= set(re.findall(r"\w+", page()))


#: Tests of rows in docs/gate.md, by words that only one row contains.
OTHER_TESTS = {
    "files outside the table": "integration/test_gate_reads.py::test_other_plans_go_through_the_gate",
    "`before_write`": "integration/test_group_commits.py::test_a_writer_that_cannot_join_ends_the_group",
    '`lock="partitions"`': "integration/test_gate.py::test_partitions_are_locked_for_the_commit_alone",
    "32 KiB": "integration/test_group_commits.py::test_a_writer_that_cannot_join_ends_the_group",
    "first commit of a table": "integration/test_gate.py::test_the_first_version_of_a_table_waits_at_the_gate",
    "table of the catalog": "integration/test_writer.py::test_a_catalog_name_is_locked_by_the_location_of_its_table",
    "`overwrite`, `delete`": "integration/test_gate_operations.py::test_a_commit_to_another_partition_is_no_conflict",
    "`apply_rows`": "integration/test_apply_rows.py::test_late_rows_rewrite_only_files_with_older_versions",
    "reads the table itself": "integration/test_gate_reads.py::test_the_lock_is_held_over_a_plan_that_reads_the_table",
    "reads anything else": "integration/test_gate_reads.py::test_the_lock_is_held_over_a_plan_that_may_read_the_table",
    "with a subquery": "integration/test_gate_reads.py::test_the_lock_is_held_over_a_plan_that_may_read_the_table",
    "symlink manifest": "integration/test_gate_hooks.py::test_a_write_with_harmless_hooks_goes_through_the_gate",
    "holds a lock already": "integration/test_gate.py::test_a_write_in_a_block_uses_the_hold_of_the_block",
    "the guard `off`": "integration/test_gate.py::test_some_settings_keep_the_lock_over_the_whole_write",
    "commitLock.enabled": "integration/test_gate.py::test_some_settings_keep_the_lock_over_the_whole_write",
}


def test_each_row_of_the_page_has_a_case_or_a_test() -> None:
    lines = page().partition("<!-- writes -->\n")[2].partition("<!-- end -->")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    writes = [row[0] for row in rows]
    for words in (*OTHER_TESTS, *(case.row for case in CASES.values())):
        assert len([write for write in writes if words in write]) == 1, words
    for write, lock, light, group in rows:
        cases = [case for case in CASES.values() if case.row in write]
        tests = [test for words, test in OTHER_TESTS.items() if words in write]
        assert cases or tests, write
        assert all(map(exists, tests)), write
        assert {(staged, stamp is not None) for case in cases for staged, stamp in case.appends[:1]} <= {
            (lock == "the commit", light == "yes")
        }, write
        assert light == "yes" or (light, group) == ("no", "no"), write
