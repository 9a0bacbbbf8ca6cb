"""Base classes of the models: which rows of a table follow from the changes, and what its side table stores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import DataType, StructField, StructType

from writer_jobs.commit.merge import LockedMerge
from writer_jobs.merge.batch import ChangeBatch
from writer_jobs.merge.change_spec import DELETED, ChangeSpec
from writer_jobs.merge.key_bounds import KeyBounds
from writer_jobs.merge.side_table import TOMBSTONES, SideTableLayout
from writer_jobs.writer import LockedDeltaWriter


class RowModel(ABC):
    """The rows of a table that follow from the changes of a batch."""

    #: Table column with a row's sequence; None if rows have no sequence.
    sequence: str | None = None
    #: Columns whose values identify a group of changes. The newest change of each group is applied.
    group_columns: Sequence[str]
    #: Column whose largest value wins if changes of a group have the same sequence; None: they must be equal.
    tie_breaker: str | None = None
    #: Number of rows of the last batch that lack a value; see ``ChangesResult.incomplete``.
    incomplete_count: int = 0

    @abstractmethod
    def row(self, batch: ChangeBatch) -> StructType:
        """Return the columns that the table gets from a batch."""

    def fields(self, sequence: DataType) -> list[StructField]:  # noqa: ARG002 (for rows with a sequence)
        """Return the columns that the table needs in addition to those of :meth:`row`."""
        return []

    @abstractmethod
    def refuse_other_columns(self, table: StructType, row: StructType) -> None:
        """Make sure that each column of :meth:`row` has the same source as the table column of that name.

        Raises:
            ChangesError: A column has another source.

        """

    def close(self) -> None:  # noqa: B027 (most models keep nothing)
        """Release the rows that the model has computed for a batch."""

    @abstractmethod
    def merge(self, writer: LockedDeltaWriter, source: DataFrame, within: Column) -> LockedMerge:
        """Return the merge of ``source`` into the table. All matching rows of the table satisfy ``within``."""

    def unchanged(self, batch: ChangeBatch, keys: int, inserted: int, changed: int) -> int:  # noqa: ARG002 (for RowHistory)
        """Return the number of keys that changed nothing; see ``ChangesResult.unchanged``.

        ``changed`` is the number of rows that were inserted, updated or deleted.
        """
        return max(0, keys - changed)


class TableModel(RowModel):
    """The rows of a table that follow from the changes, and the rows of its side table."""

    side_table: SideTableLayout
    #: Table properties of the side table that its rows depend on; None: it must not have the property.
    side_properties: Mapping[str, str | None] = {}

    @abstractmethod
    def side_rows(self, batch: ChangeBatch) -> DataFrame | None:
        """Return the rows of a batch that the side table stores; None: there are none."""

    @abstractmethod
    def source(
        self,
        rows: DataFrame,
        read_table: Callable[[], DataFrame],
        side_rows: DataFrame | None,
        sequences: KeyBounds,
        are_newest: Callable[[], bool],
    ) -> DataFrame:
        """Return the source of the merge of the folded changes ``rows``.

        ``read_table`` returns the table's rows within the bounds of the batch. ``side_rows`` has the keys, the fields
        and ``SEQ`` of the side table's rows of earlier batches; None: there are none. ``sequences`` are the bounds of
        ``SEQ`` in the batch. ``are_newest`` returns whether all of these are known to be newer than every
        sequence in the table and its side table.
        """


class WholeRows(RowModel):
    """Base of the models whose changes are whole rows; ``columns`` names the change columns that the table gets."""

    def __init__(self, spec: ChangeSpec, columns: tuple[str, ...]) -> None:
        self._spec = spec
        self._columns = columns
        self.group_columns = spec.keys

    def row(self, batch: ChangeBatch) -> StructType:
        """Return the columns that the table gets from a batch."""
        return StructType([batch.rows.schema[name] for name in self._columns])

    def refuse_other_columns(self, table: StructType, row: StructType) -> None:
        """Accept every table: the source of a column is the column of the changes with its name."""


class ScdRows(WholeRows, TableModel):
    """Base of the models of both SCD types: the side table stores deletes as tombstones."""

    side_table = TOMBSTONES

    def side_rows(self, batch: ChangeBatch) -> DataFrame | None:
        """Return the deletes of a batch; None: there are none."""
        return batch.rows.where(DELETED) if batch.delete_count else None
