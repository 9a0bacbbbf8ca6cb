"""Exit code 8 of ``cdc.py`` and ``stream.py``: the input is not empty, and nothing of it is applied."""

from __future__ import annotations

from writer_jobs.errors import NothingAppliedError
from writer_jobs.merge.table_feed import feed_of
from writer_jobs.writer import LockedDeltaWriter


class AppliedTotals:
    """Whether a run applied changes, and its numbers of dead letters and filtered events.

    Args:
        writer: Writer of the table.
        source_tables: Names of the source tables whose events are applied; empty: all.

    """

    def __init__(self, writer: LockedDeltaWriter, source_tables: tuple[str, ...] = ()) -> None:
        self._writer = writer
        self._source_tables = source_tables
        self._is_applied = False
        self._dead = self._filtered = 0
        self._dead_reason: str | None = None

    def add(self, dead_letters: int, dead_reason: str | None = None, filtered: int = 0, *, is_applied: bool) -> None:
        """Add a batch.

        Args:
            dead_letters: Number of dead letters.
            dead_reason: The most frequent reason.
            filtered: Number of events of other source tables.
            is_applied: Whether rows or changes were applied by this run or by an earlier one.

        """
        self._is_applied |= is_applied
        self._dead += dead_letters
        self._dead_reason = dead_reason or self._dead_reason
        self._filtered += filtered

    def refuse_nothing_applied(self) -> None:
        """Make sure that the run applied something, unless its batches had nothing to apply.

        A run with events of other source tables only is correct if the table is bound to the named source tables, which
        then had no events. Otherwise the name may be misspelled.

        Raises:
            NothingAppliedError: Each message was a dead letter, or of a source table that is not the table's.

        """
        if self._is_applied or not (self._dead or (self._filtered and not self._is_bound())):
            return
        reasons = []
        if self._dead:
            frequent = "" if self._dead_reason is None else f", most frequent reason: {self._dead_reason}"
            reasons.append(f"{self._dead} messages are in {self._writer.table}_dead_letters{frequent}")
        if self._filtered:
            names = ", ".join(self._source_tables)
            reasons.append(f"{self._filtered} events are of other source tables than {names}")
        raise NothingAppliedError(table=self._writer.table, reason="; ".join(reasons))

    def _is_bound(self) -> bool:
        """Return whether the table property ``sluice.feed`` has the named source tables."""
        feed = feed_of(self._writer.log.state())
        return feed is not None and feed.has_tables(self._source_tables)
