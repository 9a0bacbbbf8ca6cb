"""MERGE under a lock: a builder like Delta's, and the partitions to which a merge condition confines it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, Self, Unpack

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.functions import expr

from writer_jobs.commit.lock_target import LockTarget, Partitions, partitions_of_rows
from writer_jobs.commit.operation import Read, delta_table
from writer_jobs.commit.options import RewriteOptions, WriteOptions, check_options
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.java_classes import java_class, log_store
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.delta.snapshot import TableState
from writer_jobs.errors import TableError

# Types between which Spark's implicit casts keep every value distinct.
_EXACT_TYPES = {"byte", "short", "integer", "long", "decimal"}
# Metadata key of a text column with Spark's type CHAR or VARCHAR.
_CHAR_OR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"

Assignments = Mapping[str, str | Column]
"""Values by column, as SQL or as columns."""


class MergePlan:
    """Source, condition and clauses of a merge.

    Attributes:
        settings: Settings of Delta for this merge alone.

    """

    def __init__(self, source: DataFrame, condition: str | Column, alias: str) -> None:
        self.alias = alias
        self._source = source
        self._condition = condition
        self._clauses: list[tuple[str, tuple[Any, ...]]] = []
        self.settings: dict[str, str] = {}

    @property
    def reads(self) -> list[Read | None]:
        """Source, conditions and assigned values; None for a clause without a condition."""
        reads: list[Read | None] = [self._source, self._condition]
        for _, arguments in self._clauses:
            for argument in arguments:
                reads += argument.values() if isinstance(argument, Mapping) else [argument]
        return reads

    def add(self, clause: str, *arguments: Any) -> None:
        """Add a clause by the name of the method of Delta's builder."""
        self._clauses.append((clause, arguments))

    @property
    def changes_unmatched_rows(self) -> bool:
        """Whether a clause changes rows of the table that no row of the source matches."""
        return bool(self._conditions_on_unmatched_rows)

    @property
    def _conditions_on_unmatched_rows(self) -> list[str | Column | None]:
        return [arguments[0] for clause, arguments in self._clauses if "BySource" in clause]

    def run(self, spark: SparkSession, location: str, target: LockTarget) -> None:
        """Merge into the rows of the table that are in the lock target."""
        condition = expr(self._condition) if isinstance(self._condition, str) else self._condition
        predicate = target.predicate(self.alias)
        if predicate is not None:
            condition = expr(predicate) & condition
        builder: Any = delta_table(spark, location).alias(self.alias).merge(self._source, condition)
        for clause, arguments in self._clauses:
            builder = getattr(builder, clause)(*arguments)
        with confined(spark, location, target.predicate() if self.changes_unmatched_rows else None):
            builder.execute()

    def refuse_padded_partitions(self, target: LockTarget, state: TableState | None) -> None:
        """Raise TableError if rows that the source does not match cannot be confined to the lock target."""
        if target.partitions is not None and self.changes_unmatched_rows and state is not None and _are_padded(state):
            raise TableError(
                f"{target.log.location} has a partition column of type CHAR or VARCHAR: whenNotMatchedBySource needs "
                "lock='table'"
            )

    def partitions(self, spark: SparkSession, location: str, state: TableState) -> Partitions | None:
        """Return the partitions that the merge can change; None if it can change any.

        These are the partitions that the source can match, by the condition's equalities of partition columns, and
        those of the rows that match the condition of a clause ``whenNotMatchedBySource``. This reads the source once,
        and the table once for each such clause. ``t.day = s.day`` confines the merge to the days of the source. A
        condition without an equality of the first partition column can match rows of all partitions.

        Raises:
            TableError: The condition has no such equality, or Spark cannot analyze it.

        """
        target = spark.read.format("delta").load(location).alias(self.alias)
        condition = expr(self._condition) if isinstance(self._condition, str) else self._condition
        try:
            joined_rows: Any = target.join(self._source, condition)
            plan = joined_rows._jdf.queryExecution().analyzed()  # noqa: SLF001
            equalities = {name.lower(): column for name, column in _equalities(spark, plan)}
        except JVM_ERRORS as error:
            raise TableError(f"the merge condition cannot be analyzed: {error_reason(error)}") from error
        columns = takewhile(lambda name: name.lower() in equalities, state.partition_columns)
        expressions = {name: equalities[name.lower()] for name in columns}
        if not expressions:
            raise TableError(
                f"the merge condition can match rows of every partition: add {self.alias}.{state.partition_columns[0]} "
                "= (a column of the source) to it, list the partitions, or lock the table"
            )
        unmatched = self._conditions_on_unmatched_rows
        if any(rows is None for rows in unmatched) or (unmatched and _are_padded(state)):
            return None
        parts = [partitions_of_rows(self._source, state, expressions)]
        parts += [partitions_of_rows(target.where(rows), state) for rows in unmatched if rows is not None]
        return None if None in parts else [partition for part in parts for partition in part or ()]


@contextmanager
def confined(spark: SparkSession, location: str, predicate: str | None) -> Iterator[None]:
    """Let the transactions of this thread on a table read the files of some partitions only.

    For a clause ``whenNotMatchedBySource`` Delta would read and rewrite all files, see ``ConfinedTransaction.java``.

    Args:
        predicate: SQL predicate that compares partition columns with literals; None for all files.

    """
    if predicate is None:
        yield
        return
    transactions = log_store(spark, "ConfinedTransaction")
    transactions.confine(location, predicate)
    try:
        yield
    finally:
        with suppress(*JVM_ERRORS):
            transactions.endConfinement()


def _are_padded(state: TableState) -> bool:
    """Return whether Spark may compare partition values with spaces that the log does not have."""
    return any(_CHAR_OR_VARCHAR in state.schema[name].metadata for name in state.partition_columns)


class LockedMerge:
    """A builder of a MERGE, with the methods of Delta's own; :meth:`execute` merges under the lock.

    ``LockedDeltaWriter.merge`` returns it.
    """

    def __init__(
        self, plan: MergePlan, execute: Callable[[MergePlan, tuple[str, int] | None, RewriteOptions], CommitResult]
    ) -> None:
        self._plan = plan
        self._execute = execute

    def whenMatchedUpdate(self, condition: str | Column | None = None, set: Assignments | None = None) -> Self:
        """Update the matching row of the table."""
        return self._with("whenMatchedUpdate", condition, dict(set or {}))

    def whenMatchedUpdateAll(self, condition: str | Column | None = None) -> Self:
        """Update all columns of the matching row with those of the source."""
        return self._with("whenMatchedUpdateAll", condition)

    def whenMatchedDelete(self, condition: str | Column | None = None) -> Self:
        """Delete the matching row of the table."""
        return self._with("whenMatchedDelete", condition)

    def whenNotMatchedInsert(self, condition: str | Column | None = None, values: Assignments | None = None) -> Self:
        """Insert a row of the source that matches no row of the table."""
        return self._with("whenNotMatchedInsert", condition, dict(values or {}))

    def whenNotMatchedInsertAll(self, condition: str | Column | None = None) -> Self:
        """Insert all columns of a row of the source that matches no row of the table."""
        return self._with("whenNotMatchedInsertAll", condition)

    def whenNotMatchedBySourceUpdate(
        self, condition: str | Column | None = None, set: Assignments | None = None
    ) -> Self:
        """Update a row of the table that no row of the source matches.

        With a list of partitions to lock, rows of other partitions stay. With ``lock="partitions"``, the partitions of
        the rows that match ``condition`` are locked, too, and without a condition the table.
        """
        return self._with("whenNotMatchedBySourceUpdate", condition, dict(set or {}))

    def whenNotMatchedBySourceDelete(self, condition: str | Column | None = None) -> Self:
        """Delete a row of the table that no row of the source matches; see :meth:`whenNotMatchedBySourceUpdate`."""
        return self._with("whenNotMatchedBySourceDelete", condition)

    def withSchemaEvolution(self) -> Self:
        """Add columns of the source that the table lacks; needs the lock on the table if there are any."""
        return self._with("withSchemaEvolution")

    def with_repeatable_source(self) -> Self:
        """Make Delta read the source twice instead of copying it. Each read must return the same rows."""
        self._plan.settings["spark.databricks.delta.merge.materializeSource"] = "none"
        return self

    def execute(self, *, txn: tuple[str, int] | None = None, **write_options: Unpack[WriteOptions]) -> CommitResult:
        """Merge under the lock, and make sure that the commit is in the table.

        Args:
            txn: See :meth:`LockedDeltaWriter.append`.
            write_options: See :class:`~writer_jobs.WriteOptions`.

        Raises:
            SluiceError: See :meth:`LockedDeltaWriter.append`.

        """
        return self._execute(self._plan, txn, check_options("execute", write_options, lock_during="write"))

    def _with(self, clause: str, *arguments: Any) -> Self:
        self._plan.add(clause, *arguments)
        return self


def _equalities(spark: SparkSession, plan: Any) -> Iterator[tuple[str, Column]]:
    """Yield a column of the table and an expression on the source for each equality in a join's condition."""
    while plan.getClass().getSimpleName() != "Join":
        plan = plan.children().head()
    jvm: Any = spark._jvm  # noqa: SLF001
    target, source = plan.left().outputSet(), plan.right().outputSet()
    condition = plan.condition()
    terms = [condition.get()] if condition.isDefined() else []
    while terms:
        term = terms.pop()
        class_name = term.getClass().getSimpleName()
        if class_name == "And":
            terms += [term.left(), term.right()]
        elif class_name in ("EqualTo", "EqualNullSafe"):
            for column, value in ((term.left(), term.right()), (term.right(), term.left())):
                name = _column(jvm, column, target)
                if name is not None and value.deterministic() and value.references().subsetOf(source):
                    utilities = java_class(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
                    yield name, ClassicColumn(utilities.column(value))


def _column(jvm: Any, expression: Any, table: Any) -> str | None:
    """Return the name of the table's column if an expression is a column, or casts of it that keep values distinct.

    Some implicit casts of Spark do not keep them distinct: two long integers may become one floating-point number, and
    two moments one text.
    """
    while expression.getClass().getSimpleName() == "Cast":
        inner = expression.child()
        cast = java_class(jvm, "org.apache.spark.sql.catalyst.expressions.Cast")
        types = {str(term.dataType().typeName()).partition("(")[0] for term in (inner, expression)}
        if not (types <= _EXACT_TYPES and cast.canUpCast(inner.dataType(), expression.dataType())):
            return None
        expression = inner
    is_column = expression.getClass().getSimpleName() == "AttributeReference" and table.contains(expression)
    return str(expression.name()) if is_column else None
