"""The models of rows with one key: the first row stays, or the row with the largest sequence."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.commit.merge import LockedMerge
from writer_jobs.delta.sql_names import quoted
from writer_jobs.merge.key_bounds import KeyBounds
from writer_jobs.merge.merge_sql import S, T, content_hash, match_on, qualified, without_matches
from writer_jobs.merge.scd1 import NewestRows
from writer_jobs.merge.table_model import WholeRows
from writer_jobs.writer import LockedDeltaWriter

_CONTENT = "__sluice_content"


class FirstRows(WholeRows):
    """The first row of each key. Later rows with the key are repetitions, even if their values differ.

    Of several rows with one key in a batch, the one with the largest content hash stays, so a repeated batch keeps the
    same row.
    """

    tie_breaker = _CONTENT

    def prepare(self, rows: DataFrame) -> DataFrame:
        """Add the column that chooses one of several rows to the rows of :meth:`ChangeSpec.prepare`."""
        return rows.withColumn(_CONTENT, content_hash(rows, self._columns))

    def needs_comparison(self, rows: DataFrame, table: DataFrame, sequences: KeyBounds) -> bool:  # noqa: ARG002 (as NewestRows)
        """Return false: a merge that only inserts rewrites no file."""
        return False

    def without_repetitions(self, rows: DataFrame, table: DataFrame) -> DataFrame:
        """Drop rows whose keys are in the table."""
        return without_matches(rows, table, self._spec.keys, F.expr("true"))

    def merge(self, writer: LockedDeltaWriter, source: DataFrame, within: Column) -> LockedMerge:
        """Return the merge of ``source`` into the table. All matching rows of the table satisfy ``within``."""
        values = {quoted(name): qualified(S, name) for name in self._columns}
        return (
            writer.merge(source.alias(S), match_on(self._spec.keys, within), alias=T)
            .whenNotMatchedInsert(None, values)
            .with_repeatable_source()
        )


class LatestRows(NewestRows):
    """The row of each key with the largest sequence. The order of arrival does not count, and no row is deleted."""

    def prepare(self, rows: DataFrame) -> DataFrame:
        """Return the rows of :meth:`ChangeSpec.prepare` unchanged."""
        return rows
