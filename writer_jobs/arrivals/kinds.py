"""Which of several rows with one key stays: the first that came, or the one with the largest sequence."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StructField

from writer_jobs.changes.kind import OfRows
from writer_jobs.changes.parts import S, T, all_of, comparable, content_hash, matched, of, without_known
from writer_jobs.changes.scd1 import NewestRows
from writer_jobs.changes.spec import DELETED, SEQ, ChangeSpec
from writer_jobs.commit.merge import LockedMerge
from writer_jobs.delta.sql_names import quoted
from writer_jobs.writer import LockedDeltaWriter

_CONTENT, _KNOWN = "__sluice_content", "__sluice_known"


class FirstRows(OfRows):
    """A row whose key the table has is a repetition, whatever else it says.

    Of rows with one key that come in one batch one is chosen by what it says, the same one each time.

    Args:
        spec: how rows are applied.
        columns: that the table gets of them.

    """

    sequence: str | None = None
    preferred_by = _CONTENT

    def __init__(self, spec: ChangeSpec, columns: tuple[str, ...]) -> None:
        super().__init__(spec, columns)
        #: Of each group of rows by these one counts.
        self.folded_by = spec.keys

    def prepared(self, rows: DataFrame) -> DataFrame:
        """Return what :meth:`ChangeSpec.prepared` returns with what one of several is chosen by."""
        return rows.withColumn(_CONTENT, content_hash(rows, self._columns))

    def fields(self, sequence: DataType) -> list[StructField]:  # noqa: ARG002 (as others')
        """Return nothing: the rows have no sequence."""
        return []

    def rewrites_for_nothing(self, rows: DataFrame, table: DataFrame) -> bool:  # noqa: ARG002 (as the others)
        """Return false: what only inserts rewrites no file."""
        return False

    def news(self, rows: DataFrame, table: DataFrame) -> DataFrame:
        """Leave out rows whose keys a table has."""
        return without_known(rows, table, self._spec.keys, F.expr("true"))

    def merge(self, writer: LockedDeltaWriter, source: DataFrame, within: Column) -> LockedMerge:
        """Return the merge of the rows into the table, whose rows that matter are ``within``."""
        values = {quoted(name): of(S, name) for name in self._columns}
        return (
            writer.merge(source.alias(S), matched(self._spec.keys, within), alias=T)
            .whenNotMatchedInsert(None, values)
            .of_kept_source()
        )


class LatestRows(NewestRows):
    """Of rows with one key the one with the largest sequence counts, whenever it comes; none is ever deleted."""

    def prepared(self, rows: DataFrame) -> DataFrame:
        """Return what :meth:`ChangeSpec.prepared` returns."""
        return rows

    def rewrites_for_nothing(self, rows: DataFrame, table: DataFrame) -> bool:
        """Tell whether a merge rewrites a file for a row that changes nothing, because it is not newer.

        Delta rewrites each file that has a match. Of the table keys and sequences are read, no more.
        """
        if self.sequence.lower() not in {name.lower() for name in table.columns}:
            return False
        keys = list(map(quoted, self._spec.keys))
        known = table.select(*keys, F.col(quoted(self.sequence)).alias(_KNOWN))
        near = known.join(rows.select(*keys, SEQ), list(self._spec.keys))
        return not near.where(F.col(SEQ) <= F.col(_KNOWN)).isEmpty()

    def news(self, rows: DataFrame, table: DataFrame) -> DataFrame:
        """Leave out rows of which a table has the key and a larger sequence, or the same one and the same row.

        What has the sequence of the table's row, and says something else, stays: :meth:`merge` refuses it.
        """
        there = {name.lower() for name in table.columns}
        if self.sequence.lower() not in there:
            return rows

        def is_same(field: StructField) -> Column:
            if field.name.lower() not in there:
                return of(S, field.name).isNull()
            return comparable(field, S).eqNullSafe(comparable(field, T))

        new, known = of(S, SEQ), of(T, self.sequence)
        same = all_of(is_same(field) for field in rows.schema if field.name not in (SEQ, DELETED))
        return without_known(rows, table, self._spec.keys, (new < known) | ((new == known) & same))
