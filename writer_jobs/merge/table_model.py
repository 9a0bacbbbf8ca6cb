"""What applying changes leaves open: which rows a table has of them, and what is remembered beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import DataType, StructField, StructType

from writer_jobs.commit.merge import LockedMerge
from writer_jobs.merge.batch import ChangeBatch
from writer_jobs.merge.change_spec import DELETED, ChangeSpec
from writer_jobs.merge.side_table import TOMBSTONES, Remembered
from writer_jobs.writer import LockedDeltaWriter


class RowKind(Protocol):
    """How what is left of a batch becomes rows of a table."""

    @property
    def sequence(self) -> str | None:
        """The table's column with a row's sequence; None if rows have none."""
        ...

    @property
    def folded_by(self) -> Sequence[str]:
        """Of each group of changes by these columns the newest counts."""
        ...

    @property
    def preferred_by(self) -> str | None:
        """Of two changes of a group with one sequence the one with more here; None: they have to say the same."""
        ...

    def row(self, batch: ChangeBatch) -> StructType:
        """Return the columns that the table gets of a batch."""
        ...

    def fields(self, sequence: DataType) -> list[StructField]:
        """Return the columns that the table needs beside those."""
        ...

    def refuse_other_columns(self, table: StructType, row: StructType) -> None:
        """Make sure that columns of a table with the names of a batch's columns have the same source.

        Args:
            table: its schema.
            row: what :meth:`row` returns.

        Raises:
            ChangesError: one has another source.

        """
        ...

    def merge(self, writer: LockedDeltaWriter, source: DataFrame, within: Column) -> LockedMerge:
        """Return the merge of :meth:`source` into the table, whose rows that matter are ``within``."""
        ...

    def unchanged(self, batch: ChangeBatch, keys: int, inserted: int, changed: int) -> int:
        """Return how much of a batch the table had already, or something newer.

        Args:
            batch: the changes.
            keys: how many they have.
            inserted: rows that are new.
            changed: those, and rows that were updated or deleted.

        """
        ...


class Kind(RowKind, Protocol):
    """How changes become rows, if something is remembered beside the table."""

    @property
    def remembered(self) -> Remembered:
        """What is kept beside the table."""
        ...

    def noted(self, batch: ChangeBatch) -> DataFrame | None:
        """Return what of a batch is to be remembered; None: nothing."""
        ...

    def source(self, rows: DataFrame, read_table: Callable[[], DataFrame], remembered: DataFrame | None) -> DataFrame:
        """Return what is to be merged.

        Args:
            rows: the changes that count.
            read_table: returns the table's rows.
            remembered: keys, fields and ``SEQ`` of what earlier batches were remembered by; None: nothing.

        """
        ...


class OfRows:
    """What all kinds of whole rows have in common.

    Args:
        spec: how changes are applied.
        columns: that the table gets of the changes.

    """

    preferred_by: str | None = None

    def __init__(self, spec: ChangeSpec, columns: tuple[str, ...]) -> None:
        self._spec = spec
        self._columns = columns

    def row(self, batch: ChangeBatch) -> StructType:
        """Return the columns that the table gets of a batch."""
        return StructType([batch.rows.schema[name] for name in self._columns])

    def refuse_other_columns(self, table: StructType, row: StructType) -> None:
        """Accept every table: the source of a column is the column of the changes with its name."""

    def unchanged(self, batch: ChangeBatch, keys: int, inserted: int, changed: int) -> int:  # noqa: ARG002 (RowHistory's)
        """Return of how many keys the table had what the batch says, or something newer."""
        return max(0, keys - changed)


class OfChanges(OfRows):
    """What both SCD types have in common: of changes deletes are remembered.

    Args:
        spec: how changes are applied.
        columns: that the table gets of the changes.

    """

    remembered = TOMBSTONES

    def noted(self, batch: ChangeBatch) -> DataFrame | None:
        """Return its deletes, if it has any."""
        return batch.rows.where(DELETED) if batch.deletes else None
