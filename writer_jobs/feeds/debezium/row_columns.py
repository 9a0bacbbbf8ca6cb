"""The columns of a batch of change events: their types, and the expressions that decode them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import Column, Row
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StringType, StructField, StructType

from writer_jobs.delta.snapshot import TableState
from writer_jobs.errors import FeedError
from writer_jobs.feeds.debezium.decoders import common_type, is_held_by_string
from writer_jobs.feeds.debezium.json_values import Decoder
from writer_jobs.feeds.debezium.message_schemas import SchemaGroup, message_keys

#: The decoders of one column, each with the numbers of the groups that use it.
ColumnDecoders = dict[Decoder, list[int]]


class RowColumns:
    """The columns of a batch's rows: those of all schemas, with types that hold the values of all messages.

    Args:
        summaries: Rows of :func:`~writer_jobs.feeds.debezium.message_schemas.summarize_schemas` with rows.
        table: State of the target table; None if it does not exist.
        keys: Key columns; None for the fields of the messages' keys.

    Attributes:
        groups: The groups of messages by schema.
        keys: Key columns in the messages' spelling.
        types: Types of the columns by name.
        schema: The columns as a struct.

    Raises:
        FeedError: The messages have no keys or several; column names differ by case only; no type holds all values of a
            column.

    """

    def __init__(self, summaries: Sequence[Row], table: TableState | None, keys: Sequence[str] | None) -> None:
        self._table_types = {} if table is None else {field.name.lower(): field.dataType for field in table.schema}
        # Messages with schemas come first: their types apply to messages without schemas.
        summaries = sorted(summaries, key=lambda summary: (summary["schema"] is None, summary["key_schema"] is None))
        self.keys = message_keys(summaries) if keys is None else tuple(keys)
        self.groups: list[SchemaGroup] = []
        self.types: dict[str, DataType] = {}
        self._decoders: dict[str, ColumnDecoders] = {}
        for summary in summaries:
            known_types = {name.lower(): data_type for name, data_type in self.types.items()} | self._table_types
            self.groups.append(SchemaGroup.of(summary, known_types, self.keys))
            self._merge_groups()
        spelling = {name.lower(): name for group in self.groups for name in (*group.keys, *group.columns)}
        self.keys = tuple(spelling.get(name.lower(), name) for name in self.keys)
        self._merge_groups()
        self.schema = StructType([StructField(name, data_type) for name, data_type in self.types.items()])

    def group_number(self) -> Column:
        """Return the number of a message's group, from its columns ``schema`` and ``key_schema``."""
        chosen = F.lit(None).cast("int")
        for number, group in enumerate(self.groups):
            is_same = F.col("schema").eqNullSafe(group.schema) & F.col("key_schema").eqNullSafe(group.key_schema)
            chosen = F.when(is_same, number).otherwise(chosen)
        return chosen

    def text(self, name: str) -> Column:
        """Return a column's value in a message as text: for a delete the key, else the row after the change."""
        is_delete, payload = F.col("op") == "d", F.col("payload")

        def extract(decoder: Decoder) -> Column:
            after = decoder.extract(payload, "after", name)
            if name not in self.keys:
                return F.when(~is_delete, after)
            key = decoder.extract(F.col("key_payload"), name)
            text_before = decoder.extract(payload, "before", name)
            return F.when(is_delete, F.coalesce(key, text_before)).otherwise(F.coalesce(after, key))

        return self._for_group(name, extract)

    def text_before(self, name: str) -> Column:
        """Return a column's value before the change as text."""
        return self._for_group(name, lambda decoder: decoder.extract(F.col("payload"), "before", name))

    def decoded(self, name: str, text: Column) -> Column:
        """Decode a column's text; null if it does not fit the column's type."""
        return self._for_group(name, lambda decoder: decoder.decode_text(text).cast(self.types[name]))

    def _for_group(self, name: str, expression: Callable[[Decoder], Column]) -> Column:
        """Return an expression for the decoder that a message's group uses for a column."""
        decoders = self._decoders[name]
        if len(decoders) == 1:
            return expression(next(iter(decoders)))
        cases = [(F.col("group").isin(*groups), expression(decoder)) for decoder, groups in decoders.items()]
        return reduce(lambda chosen, case: chosen.when(*case), cases[1:], F.when(*cases[0]))

    def _merge_groups(self) -> None:
        """Compute the columns of all groups, their decoders and their types."""
        columns: dict[str, ColumnDecoders] = {}
        for number, group in enumerate(self.groups):
            row = {**{name: group.keys[name] for name in self.keys if name in group.keys}, **group.columns}
            for name, decoder in row.items():
                column_decoder = decoder.for_column(self._table_types.get(name.lower()))
                columns.setdefault(name, {}).setdefault(column_decoder, []).append(number)
        lower_names = [name.lower() for name in columns]
        if duplicates := sorted({name for name in columns if lower_names.count(name.lower()) > 1}):
            raise FeedError(f"the rows have columns whose names differ by case alone: {', '.join(duplicates)}")
        self._decoders = {name: self._with_all_fields(name, decoders) for name, decoders in columns.items()}
        self.types = {name: self._common_type(name, list(decoders)) for name, decoders in self._decoders.items()}

    def _with_all_fields(self, name: str, decoders: ColumnDecoders) -> ColumnDecoders:
        """Add to each decoder of a column the nested fields of the others and of the table's column."""
        data_type = self._table_types.get(name.lower())
        for decoder in decoders:
            data_type = decoder.with_fields(data_type).type
        complete_decoders: ColumnDecoders = {}
        for decoder, groups in decoders.items():
            complete_decoders.setdefault(decoder.with_fields(data_type), []).extend(groups)
        return complete_decoders

    def _common_type(self, name: str, decoders: list[Decoder]) -> DataType:
        data_types = [decoder.type for decoder in decoders]
        column = self._table_types.get(name.lower())
        if (common := common_type(data_types, column)) is not None:
            return common
        several = " and ".join(sorted({data_type.simpleString() for data_type in data_types}))
        if isinstance(column, StringType):
            raise FeedError(
                f"the table's column {name} is a string, which does not hold {several} in every time zone: feed a new "
                "table"
            )
        advice = "make the table's column a string" if is_held_by_string(data_types) else "feed a new table"
        raise FeedError(
            f"the type of the column {name} has changed at the source, and no type holds both {several}: apply the "
            f"events before the change alone, or {advice}"
        )
