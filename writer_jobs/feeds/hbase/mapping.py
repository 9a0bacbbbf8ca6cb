"""The mapping file: the Delta table's columns for the row key and the columns of an HBase table, and their types.

::

    {
      "row_key": [{"column": "country", "type": "string", "until": "|"}, {"column": "id", "type": "text:long"}],
      "columns": {"d:name": {"column": "name", "type": "string"}, "d:raw": null},
      "families": {"d": {"versions": 1}},
      "new_columns": {"type": "string"},
      "encoding": "utf-8",
      "table": "shop:customers",
      "proxy_deletes": "DeleteColumn"
    }
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.errors import MappingError
from writer_jobs.feeds.hbase.values import KEY_TYPES, ValueType

#: Encodings of bytes in JSON.
ENCODINGS = ("utf-8", "base64", "hex")
#: Types that a delete of a column can have in the events of HBase's Kafka proxy, which do not state the type.
PROXY_DELETES = ("DeleteColumn", "Delete")
_MAPPING_KEYS = {"row_key", "columns", "families", "new_columns", "encoding", "table", "proxy_deletes"}
_PART_KEYS = {"column", "type", "until", "length"}
# Delta refuses these characters in column names, unless the table has column mapping.
_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")
# A table property stores the names, separated by commas.
_FAMILY_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Target:
    """The column of the Delta table for a column of HBase, and the type of the bytes."""

    column: str
    type: ValueType


@dataclass(frozen=True)
class KeyPart(Target):
    """The column of the Delta table for a part of the row key.

    Attributes:
        until: Bytes that end the part; None for a part with a length, and for the last part.
        length: Length in bytes; None for a part with ``until``, and for a last part of any length.

    """

    until: bytes | None
    length: int | None


class HBaseMapping:
    """A mapping of an HBase table to a Delta table.

    Args:
        row_key: Parts of the row key, in order. Their columns are the table's key columns.
        columns: Targets by ``family:qualifier``; None for a column that the table does not get.
        new_type: Type of columns that are not in ``columns``, whose name is ``family_qualifier``; None for string.
        encoding: Encoding of bytes in JSON.
        table: Name of the HBase table. Events of other tables are filtered out and counted. None: all events are of one
            table.
        proxy_deletes: Type of a delete of a column in the events of HBase's Kafka proxy.
        single_version_families: Families with ``VERSIONS => 1``; see :mod:`writer_jobs.feeds.hbase.cells`.

    Raises:
        MappingError: Two parts of the row key, or columns, have the same column of the table.

    """

    def __init__(
        self,
        row_key: Iterable[KeyPart],
        columns: Mapping[str, Target | None],
        *,
        new_type: ValueType | None = None,
        encoding: str = "utf-8",
        table: str | None = None,
        proxy_deletes: str = "DeleteColumn",
        single_version_families: Iterable[str] = (),
    ) -> None:
        self.row_key = tuple(row_key)
        self.columns = dict(columns)
        self.new_type = new_type or ValueType("string")
        self.encoding = encoding
        self.table = table
        self.proxy_deletes = proxy_deletes
        self.single_version_families = tuple(sorted(single_version_families))
        #: Targets of the columns that the mapping names.
        self.targets = [target for target in columns.values() if target is not None]
        self._types = {target.column.lower(): target.type for target in self.targets}
        names = [*self.keys, *(target.column for target in self.targets)]
        if len({name.lower() for name in names}) != len(names):
            raise MappingError(f"the mapping names a column of the table twice: {', '.join(names)}")

    @classmethod
    def parsed(cls, text: str) -> HBaseMapping:
        """Parse a mapping file.

        Raises:
            MappingError: The file is malformed; the message names the place.

        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise MappingError(f"the mapping is not JSON: {error}") from error
        _check_keys("the mapping", document, _MAPPING_KEYS, {"row_key"})
        parts = document["row_key"]
        if not isinstance(parts, list) or not parts:
            raise MappingError('row_key: give a list of parts, such as [{"column": "id", "type": "string"}]')
        columns = document.get("columns", {})
        if not isinstance(columns, dict):
            raise MappingError('columns: give an object, such as {"d:name": {"column": "name", "type": "string"}}')
        families = document.get("families", {})
        if not isinstance(families, dict):
            raise MappingError('families: give an object, such as {"d": {"versions": 1}}')
        new_columns = document.get("new_columns", {"type": "string"})
        _check_keys("new_columns", new_columns, {"type"}, {"type"})
        return cls(
            [_key_part(number, part, is_last=number == len(parts)) for number, part in enumerate(parts, 1)],
            {_column_name(name): _target(name, target) for name, target in columns.items()},
            new_type=_value_type("new_columns.type", new_columns["type"]),
            encoding=_choice("encoding", document.get("encoding", "utf-8"), ENCODINGS),
            table=None if document.get("table") is None else _string("table", document["table"]),
            proxy_deletes=_choice("proxy_deletes", document.get("proxy_deletes", "DeleteColumn"), PROXY_DELETES),
            single_version_families=[_single_version_family(name, family) for name, family in families.items()],
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """The table's key columns."""
        return tuple(part.column for part in self.row_key)

    @property
    def tables(self) -> tuple[str, ...]:
        """The HBase table; empty if the mapping does not name it."""
        return () if self.table is None else (self.table,)

    def type_of(self, column: str) -> ValueType:
        """Return the type of the bytes of a column of the table."""
        return self._types.get(column.lower(), self.new_type)

    def key_columns(self, row: Column) -> dict[str, Column]:
        """Return the table's key columns of a row key; null for a part that does not fit its type."""
        hex_parts = {}
        # In hexadecimal one byte is two characters, and no byte is special in a regular expression.
        remainder = F.hex(row)
        for part in self.row_key:
            if part.length is not None:
                size = 2 * part.length
                hex_parts[part.column] = F.when(F.length(remainder) >= size, F.left(remainder, F.lit(size)))
                remainder = F.substr(remainder, F.lit(size + 1))
            elif part.until is not None:
                pattern = f"^((?:..)*?){part.until.hex().upper()}((?:..)*)$"
                has_part = F.regexp_like(remainder, F.lit(pattern))
                hex_parts[part.column] = F.when(has_part, F.regexp_extract(remainder, pattern, 1))
                remainder = F.regexp_extract(remainder, pattern, 2)
            else:
                hex_parts[part.column] = remainder
        last_part = self.row_key[-1]
        if last_part.length is not None:
            hex_parts[last_part.column] = F.when(remainder == "", hex_parts[last_part.column])
        return {part.column: part.type.decode_key(F.unhex(hex_parts[part.column])) for part in self.row_key}

    def column_of(self, family: Column, qualifier: Column) -> Column:
        """Return the name of the table's column for a cell; null if the table does not get the cell."""
        name = F.concat(family, F.lit(":"), qualifier)
        new_name = F.when(qualifier == "", family).otherwise(F.concat_ws("_", family, qualifier))
        column = F.regexp_replace(new_name, _NOT_IN_NAMES.pattern, "_")
        if not self.columns:
            return column
        targets = [
            literal
            for key, target in self.columns.items()
            for literal in (F.lit(key), F.lit(target and target.column).cast("string"))
        ]
        return F.when(name.isin(*self.columns), F.create_map(*targets)[name]).otherwise(column)

    def is_undecodable(self, column: Column, value: Column) -> Column:
        """Return whether a value cannot be decoded for its column of the table."""
        is_undecodable = F.expr("false")
        for target in self.targets:
            is_undecodable = is_undecodable | ((column == target.column) & target.type.decode(value).isNull())
        target_columns = [target.column for target in self.targets]
        is_unnamed = ~column.isin(*target_columns) if target_columns else F.expr("true")
        return F.coalesce(is_undecodable | (is_unnamed & self.new_type.decode(value).isNull()), F.expr("false"))


def _check_keys(place: str, document: Any, allowed_keys: set[str], required_keys: set[str]) -> None:
    if not isinstance(document, dict):
        raise MappingError(f"{place}: give an object with {', '.join(sorted(allowed_keys))}")
    if unknown_keys := sorted(document.keys() - allowed_keys):
        raise MappingError(
            f"{place} has unknown fields: {', '.join(unknown_keys)}; it can have {', '.join(sorted(allowed_keys))}"
        )
    if missing_keys := sorted(required_keys - document.keys()):
        raise MappingError(f"{place} lacks {', '.join(missing_keys)}")


def _key_part(number: int, document: Any, *, is_last: bool) -> KeyPart:
    place = f"part {number} of row_key"
    _check_keys(place, document, _PART_KEYS, {"column", "type"})
    until, length = document.get("until"), document.get("length")
    if until is not None and length is not None:
        raise MappingError(f"{place} has until and length: give one of them")
    if until is None and length is None and not is_last:
        raise MappingError(f"{place} has no end: give until or length")
    if is_last and until is not None:
        raise MappingError(f"{place} is the last one and ends with the key: leave out until")
    if until is not None and not _string(f"{place}, until", until):
        raise MappingError(f"{place}: until is empty")
    if length is not None and (not isinstance(length, int) or length < 1):
        raise MappingError(f"{place}: length is a number of bytes, 1 or more")
    return KeyPart(
        _string(f"{place}, column", document["column"]),
        ValueType(_choice(f"{place}, type", document["type"], KEY_TYPES)),
        None if until is None else until.encode(),
        length,
    )


def _target(name: str, document: Any) -> Target | None:
    if document is None:
        return None
    _check_keys(f"column {name}", document, {"column", "type"}, {"type"})
    column = _string(f"column {name}", document.get("column", name.replace(":", "_", 1)))
    return Target(column, _value_type(f"column {name}, type", document["type"]))


def _value_type(place: str, document: Any) -> ValueType:
    name = _string(place, document)
    try:
        return ValueType(name)
    except MappingError as error:
        raise MappingError(f"{place}: {error}") from None


def _column_name(name: str) -> str:
    if ":" not in name:
        raise MappingError(f"columns: {name!r} is not family:qualifier")
    return name


def _single_version_family(name: str, document: Any) -> str:
    if not _FAMILY_NAME.fullmatch(name):
        raise MappingError(f"families: {name!r} is not a name of letters, digits, '_', '.' and '-'")
    _check_keys(f"family {name}", document, {"versions"}, {"versions"})
    # JSON's true and 1.0 are equal to 1.
    if repr(document["versions"]) != "1":
        raise MappingError(f"family {name}, versions: give 1, or leave out the family to keep all versions")
    return name


def _string(place: str, document: Any) -> str:
    if not isinstance(document, str):
        raise MappingError(f"{place} must be a string")
    return document


def _choice(place: str, document: Any, choices: tuple[str, ...]) -> str:
    if document not in choices:
        raise MappingError(f"{place}: choose one of {', '.join(choices)}")
    return str(document)
