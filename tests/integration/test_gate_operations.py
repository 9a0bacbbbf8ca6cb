"""What reads the table, with the lock for its commit alone: Delta looks for conflicts; after one it is done again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import HeldLock, ZookeeperLockManager
from lock_manager.errors import NotStagedError
from tests.support.at_the_gate import TableAtTheGate
from writer_jobs import CommitResult, LockedDeltaWriter, locked

pytestmark = pytest.mark.spark


@dataclass
class Table(TableAtTheGate):
    """A table of two parts, ``p`` 0 and 1, with ten rows each in two files, whose ``n`` is 0."""

    read: Callable[..., list[tuple[Any, ...]]]
    vectors: bool
    files_at_the_lock: list[set[str]] = field(default_factory=list)

    def note(self, _: HeldLock) -> None:
        self.files_at_the_lock.append(self.files())

    def do(self, operation: str) -> CommitResult:
        """Do an operation on the rows of part 0."""
        how: dict[str, Any] = {"lock_during": "commit", "before_write": self.note}
        source = (
            self.spark.range(5)
            .coalesce(1)
            .withColumn("p", F.lit(0).cast("long"))
            .withColumn("n", F.lit(1).cast("long"))
        )
        if operation == "overwrite":
            return self.writer.overwrite(source, replace_where="p = 0", **how)
        if operation == "delete":
            return self.writer.delete("p = 0 AND id >= 5", **how)
        if operation == "optimize":
            return self.writer.optimize("p = 0", **how)
        if operation == "update":
            return self.writer.update({"n": "n + 1"}, "p = 0 AND id < 5", **how)
        merge = self.writer.merge(source.alias("s"), "t.p = 0 AND t.id = s.id", alias="t")
        done: CommitResult = merge.whenMatchedUpdate(set={"n": "t.n + s.n"}).execute(**how)
        return done

    def append(self, *rows: tuple[int, int, int], **how: Any) -> None:
        """Append as a program that is no Spark does, under this thread's lock."""
        columns = zip(("p", "id", "n"), zip(*rows, strict=True), strict=True)
        new = pa.table({name: pa.array(values, pa.int64()) for name, values in columns})
        write_deltalake(str(self.path), new, mode="append", **how)

    def raise_first_row(self) -> None:
        """Change a row of part 0, under this thread's lock: as such a program, or by a deletion vector, as Spark."""
        if self.vectors:
            with locked(self.spark, str(self.path), manager=self.manager):
                self.spark.sql(f"UPDATE delta.`{self.path}` SET n = n + 10 WHERE p = 0 AND id = 0")
        else:
            DeltaTable(str(self.path)).update(predicate="p = 0 AND id = 0", updates={"n": "n + 10"})

    def rows(self) -> list[tuple[int, int, int]]:
        return sorted(self.read(self.path, "p", "id", "n"))

    def waiting(self, operation: str) -> AbstractContextManager[Future[CommitResult]]:
        """Have an operation wait at the gate."""
        return self.behind(lambda: self.do(operation))


@pytest.fixture
def table(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    copy_of: Callable[..., Path],
    manager: ZookeeperLockManager,
    eventually: Callable[..., None],
    rows_of: Callable[..., list[tuple[Any, ...]]],
) -> Table:
    vectors = getattr(request, "param", False)
    path = copy_of(
        "CREATE TABLE {t} (id LONG, p LONG, n LONG) USING delta PARTITIONED BY (p) "
        f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{str(vectors).lower()}')",
        "INSERT INTO {t} SELECT /*+ REPARTITION(2) */ id % 10 AS id, id DIV 10 AS p, 0L AS n FROM range(20)",
    )
    return Table(spark, path, LockedDeltaWriter(spark, manager, str(path)), manager, eventually, rows_of, vectors)


def operations(*every_time: str) -> list[Any]:
    """Return all operations: these, and for `make soak` the others, which Delta commits as it does these."""
    return [
        pytest.param(each, marks=() if each in every_time else pytest.mark.soak)
        for each in ("overwrite", "delete", "update", "merge", "optimize")
    ]


def expected(operation: str, *more: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    changed = {
        "overwrite": [(0, number, 1) for number in range(5)],
        "delete": [(0, number, 0) for number in range(5)],
        "update": [(0, number, int(number < 5)) for number in range(10)],
        "merge": [(0, number, int(number < 5)) for number in range(10)],
        "optimize": [(0, number, 0) for number in range(10)],
    }
    return sorted([*changed[operation], *((1, number, 0) for number in range(10)), *more])


@pytest.mark.full
@pytest.mark.parametrize("operation", operations("overwrite", "delete", "optimize"))
def test_others_commit_meanwhile_and_it_is_no_conflict(table: Table, operation: str) -> None:
    with table.waiting(operation) as running:
        table.append((1, 100, 0))
    assert running.result().version == 3
    assert running.result().commit_id is not None
    assert table.rows() == expected(operation, (1, 100, 0))
    assert len(table.files_at_the_lock) == 1, "it was done once"


@pytest.mark.full
@pytest.mark.parametrize("operation", operations("update", "merge", "optimize"))
def test_a_conflict_is_done_again_with_the_lock_from_its_beginning(table: Table, operation: str) -> None:
    in_conflict(table, operation)


@pytest.mark.full
@pytest.mark.parametrize("table", [True], ids=["deletion vectors"], indirect=True)
@pytest.mark.parametrize("operation", operations("delete"))
def test_so_is_one_of_deletion_vectors(table: Table, operation: str) -> None:
    in_conflict(table, operation)


def in_conflict(table: Table, operation: str) -> None:
    before = table.files()
    with table.waiting(operation) as running:
        staged = table.files() - before
        table.raise_first_row()
    assert running.result().version == 3
    raised = [
        (part, number, n + 10 * (number == 0))
        for part, number, n in expected(operation)
        if part == 0 and operation != "overwrite"
    ]
    kept = [row for row in expected(operation) if row[0] == 1 or operation == "overwrite"]
    assert table.rows() == sorted([*raised, *kept])
    # First, if Delta's check of the conflict came behind the gate; and last, with nothing written yet.
    assert 1 <= len(table.files_at_the_lock) <= 2
    assert not staged & table.files_at_the_lock[-1]
    assert not staged & table.files(), "what the first try wrote is left behind"


@pytest.mark.parametrize("operation", ["update", "optimize"])
def test_that_check_fails_where_nothing_is_done_again(
    table: Table, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: Delta's conflict reaches the caller, and nothing of the operation is in the table."""

    class NeverRaisedError(Exception):
        pass

    monkeypatch.setattr("writer_jobs.commit.locked_operation.NotStagedError", NeverRaisedError)
    with table.waiting(operation) as running:
        table.raise_first_row()
    assert isinstance(running.exception(), NotStagedError)
    assert table.rows() == sorted([*expected("optimize")[1:], (0, 0, 10)])


@pytest.mark.full
def test_hot_updates_all_end_and_none_is_lost(table: Table) -> None:
    def raise_often(_: int) -> None:
        for _ in range(2):
            table.writer.update({"n": "n + 1"}, "p = 0", lock_during="commit")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(raise_often, range(2)))
    assert [n for part, _, n in table.rows() if part == 0] == [4] * 10


def test_a_compaction_that_delta_begins_anew_is_done_again_with_the_lock(table: Table) -> None:
    """Delta itself would begin a second transaction and commit it, also to a table that was adopted meanwhile."""
    before = table.files()
    with table.waiting("optimize") as running:
        staged = table.files() - before
        DeltaTable(str(table.path)).alter.set_table_properties({"a": "b"}, raise_if_not_exists=False)
    assert running.result().version == 3
    assert staged
    assert not staged & table.files_at_the_lock[-1]
    assert table.rows() == expected("optimize")


def test_a_compaction_does_not_land_in_a_table_that_was_made_anew(table: Table) -> None:
    with table.waiting("optimize") as running:
        for path in sorted(table.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        # As many versions as the old one had: the next name is free, and the version before it is there.
        for number in range(2):
            table.append((0, number, 7), partition_by=["p"])
    assert running.result().version == 2
    assert table.rows() == [(0, 0, 7), (0, 1, 7)]
    assert running.result().metrics["numRemovedFiles"] == "2"
