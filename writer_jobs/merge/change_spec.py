"""What changes are and how they are applied: keys, order, deletes, columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import BooleanType, DataType, MapType, StringType, VariantType

from writer_jobs.delta.jvm_errors import JVM_ERRORS, RAISED, has_condition, one_sentence
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import ChangesError, WriteFailedError

_NAME = re.compile(r"(\w+|`[^`]+`)(\.(\w+|`[^`]+`))*")
_OWN_PREFIX = "__sluice_"
SEQUENCE = "__SEQUENCE"
"""Column of the table with a row's sequence, where no column of the rows is the sequence."""

SEQ = "__sluice_sequence"
"""Column of prepared changes with the sequence."""

DELETED = "__sluice_deleted"
"""Column of prepared changes: whether the change deletes its row."""


START = "__START_AT"
"""Column with the sequence from which a row was valid."""

END = "__END_AT"
"""Column with the sequence up to which, and without which, it was; null in the current row."""


@dataclass(frozen=True, kw_only=True)
class ChangeSpec:
    """How to apply changes; parameters have the names of Spark's AutoCDC.

    Attributes:
        table: canonical URI, for messages.
        keys: columns that together name a row.
        sequence_by: order of the changes of one key: a column's name, SQL, or a column.
        apply_as_deletes: SQL or a column: which changes delete their row; None: none does.
        column_list: columns that the table gets; None: all.
        except_column_list: columns that it does not get; not together with ``column_list``.

    """

    table: str
    keys: tuple[str, ...]
    sequence_by: str | Column
    apply_as_deletes: str | Column | None = None
    column_list: tuple[str, ...] | None = None
    except_column_list: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        table: str,
        *,
        keys: Sequence[str],
        sequence_by: str | Column,
        apply_as_deletes: str | Column | None = None,
        column_list: Sequence[str] | None = None,
        except_column_list: Sequence[str] | None = None,
    ) -> ChangeSpec:
        """Make it of a caller's arguments.

        Raises:
            ValueError: they contradict each other.

        """
        if isinstance(keys, str) or not keys:
            raise ValueError("keys: give a list of at least one column")
        if column_list is not None and except_column_list is not None:
            raise ValueError("give column_list or except_column_list, not both")
        for argument, given in (("keys", keys), ("column_list", column_list or ())):
            if len({name.lower() for name in given}) != len(given):
                raise ValueError(f"{argument} names a column twice: {', '.join(given)}")
        lost = _missing(keys, column_list) if column_list is not None else _common(keys, except_column_list or ())
        if lost:
            raise ValueError(f"the table needs its key columns: {', '.join(lost)}")
        return cls(
            table=table,
            keys=tuple(keys),
            sequence_by=sequence_by,
            apply_as_deletes=apply_as_deletes,
            column_list=None if column_list is None else tuple(column_list),
            except_column_list=tuple(except_column_list or ()),
        )

    def columns(self, changes: DataFrame) -> tuple[str, ...]:
        """Return which columns of the changes the table gets, in their order.

        Raises:
            ChangesError: the changes lack one that is named.

        """
        named = [*self.keys, *(self.column_list or ()), *self.except_column_list]
        if lost := _missing(named, changes.columns):
            raise self.misfit(f"the changes have no column {', '.join(lost)}; they have {', '.join(changes.columns)}")
        wanted = None if self.column_list is None else {name.lower() for name in self.column_list}
        without = {name.lower() for name in self.except_column_list}
        return tuple(
            name
            for name in changes.columns
            if name.lower() not in without and (wanted is None or name.lower() in wanted)
        )

    def of_changes(self, changes: DataFrame) -> ChangeSpec:
        """Return this with the keys as the changes spell them: Spark's names differ by more than their letters' case.

        Raises:
            ChangesError: the changes lack a column that is named.

        """
        columns = {name.lower(): name for name in self.columns(changes)}
        return replace(self, keys=tuple(columns[name.lower()] for name in self.keys))

    def misfit(self, reason: str) -> ChangesError:
        """Return the error of changes that cannot be applied."""
        return ChangesError(table=self.table, reason=reason)

    def refusal_in(self, error: WriteFailedError) -> ChangesError | None:
        """Return the error of changes that a merge refused by ``raise_error``; None if it failed for another reason."""
        cause = error.__cause__
        return self.misfit(error.reason) if cause is not None and has_condition(cause, RAISED) else None

    def sequence_column(self, columns: Collection[str]) -> str:
        """Return the table's column that has a row's sequence."""
        if isinstance(self.sequence_by, str):
            same = [name for name in columns if name.lower() == self.sequence_by.strip("`").lower()]
            if same:
                return same[0]
        return SEQUENCE

    def prepared(self, changes: DataFrame) -> DataFrame:
        """Return the changes with their sequence and whether they delete, and of the columns what the table gets.

        Returns:
            The key columns, the other columns, ``SEQ`` and ``DELETED`` (boolean, not null).

        Raises:
            ChangesError: an expression cannot be understood, or has a type that will not do.

        """
        columns = self.columns(changes)
        taken = [name for name in changes.columns if name.lower() in (SEQ, DELETED, SEQUENCE.lower())]
        if taken:
            raise self.misfit(f"the changes have a column {taken[0]}, which is a name of ours: rename it")
        deleted = F.expr("false") if self.apply_as_deletes is None else _column(self.apply_as_deletes)
        try:
            prepared = changes.select(
                *(changes[quoted(name)] for name in columns),
                _column(self.sequence_by).alias(SEQ),
                deleted.alias(DELETED),
            )
            kinds = {field.name: field.dataType for field in prepared.schema}
        except (*JVM_ERRORS, PySparkException) as error:
            raise self.misfit(f"sequence_by or apply_as_deletes cannot be used: {one_sentence(error)}") from error
        if not isinstance(kinds[DELETED], BooleanType):
            raise self.misfit(f"apply_as_deletes is no condition, but {kinds[DELETED].simpleString()}")
        if isinstance(kinds[SEQ], MapType | VariantType):
            raise self.misfit(f"sequence_by has no order: it is {kinds[SEQ].simpleString()}")
        if (reason := order_of_text(self.sequence_by, kinds[SEQ])) is not None:
            raise self.misfit(reason)
        return prepared.withColumn(DELETED, F.coalesce(F.col(DELETED), F.expr("false")))


def order_of_text(sequence_by: str | Column, kind: DataType) -> str | None:
    """Return why a column of text cannot be the sequence; None for another type, and for an expression.

    Args:
        sequence_by: The sequence.
        kind: Its type.

    """
    if not isinstance(kind, StringType) or (name := _plain_column(sequence_by)) is None:
        return None
    return (
        f"the sequence {name} is text, which has another order than the numbers or times in it: use "
        f"timestamp({name}) or bigint({name}) as sequence, or upper({name}) if the order of text is right"
    )


def sql_of(sequence: str | Column) -> str:
    """Return an expression as text."""
    return sequence if isinstance(sequence, str) else str(sequence._jc.toString())  # noqa: SLF001 (a Column has no text)


def _plain_column(sequence: str | Column) -> str | None:
    """Return the name if a sequence is a column of the changes, None if it is an expression or a column of a feed."""
    text = sql_of(sequence)
    return text if _NAME.fullmatch(text) and not text.startswith(_OWN_PREFIX) else None


def _column(given: str | Column) -> Column:
    return F.expr(given) if isinstance(given, str) else given


def _missing(wanted: Collection[str], there: Collection[str]) -> list[str]:
    known = {name.lower() for name in there}
    return [name for name in wanted if name.lower() not in known]


def _common(some: Collection[str], others: Collection[str]) -> list[str]:
    known = {name.lower() for name in others}
    return [name for name in some if name.lower() in known]
