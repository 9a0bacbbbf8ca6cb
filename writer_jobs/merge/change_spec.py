"""The description of a feed's changes: keys, sequence, deletes and columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import BooleanType, DataType, MapType, StringType, VariantType

from writer_jobs.delta.jvm_errors import JVM_ERRORS, RAISED, error_reason, has_condition
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import ChangesError, WriteFailedError

_COLUMN_NAME = re.compile(r"(\w+|`[^`]+`)(\.(\w+|`[^`]+`))*")
_INTERNAL_PREFIX = "__sluice_"
SEQUENCE = "__SEQUENCE"
"""Table column with a row's sequence, unless ``sequence_by`` is the name of a column that the table gets."""

COLUMN_SEQUENCES = "__COLUMN_SEQUENCES"
"""Table column: the sequence of the change that contained a value, by lower-case column name.

It has the columns that the row's newest change did not contain. The sequence is null if no change contained the value.
The map is null for a row whose newest change contained all columns.
"""

SEQ = "__sluice_sequence"
"""Column of prepared changes with the sequence."""

DELETED = "__sluice_deleted"
"""Column of prepared changes: whether the change deletes its row."""

UNCHANGED = "__sluice_unchanged"
"""Column of prepared changes with the names of the columns that the change does not contain."""

START = "__START_AT"
"""Table column of SCD type 2: the sequence from which a row was valid (inclusive)."""

END = "__END_AT"
"""Table column of SCD type 2: the sequence up to which a row was valid (exclusive); null in the current row."""


@dataclass(frozen=True, kw_only=True)
class ChangeSpec:
    """The keys, order, deletes and columns of changes to a table.

    ``table`` is the canonical URI of the table, for error messages. The other fields are named as in Spark's AutoCDC;
    see :func:`writer_jobs.apply_changes`.

    Raises:
        ValueError: The arguments contradict each other.

    """

    table: str
    keys: Sequence[str]
    sequence_by: str | Column
    apply_as_deletes: str | Column | None = None
    column_list: Sequence[str] | None = None
    except_column_list: Sequence[str] | None = None
    unchanged_columns: Mapping[str, str | Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.keys, str) or not self.keys:
            raise ValueError("keys: pass a list of at least one column")
        if self.column_list is not None and self.except_column_list is not None:
            raise ValueError("pass column_list or except_column_list, not both")
        for argument, names in (("keys", self.keys), ("column_list", self.column_list or ())):
            if len({name.lower() for name in names}) != len(names):
                raise ValueError(f"{argument} names a column twice: {', '.join(names)}")
        if not_keepable := [name for name in self.unchanged_columns if not _missing([name], self._ordering_columns())]:
            raise ValueError(f"unchanged_columns: each change must contain {', '.join(not_keepable)}")
        if missing := _missing(self.keys, self._selected_columns(self.keys)):
            raise ValueError(
                f"the table would lack the key columns {', '.join(missing)}: name them in column_list, and not in "
                "except_column_list"
            )

    def columns(self, changes: DataFrame) -> tuple[str, ...]:
        """Return the columns of the changes that the table gets, in the order of the changes.

        Raises:
            ChangesError: The changes lack a column that the spec names.

        """
        named_columns = [
            *self.keys,
            *(self.column_list or ()),
            *(self.except_column_list or ()),
            *self.unchanged_columns,
        ]
        if missing := _missing(named_columns, changes.columns):
            raise self.misfit(
                f"the changes have no column {', '.join(missing)}; they have {', '.join(changes.columns)}"
            )
        return self._selected_columns(changes.columns)

    def _ordering_columns(self) -> tuple[str, ...]:
        """Return the keys and, if the sequence is a column, the name of this column."""
        return (*self.keys, self.sequence_by.strip("`")) if isinstance(self.sequence_by, str) else tuple(self.keys)

    def _selected_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names that are in ``column_list`` and not in ``except_column_list``; case is ignored."""
        unlisted_names = () if self.column_list is None else _missing(names, self.column_list)
        return tuple(_missing(names, (*unlisted_names, *(self.except_column_list or ()))))

    def with_keys_of(self, changes: DataFrame) -> ChangeSpec:
        """Return the spec with the keys spelled as in the changes, because Spark ignores the case of names.

        Raises:
            ChangesError: The changes lack a column that the spec names.

        """
        columns = {name.lower(): name for name in self.columns(changes)}
        return replace(self, keys=tuple(columns[name.lower()] for name in self.keys))

    def names_of_unchanged(self, columns: Collection[str]) -> list[str]:
        """Return the columns that some changes do not contain, in the spelling of ``columns``."""
        return [name for name in columns if not _missing([name], self.unchanged_columns)]

    def misfit(self, reason: str) -> ChangesError:
        """Return the error for changes that cannot be applied."""
        return ChangesError(table=self.table, reason=reason)

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Convert a write failure that ``raise_error`` caused to a :class:`ChangesError`; raise others unchanged."""
        try:
            yield
        except WriteFailedError as error:
            if error.__cause__ is not None and has_condition(error.__cause__, RAISED):
                raise self.misfit(error.reason) from error
            raise

    def sequence_column(self, columns: Collection[str]) -> str:
        """Return the table column that stores a row's sequence."""
        if isinstance(self.sequence_by, str):
            sequence = self.sequence_by.strip("`").lower()
            return next((name for name in columns if name.lower() == sequence), SEQUENCE)
        return SEQUENCE

    def prepare(self, changes: DataFrame) -> DataFrame:
        """Return the columns of the changes that the table gets, ``SEQ``, and ``DELETED`` (boolean, not null).

        If the spec has ``unchanged_columns``, the result has the column ``UNCHANGED``, too.

        Raises:
            ChangesError: An expression cannot be resolved or has an unsupported type, or a column has a reserved name.

        """
        columns = self.columns(changes)
        for name in changes.columns:
            if name.lower() in (SEQ, DELETED, UNCHANGED, SEQUENCE.lower(), COLUMN_SEQUENCES.lower()):
                raise self.misfit(f"the name of the column {name} is reserved: rename the column")
        is_delete = F.expr("false") if self.apply_as_deletes is None else _column(self.apply_as_deletes)
        try:
            prepared = changes.select(
                *(changes[quoted(name)] for name in columns),
                _column(self.sequence_by).alias(SEQ),
                is_delete.alias(DELETED),
                *self._unchanged_names(columns),
            )
            types = {column.name: column.dataType for column in prepared.schema}
        except (*JVM_ERRORS, PySparkException) as error:
            raise self.misfit(
                f"sequence_by, apply_as_deletes or unchanged_columns cannot be used: {error_reason(error)}"
            ) from error
        if not isinstance(types[DELETED], BooleanType):
            raise self.misfit(f"apply_as_deletes must be a boolean expression, got {types[DELETED].simpleString()}")
        if isinstance(types[SEQ], MapType | VariantType):
            raise self.misfit(f"sequence_by has the type {types[SEQ].simpleString()}, whose values have no order")
        if (reason := text_sequence_error(self.sequence_by, types[SEQ])) is not None:
            raise self.misfit(reason)
        return prepared.withColumn(DELETED, F.coalesce(F.col(DELETED), F.expr("false")))

    def _unchanged_names(self, columns: Sequence[str]) -> list[Column]:
        """Return the column ``UNCHANGED`` for the columns that the table gets; an empty list if it is not needed."""
        conditions = {
            name: self.unchanged_columns[name] for name in self.unchanged_columns if not _missing([name], columns)
        }
        if not conditions:
            return []
        names = (F.when(_column(condition), F.lit(name.lower())) for name, condition in conditions.items())
        return [F.array_compact(F.array(*names)).alias(UNCHANGED)]


def text_sequence_error(sequence_by: str | Column, sequence_type: DataType) -> str | None:
    """Return why a text column cannot be the sequence; None for another type, and for an expression."""
    if not isinstance(sequence_type, StringType) or (name := _plain_column(sequence_by)) is None:
        return None
    return (
        f"the sequence {name} is text, which has another order than the numbers or times in it: use "
        f"timestamp({name}) or bigint({name}) as sequence, or upper({name}) if the order of text is right"
    )


def sql_of(sequence: str | Column) -> str:
    """Return the SQL text of an expression."""
    return sequence if isinstance(sequence, str) else str(sequence._jc.toString())  # noqa: SLF001 (a Column has no text)


def _plain_column(sequence: str | Column) -> str | None:
    """Return the name if a sequence is a column of the changes; None for an expression and for an internal column."""
    text = sql_of(sequence)
    return text if _COLUMN_NAME.fullmatch(text) and not text.startswith(_INTERNAL_PREFIX) else None


def _column(expression: str | Column) -> Column:
    return F.expr(expression) if isinstance(expression, str) else expression


def _missing(names: Collection[str], columns: Collection[str]) -> list[str]:
    lower_names = {column.lower() for column in columns}
    return [name for name in names if name.lower() not in lower_names]
