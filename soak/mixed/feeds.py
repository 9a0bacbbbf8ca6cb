"""What the jobs of a mixed soak are fed: real flights, as rows, changes, events and a stream; and what must come of it.

Each feed has keys of its own, in the same partitions. What the table must have in the end is computed here, one message
after the other, by nothing but the rules of the docs.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from sluice.demo.flights import read_flights

#: The feed of append.py.
APPEND = "append"
#: That of upsert.py.
UPSERT = "upsert"
#: That of cdc.py.
CDC = "cdc"
#: That of stream.py.
STREAM = "stream"
#: All of them.
FEEDS = (APPEND, UPSERT, CDC, STREAM)
#: Of the table, and the values of a message.
COLUMNS = ("feed", "month", "id", "position", "at", "carrier", "delay")
# Every file brings rows of each of these partitions: all jobs meet in all of them.
_MONTHS = 3
_REPEATED, _LATE, _DELETED, _UPDATED = 0.05, 0.05, 0.1, 0.5

_TYPES = pa.schema(
    {
        "feed": pa.string(),
        "month": pa.int32(),
        "id": pa.int64(),
        "position": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "carrier": pa.string(),
        "delay": pa.int64(),
        "__SEQUENCE": pa.int64(),
    }
)

Row = tuple[str, int, int, int, str, str, int | None]
"""Values of :data:`COLUMNS`."""


@dataclass(frozen=True)
class Message:
    """A row, or that it is deleted.

    Attributes:
        row: the row.
        operation: ``c``, ``u`` or ``d``.

    """

    row: Row
    operation: str = "c"


class Feed:
    """One source: it makes files for a job, and knows what the table must have of them.

    Args:
        name: of :data:`FEEDS`.
        folder: gets the files.
        seed: of what is repeated, late, changed and deleted.
        in_order: nothing is late and nothing is repeated.

    """

    def __init__(self, name: str, folder: Path, seed: int, *, in_order: bool = False) -> None:
        self.name = name
        self.folder = folder
        self.written_at: dict[int, float] = {}
        self.files = 0
        self._random = random.Random(f"{seed} {name}")  # noqa: S311 (to be repeated, not to be secret)
        flights = list(_first_flights())
        self._random.shuffle(flights)
        self._flights = cycle(flights)
        self._position = 0
        self._in_order = in_order or name == APPEND
        self._rows: dict[tuple[int, int], Message] = {}
        self._appended: list[Row] = []
        self._held_back: list[Message] = []
        self._sent: list[Message] = []
        folder.mkdir(parents=True, exist_ok=True)

    def expected(self) -> list[Row]:
        """Return the rows that the table must have, in order."""
        newest = (message.row for message in self._rows.values() if message.operation != "d")
        return sorted([*self._appended, *newest], key=repr)

    def write(self, messages: int, *, is_last: bool = False) -> Path:
        """Write the next file, whole at once; the last one brings what was held back."""
        made = list(self._messages(messages))
        if is_last:
            made, self._held_back = [*made, *self._held_back], []
        for message in made:
            self._apply(message)
        self.files += 1
        name = f"{self.name}-{self.files:05}.{'parquet' if self.name == APPEND else 'json'}"
        hidden, path = self.folder / f".{name}", self.folder / name
        if self.name == APPEND:
            parquet.write_table(_typed(made), hidden)
        else:
            text = "".join(json.dumps(self._object(message)) + "\n" for message in made)
            hidden.write_text(text, encoding="utf-8")
        self.written_at[max(message.row[3] for message in made)] = time.time()
        hidden.rename(path)
        return path

    def _messages(self, number: int) -> Iterator[Message]:
        late, self._held_back = self._held_back, []
        yield from late
        for _ in range(number):
            message = self._next()
            if not self._in_order and self._random.random() < _LATE:
                self._held_back.append(message)
            else:
                yield message
                self._sent.append(message)
            if not self._in_order and self._random.random() < _REPEATED:
                yield self._random.choice(self._sent or [message])
        self._sent = self._sent[-number:]

    def _next(self) -> Message:
        self._position += 1
        position, known = self._position, list(self._rows)[-2000:]
        if self.name in (UPSERT, CDC) and known and self._random.random() < _UPDATED:
            month, number = self._random.choice(known)
            before = self._rows[month, number].row
            operation = "d" if self.name == CDC and self._random.random() < _DELETED else "u"
            return Message((*before[:3], position, *before[4:6], (before[6] or 0) + 1), operation)
        flight = next(self._flights)
        at = f"{flight['time_hour'].replace(' ', 'T')[:19]}Z"
        delay = None if flight["dep_delay"] in ("", "NA") else int(flight["dep_delay"])
        return Message((self.name, int(flight["month"]), position, position, at, flight["carrier"], delay))

    def _apply(self, message: Message) -> None:
        if self.name == APPEND:
            self._appended.append(message.row)
            return
        key = message.row[1], message.row[2]
        there = self._rows.get(key)
        if there is None or message.row[3] > there.row[3]:
            self._rows[key] = message

    def _object(self, message: Message) -> dict[str, Any]:
        row = dict(zip(COLUMNS, message.row, strict=True))
        if self.name != CDC:
            return row
        key = {name: row[name] for name in ("feed", "month", "id")}
        is_gone = message.operation == "d"
        source = {"connector": "flights", "position": row["position"]}
        value = {"op": message.operation, "before": key if is_gone else None, "after": None if is_gone else row}
        return {"key": key, "value": {**value, "source": source}}


@cache
def _first_flights() -> tuple[dict[str, str], ...]:
    return tuple(flight for flight in read_flights() if int(flight["month"]) <= _MONTHS)


def _typed(messages: list[Message]) -> pa.Table:
    """Return rows as the table has them, with the column in which ``cdc.py`` notes the order of its events."""
    rows = []
    for message in messages:
        row = dict(zip(COLUMNS, message.row, strict=True))
        rows.append({**row, "at": datetime.fromisoformat(message.row[4]), "__SEQUENCE": None})
    return pa.Table.from_pylist(rows, schema=_TYPES)
