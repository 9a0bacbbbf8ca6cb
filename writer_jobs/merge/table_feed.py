"""The feed of a table: the table property ``sluice.feed``, which every run that changes the table has to match.

Two feeds of one table must agree on the keys and on the order of a row's versions. Otherwise an older change overwrites
a newer one. The property is a JSON object. The first feed writes it under the lock on the whole table. A feed that does
not match is refused before it changes anything.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from writer_jobs.delta.snapshot import FEED_PROPERTY, TableState
from writer_jobs.delta.sql_names import parsed_expression, property_list
from writer_jobs.errors import ChangesError
from writer_jobs.merge.change_spec import END, SEQUENCE, START

#: Value of the property that allows every feed, for a table with several feeds that change different rows.
UNBOUND = "off"
_LIST_FIELDS = ("keys", "source_tables", "source_columns", "single_version_families")
_LABELS = {
    "model": "model",
    "keys": "keys",
    "scd_type": "SCD type",
    "sequence_by": "sequence",
    "sequence_column": "sequence column",
    "event_time": "event time",
    "source_tables": "source tables",
    "single_version_families": "families with one version",
}
_HISTORY = 2  # SCD type with history


@dataclass(frozen=True, kw_only=True)
class TableFeed:
    """The feed of a table. A field that does not apply to the model is None, and is not in the property.

    Attributes:
        model: ``changes`` (:func:`writer_jobs.apply_changes`), ``rows`` (:func:`writer_jobs.apply_rows`) or ``cells``
            (:func:`writer_jobs.feeds.hbase.apply.apply_cells`).
        keys: Columns that together identify a row, in any order.
        scd_type: 1 or 2.
        sequence_by: SQL expression of the sequence, or a name of the order.
        sequence_column: Column of the table with a row's sequence.
        event_time: Column with the event time.
        source_tables: Tables whose changes the table gets, such as ``db.schema.table``. A name without database and
            schema is replaced by the full name when events have it.
        source_columns: Columns that the changes have or once had. It grows with them, and is not compared.
        column_sequences: Column of the table with the sequences of columns, since a change did not contain all columns.
            Releases that cannot update this column refuse a property with this field.
        truncated_at: Sequence of the last truncate of the source table; see :mod:`writer_jobs.merge.truncate`.
        single_version_families: Families of HBase that keep one version of a column; None: there are none. Earlier
            releases refuse a property with this field.

    """

    model: str
    keys: Sequence[str]
    scd_type: int | None = None
    sequence_by: str | None = None
    sequence_column: str | None = None
    event_time: str | None = None
    source_tables: tuple[str, ...] | None = None
    source_columns: tuple[str, ...] | None = None
    column_sequences: str | None = None
    truncated_at: str | None = None
    single_version_families: tuple[str, ...] | None = None

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Parse the value of the property.

        Raises:
            ValueError: It is not a JSON object with these fields.

        """
        values: dict[str, Any] = json.loads(text)
        names = [field.name for field in fields(cls)]
        if not isinstance(values, dict) or not {"model", "keys"} <= values.keys() <= set(names):
            raise ValueError(f"expected a JSON object with model, keys and no other fields than {', '.join(names)}")
        for name in _LIST_FIELDS:
            if name in values:
                if not isinstance(values[name], list):
                    raise ValueError(f"{name} must be a list")
                values[name] = tuple(map(str, values[name]))
        return cls(**values)

    def has_tables(self, tables: Collection[str]) -> bool:
        """Return whether the feed has exactly these source tables; a name may lack its database and schema."""
        stored_tables = self.source_tables or ()
        if self.model == "cells":
            # The name of an HBase table may contain dots and has no shorter form.
            return set(stored_tables) == set(tables)

        def are_in(names: Collection[str], table_names: Collection[str]) -> bool:
            return all(any(has_name(name, table) or has_name(table, name) for table in table_names) for name in names)

        return are_in(stored_tables, tables) and are_in(tables, stored_tables)

    @property
    def text(self) -> str:
        """The value of the property."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        # The value is an SQL literal in ALTER TABLE: escape its quotes and Spark's ${variables}.
        return json.dumps(values, sort_keys=True).replace("'", r"\u0027").replace("$", r"\u0024")


class FeedBinding:
    """Binds a table to one feed.

    ``table`` is the canonical URI of the table, for error messages. The session parses SQL expressions.
    """

    def __init__(self, spark: SparkSession, table: str, feed: TableFeed) -> None:
        self._spark = spark
        self._table = table
        self._feed = feed

    def refuse_other(self, state: TableState) -> None:
        """Make sure that the table is not bound to another feed than that of this run.

        An earlier release or another program creates tables without the property. Only their columns are compared.

        Raises:
            ChangesError: The table is bound to another feed, or its columns show another one.

        """
        stored_feed = self._read_feed(state.feed)
        if stored_feed is None:
            self._refuse_other_history(state.schema)
            if state.feed is None:
                self._refuse_other_sequence(state.schema)
        elif differences := list(self._differences(stored_feed)):
            raise self._misfit(f"the table is bound to another feed: {'; '.join(differences)}")
        elif self._feed.scd_type == _HISTORY and not _has_history(state.schema):
            raise self._misfit(f"the table no longer has the columns {START} and {END}")

    def clauses(self, state: TableState) -> list[str]:
        """Return the clause of ``ALTER TABLE name`` that writes the property; none if the table has it.

        Raises:
            ChangesError: See :meth:`refuse_other`.

        """
        self.refuse_other(state)
        stored_feed, feed = self._read_feed(state.feed), self._feed
        if state.feed is not None:
            if stored_feed is None:
                return []
            feed = replace(
                stored_feed,
                source_tables=_full_names(stored_feed.source_tables, feed.source_tables),
                source_columns=_all_columns(stored_feed.source_columns, feed.source_columns),
                column_sequences=stored_feed.column_sequences or feed.column_sequences,
            )
            if feed == stored_feed:
                return []
        return [f"SET TBLPROPERTIES ({property_list({FEED_PROPERTY: feed.text})})"]

    def _read_feed(self, text: str | None) -> TableFeed | None:
        """Return the feed in the property; None if there is no property, or it allows every feed."""
        if text is None or text.strip().lower() == UNBOUND:
            return None
        try:
            return TableFeed.parsed(text)
        except ValueError as error:
            raise self._misfit(f"the table property sluice.feed cannot be read ({error})") from error

    def _differences(self, stored_feed: TableFeed) -> Iterator[str]:
        for name, label in _LABELS.items():
            if not self._is_same(name, stored_feed):
                table_text, run_text = _text(getattr(stored_feed, name)), _text(getattr(self._feed, name))
                yield f"{label}: {table_text} in the table, {run_text} in this run"

    def _is_same(self, name: str, stored_feed: TableFeed) -> bool:
        table_value, run_value = getattr(stored_feed, name), getattr(self._feed, name)
        if table_value == run_value:
            return True
        if name == "keys":
            return {key.lower() for key in table_value} == {key.lower() for key in run_value}
        if name == "source_tables":
            # None: the table has none yet, or this run does not know its source tables.
            return None in (table_value, run_value) or stored_feed.has_tables(run_value)
        if name == "sequence_by" and None not in (table_value, run_value):
            return self._normalized_sql(table_value) == self._normalized_sql(run_value)
        return name not in ("model", "single_version_families") and str(table_value).lower() == str(run_value).lower()

    def _normalized_sql(self, sql: str) -> str:
        """Return an expression as Spark writes it: blanks, quotes of names and (without literals) case do not count."""
        if (expression := parsed_expression(self._spark, sql)) is None:
            return sql
        text = str(expression.sql())
        return text if "'" in sql or '"' in sql else text.lower()

    def _refuse_other_history(self, schema: StructType) -> None:
        """Refuse a table whose columns show another SCD type."""
        has_history, feed = _has_history(schema), self._feed
        if has_history and feed.scd_type != _HISTORY:
            raise self._misfit(f"the table keeps history: it has the columns {START} and {END} of SCD type 2")
        if not has_history and feed.scd_type == _HISTORY:
            raise self._misfit(f"the table keeps no history: it lacks the columns {START} and {END} of SCD type 2")

    def _refuse_other_sequence(self, schema: StructType) -> None:
        """Refuse a table whose columns show another sequence column."""
        feed = self._feed
        if feed.sequence_column is None or feed.scd_type == _HISTORY:
            return
        columns = {name.lower(): name for name in schema.names}
        column = columns.get(SEQUENCE.lower(), columns.get((feed.sequence_by or "").strip("`").lower()))
        if column is not None and column.lower() != feed.sequence_column.lower():
            raise self._misfit(f"sequence column: {column} in the table, {feed.sequence_column} in this run")

    def _misfit(self, reason: str) -> ChangesError:
        return ChangesError(
            table=self._table,
            reason=f"{reason}; use the table's values, feed another table, or change the table property "
            f"{FEED_PROPERTY} under the lock (docs/how-to/upsert.md)",
        )


def has_name(table: str, name: str) -> bool:
    """Return whether a source table has a name, with or without its database and schema."""
    return table == name or table.endswith(f".{name}")


def feed_of(state: TableState | None) -> TableFeed | None:
    """Return the feed of a table; None if it is bound to none, or the property cannot be read."""
    with suppress(ValueError):
        if state is not None and state.feed is not None:
            return TableFeed.parsed(state.feed)
    return None


def recorded_columns(state: TableState | None) -> frozenset[str]:
    """Return the columns that earlier changes of a feed had, in lower case; empty if they are not recorded."""
    feed = feed_of(state)
    return frozenset(name.lower() for name in (feed.source_columns if feed else None) or ())


def _full_names(stored_names: tuple[str, ...] | None, run_names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the longest known names of the source tables; None: there are no names."""
    names = {*(stored_names or ()), *(run_names or ())}
    full_names = {name for name in names if not any(name != table and has_name(table, name) for table in names)}
    return tuple(sorted(full_names)) or None


def _all_columns(stored_names: tuple[str, ...] | None, run_names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the stored columns, followed by the new columns of this run; None: there are no columns."""
    columns = {name.lower() for name in stored_names or ()}
    new_names = sorted(name for name in run_names or () if name.lower() not in columns)
    return (*(stored_names or ()), *new_names) if new_names else stored_names


def _has_history(schema: StructType) -> bool:
    return {START.lower(), END.lower()} <= {name.lower() for name in schema.names}


def _text(value: Any) -> str:
    return "not set" if value is None else ", ".join(value) if isinstance(value, tuple) else str(value)
