"""Which of several rows with one key stays: the first that came, or the one with the largest sequence."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StructField

from writer_jobs.commit.merge import LockedMerge
from writer_jobs.delta.sql_names import quoted
from writer_jobs.merge.change_spec import ChangeSpec
from writer_jobs.merge.merge_sql import S, T, content_hash, matched, of, without_known
from writer_jobs.merge.scd1 import NewestRows
from writer_jobs.merge.table_model import OfRows
from writer_jobs.writer import LockedDeltaWriter

_CONTENT = "__sluice_content"


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
