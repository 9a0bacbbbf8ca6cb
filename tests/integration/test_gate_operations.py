"""Operations at the gate that read the table: Delta finds conflicts, and the writer repeats the operation."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lock_manager.errors import NotStagedError
from tests.support.at_the_gate import TableAtTheGate
from writer_jobs import CommitResult

pytestmark = pytest.mark.spark


@dataclass(kw_only=True)
class Table(TableAtTheGate):
    """A table of two partitions, ``p`` 0 and 1, each with ten rows in two files; ``n`` is 0 in all rows."""

    deletion_vectors: bool

    def run(self, operation: str) -> CommitResult:
        """Run an operation on the rows of partition 0."""
        options: dict[str, Any] = {"lock_during": "commit", "before_write": self.record_files}
        source = self.spark.range(5).coalesce(1).selectExpr("id", "0L AS p", "1L AS n")
        match operation:
            case "overwrite":
                return self.writer.overwrite(source, replace_where="p = 0", **options)
            case "delete":
                return self.writer.delete("p = 0 AND id >= 5", **options)
            case "optimize":
                return self.writer.optimize("p = 0", **options)
            case "update":
                return self.writer.update({"n": "n + 1"}, "p = 0 AND id < 5", **options)
        merge = self.writer.merge(source.alias("s"), "t.p = 0 AND t.id = s.id", alias="t")
        result: CommitResult = merge.whenMatchedUpdate(set={"n": "t.n + s.n"}).execute(**options)
        return result

    def append_by_delta_rs(self, *rows: tuple[int, int, int], **options: Any) -> None:
        """Append with delta-rs. The caller holds the lock."""
        columns = zip(("p", "id", "n"), zip(*rows, strict=True), strict=True)
        data = pa.table({name: pa.array(values, pa.int64()) for name, values in columns})
        write_deltalake(str(self.path), data, mode="append", **options)

    def raise_first_row(self) -> None:
        """Change a row of partition 0, by a deletion vector or by delta-rs. The caller holds the lock."""
        if self.deletion_vectors:
            self.sql("UPDATE {t} SET n = n + 10 WHERE p = 0 AND id = 0")
        else:
            DeltaTable(str(self.path)).update(predicate="p = 0 AND id = 0", updates={"n": "n + 10"})

    def rows(self) -> list[tuple[Any, ...]]:
        return self.values("p", "id", "n")

    def waiting(self, operation: str) -> AbstractContextManager[Future[CommitResult]]:
        """Let an operation wait at the gate."""
        return self.waiting_write(lambda: self.run(operation))


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    deletion_vectors = getattr(request, "param", False)
    return Table.create(
        request,
        "CREATE TABLE {t} (id LONG, p LONG, n LONG) USING delta PARTITIONED BY (p) "
        f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{str(deletion_vectors).lower()}')",
        "INSERT INTO {t} SELECT /*+ REPARTITION(2) */ id % 10 AS id, id DIV 10 AS p, 0L AS n FROM range(20)",
        deletion_vectors=deletion_vectors,
    )


def operations(*names: str) -> list[Any]:
    """Return all operations as parameters.

    Operations that are not in ``names`` take the same path in Delta. Only `make soak` runs them.
    """
    return [
        pytest.param(name, marks=() if name in names else pytest.mark.soak)
        for name in ("overwrite", "delete", "update", "merge", "optimize")
    ]


def rows_after(operation: str, *appended: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Return the rows of the table after an operation, and the appended rows."""
    changed = {
        "overwrite": [(0, number, 1) for number in range(5)],
        "delete": [(0, number, 0) for number in range(5)],
        "update": [(0, number, int(number < 5)) for number in range(10)],
        "merge": [(0, number, int(number < 5)) for number in range(10)],
        "optimize": [(0, number, 0) for number in range(10)],
    }
    return sorted([*changed[operation], *((1, number, 0) for number in range(10)), *appended])


@pytest.mark.full
@pytest.mark.parametrize("operation", operations("overwrite", "delete", "optimize"))
def test_a_commit_to_another_partition_is_no_conflict(table: Table, operation: str) -> None:
    with table.waiting(operation) as running:
        table.append_by_delta_rs((1, 100, 0))
    assert running.result().version == 3
    assert running.result().commit_id is not None
    assert table.rows() == rows_after(operation, (1, 100, 0))
    assert len(table.files_at_lock) == 1, "the operation was repeated"


@pytest.mark.full
@pytest.mark.parametrize(
    ("table", "operation"),
    [
        *(pytest.param(False, *case.values, marks=case.marks) for case in operations("update", "merge", "optimize")),
        *(pytest.param(True, *case.values, marks=case.marks) for case in operations("delete")),
    ],
    indirect=["table"],
    ids=lambda value: {True: "deletion vectors", False: "files"}.get(value, value),
)
def test_an_operation_with_a_conflict_is_repeated_under_lock(table: Table, operation: str) -> None:
    initial_files = table.files()
    with table.waiting(operation) as running:
        staged = table.files() - initial_files
        table.raise_first_row()
    assert running.result().version == 3
    raised = 0 if operation == "overwrite" else 10
    assert table.rows() == sorted((p, key, n + raised * (p == key == 0)) for p, key, n in rows_after(operation))
    # If Delta checked the conflict behind the gate, the first attempt has acquired the lock, too.
    assert 1 <= len(table.files_at_lock) <= 2
    assert not staged & table.files_at_lock[-1]
    assert staged or table.deletion_vectors, "the first attempt wrote no file before the lock"
    assert not staged & table.files(), "a file of the first attempt was not removed"


@pytest.mark.parametrize("operation", ["update", "optimize"])
def test_negative_control_without_a_repetition_the_conflict_is_raised(
    table: Table, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NeverRaisedError(Exception):
        pass

    monkeypatch.setattr("writer_jobs.commit.locked_operation.NotStagedError", NeverRaisedError)
    with table.waiting(operation) as running:
        table.raise_first_row()
    assert isinstance(running.exception(), NotStagedError)
    assert table.rows() == sorted([*rows_after("optimize")[1:], (0, 0, 10)])


@pytest.mark.full
def test_no_concurrent_update_of_the_same_rows_is_lost(table: Table) -> None:
    def update_twice(_: int) -> None:
        for _ in range(2):
            table.writer.update({"n": "n + 1"}, "p = 0", lock_during="commit")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(update_twice, range(2)))
    assert [n for p, _, n in table.rows() if p == 0] == [4] * 10


def test_a_compaction_with_a_conflict_is_repeated_under_lock(table: Table) -> None:
    """Delta alone would commit a second transaction, even if the table was adopted in between."""
    initial_files = table.files()
    with table.waiting("optimize") as running:
        staged = table.files() - initial_files
        DeltaTable(str(table.path)).alter.set_table_properties({"a": "b"}, raise_if_not_exists=False)
    assert running.result().version == 3
    assert staged
    assert not staged & table.files_at_lock[-1]
    assert table.rows() == rows_after("optimize")


def test_a_compaction_of_a_recreated_table_is_repeated(table: Table) -> None:
    with table.waiting("optimize") as running:
        table.remove_files()
        # The new table has as many versions: the version of the waiting commit is free.
        for number in range(2):
            table.append_by_delta_rs((0, number, 7), partition_by=["p"])
    assert running.result().version == 2
    assert table.rows() == [(0, 0, 7), (0, 1, 7)]
    assert running.result().metrics["numRemovedFiles"] == "2"
