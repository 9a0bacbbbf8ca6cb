"""The mapping file: what of an HBase table becomes which column of the Delta table, and of which type.

::

    {
      "row_key": [{"column": "country", "type": "string", "until": "|"}, {"column": "id", "type": "text:long"}],
      "columns": {"d:name": {"column": "name", "type": "string"}, "d:raw": null},
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

#: How bytes are written in JSON.
ENCODINGS = ("utf-8", "base64", "hex")
#: What a delete of one column can be in the events of HBase's Kafka proxy, which do not say it.
PROXY_DELETES = ("DeleteColumn", "Delete")
_KEYS = {"row_key", "columns", "new_columns", "encoding", "table", "proxy_deletes"}
_PART_KEYS = {"column", "type", "until", "length"}
# Delta has no such characters in names, unless a table maps its columns.
_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")


@dataclass(frozen=True)
class KeyPart:
    """One column of the row key.

    Attributes:
        column: of the Delta table.
        type: of its bytes.
        until: bytes that end it; None: it ends by its length, or with the key.
        length: in bytes; None: see ``until``.

    """

    column: str
    type: ValueType
    until: bytes | None
    length: int | None


@dataclass(frozen=True)
class Target:
    """What a column of HBase becomes.

    Attributes:
        column: of the Delta table.
        type: of the bytes.

    """

    column: str
    type: ValueType


class HBaseMapping:
    """What a mapping file says.

    Args:
        row_key: parts of the row key, in order; the columns are the table's keys.
        columns: targets by ``family:qualifier``; None: the table does not get that one.
        new_type: of columns that are not named; they are called ``family_qualifier``.
        encoding: of bytes in JSON.
        table: HBase's; events of other tables are left out and counted. None: there are no others.
        proxy_deletes: what a delete of a column in the proxy's events is.

    Raises:
        MappingError: two things become one column.

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
    ) -> None:
        self.row_key = tuple(row_key)
        self.columns = dict(columns)
        self.new_type = new_type or ValueType("string")
        self.encoding = encoding
        self.table = table
        self.proxy_deletes = proxy_deletes
        #: Those columns that the table gets.
        self.targets = [each for each in columns.values() if each is not None]
        self._types = {each.column.lower(): each.type for each in self.targets}
        names = [*self.keys, *(each.column for each in self.targets)]
        if len({name.lower() for name in names}) != len(names):
            raise MappingError(f"the mapping names a column of the table twice: {', '.join(names)}")

    @classmethod
    def parsed(cls, text: str) -> HBaseMapping:
        """Read a mapping file.

        Raises:
            MappingError: it is malformed; the message says where.

        """
        try:
            found = json.loads(text)
        except ValueError as error:
            raise MappingError(f"the mapping is no JSON: {error}") from error
        _check_keys("the mapping", found, _KEYS, {"row_key"})
        parts = found["row_key"]
        if not isinstance(parts, list) or not parts:
            raise MappingError('row_key: give a list of parts, such as [{"column": "id", "type": "string"}]')
        columns = found.get("columns", {})
        if not isinstance(columns, dict):
            raise MappingError('columns: give an object, such as {"d:name": {"column": "name", "type": "string"}}')
        new = found.get("new_columns", {"type": "string"})
        _check_keys("new_columns", new, {"type"}, {"type"})
        return cls(
            [_part(number, each, last=number == len(parts)) for number, each in enumerate(parts, 1)],
            {_named(name): _target(name, each) for name, each in columns.items()},
            new_type=ValueType(_text("new_columns.type", new["type"])),
            encoding=_one_of("encoding", found.get("encoding", "utf-8"), ENCODINGS),
            table=None if found.get("table") is None else _text("table", found["table"]),
            proxy_deletes=_one_of("proxy_deletes", found.get("proxy_deletes", "DeleteColumn"), PROXY_DELETES),
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """The table's key columns."""
        return tuple(part.column for part in self.row_key)

    @property
    def tables(self) -> tuple[str, ...]:
        """HBase's table; empty if the mapping does not name it."""
        return () if self.table is None else (self.table,)

    def type_of(self, column: str) -> ValueType:
        """Return how the bytes of a column of the table are read."""
        return self._types.get(column.lower(), self.new_type)

    def key_columns(self, row: Column) -> dict[str, Column]:
        """Return the table's key columns of a row key; null where its bytes do not fit."""
        found = {}
        # In hexadecimal, where one byte is two characters and no byte is special.
        rest = F.hex(row)
        for part in self.row_key:
            if part.length is not None:
                size = 2 * part.length
                found[part.column] = F.when(F.length(rest) >= size, F.left(rest, F.lit(size)))
                rest = F.substr(rest, F.lit(size + 1))
            elif part.until is not None:
                pattern = f"^((?:..)*?){part.until.hex().upper()}((?:..)*)$"
                found[part.column] = F.when(F.regexp_like(rest, F.lit(pattern)), F.regexp_extract(rest, pattern, 1))
                rest = F.regexp_extract(rest, pattern, 2)
            else:
                found[part.column] = rest
        last = self.row_key[-1]
        if last.length is not None:
            found[last.column] = F.when(rest == "", found[last.column])
        return {part.column: part.type.decoded_key(F.unhex(found[part.column])) for part in self.row_key}

    def column_of(self, family: Column, qualifier: Column) -> Column:
        """Return the table's column of a cell; null if the table does not get it."""
        name = F.concat(family, F.lit(":"), qualifier)
        new = F.when(qualifier == "", family).otherwise(F.concat_ws("_", family, qualifier))
        column = F.regexp_replace(new, _NOT_IN_NAMES.pattern, "_")
        if not self.columns:
            return column
        known = [
            part
            for key, each in self.columns.items()
            for part in (F.lit(key), F.lit(each and each.column).cast("string"))
        ]
        return F.when(name.isin(*self.columns), F.create_map(*known)[name]).otherwise(column)

    def undecodable(self, column: Column, value: Column) -> Column:
        """Tell whether a value cannot be decoded for its column of the table."""
        condition = F.expr("false")
        for each in self.targets:
            condition = condition | ((column == each.column) & each.type.decoded(value).isNull())
        named = [each.column for each in self.targets]
        unnamed = ~column.isin(*named) if named else F.expr("true")
        return F.coalesce(condition | (unnamed & self.new_type.decoded(value).isNull()), F.expr("false"))


def _check_keys(where: str, found: Any, known: set[str], needed: set[str]) -> None:
    if not isinstance(found, dict):
        raise MappingError(f"{where}: give an object with {', '.join(sorted(known))}")
    if unknown := sorted(found.keys() - known):
        raise MappingError(f"{where} has no {', '.join(unknown)}; it can have {', '.join(sorted(known))}")
    if missing := sorted(needed - found.keys()):
        raise MappingError(f"{where} lacks {', '.join(missing)}")


def _part(number: int, found: Any, *, last: bool) -> KeyPart:
    where = f"part {number} of row_key"
    _check_keys(where, found, _PART_KEYS, {"column", "type"})
    until, length = found.get("until"), found.get("length")
    if until is not None and length is not None:
        raise MappingError(f"{where} has until and length: give one")
    if until is None and length is None and not last:
        raise MappingError(f"{where} does not say where it ends: give until or length")
    if last and until is not None:
        raise MappingError(f"{where} is the last one and ends with the key: leave out until")
    if until is not None and not _text(f"{where}, until", until):
        raise MappingError(f"{where}: until is empty")
    if length is not None and (not isinstance(length, int) or length < 1):
        raise MappingError(f"{where}: length is a number of bytes, 1 or more")
    return KeyPart(
        _text(f"{where}, column", found["column"]),
        ValueType(_one_of(f"{where}, type", found["type"], KEY_TYPES)),
        None if until is None else until.encode(),
        length,
    )


def _target(name: str, found: Any) -> Target | None:
    if found is None:
        return None
    _check_keys(f"column {name}", found, {"column", "type"}, {"type"})
    column = _text(f"column {name}", found.get("column", name.replace(":", "_", 1)))
    return Target(column, ValueType(_text(f"column {name}, type", found["type"])))


def _named(name: str) -> str:
    if ":" not in name:
        raise MappingError(f"columns: {name!r} is no family:qualifier")
    return name


def _text(where: str, found: Any) -> str:
    if not isinstance(found, str):
        raise MappingError(f"{where}: give a text")
    return found


def _one_of(where: str, found: Any, choices: tuple[str, ...]) -> str:
    if found not in choices:
        raise MappingError(f"{where}: choose one of {', '.join(choices)}")
    return str(found)
