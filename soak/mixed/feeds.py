"""The feeds of a mixed soak's jobs: real flights as rows, changes, events and a stream, and the expected rows.

The keys of the feeds are disjoint, but their rows are in the same partitions. This module computes the expected rows
without the product: one message after the other, by the documented rules.
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
#: The feed of upsert.py.
UPSERT = "upsert"
#: The feed of cdc.py.
CDC = "cdc"
#: The feed of stream.py.
STREAM = "stream"
#: All feeds.
FEEDS = (APPEND, UPSERT, CDC, STREAM)
#: Columns of the table and of each message.
COLUMNS = ("feed", "month", "id", "position", "at", "carrier", "delay")
# Each feed has flights of the first months only, so that all jobs write to the same few partitions.
_MONTHS = 3
_REPEATED_SHARE, _LATE_SHARE, _DELETED_SHARE, _UPDATED_SHARE = 0.05, 0.05, 0.1, 0.5

_SCHEMA = pa.schema(
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
"""A row: the values of :data:`COLUMNS`."""


@dataclass(frozen=True)
class Message:
    """A change of a row.

    Attributes:
        row: The row; for a delete, only its key and position matter.
        operation: ``c`` (create), ``u`` (update) or ``d`` (delete).

    """

    row: Row
    operation: str = "c"


class Feed:
    """A source that writes files for a job, and computes the rows that the table must have.

    Args:
        name: One of :data:`FEEDS`.
        folder: Folder for the files.
        seed: Seed that chooses the repeated, late, changed and deleted messages.
        in_order: Whether no message is late or repeated.

    Attributes:
        written_at: Unix time of each file, by the greatest position of its messages.

    """

    def __init__(self, name: str, folder: Path, seed: int, *, in_order: bool = False) -> None:
        self.name = name
        self.folder = folder
        self.written_at: dict[int, float] = {}
        self.files = 0
        self._random = random.Random(f"{seed} {name}")  # noqa: S311 (a repeatable choice, no secret)
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

    def expected_rows(self) -> list[Row]:
        """Return the rows that the table must have, sorted by their text."""
        newest_rows = (message.row for message in self._rows.values() if message.operation != "d")
        return sorted([*self._appended, *newest_rows], key=repr)

    def write(self, messages: int, *, is_last: bool = False) -> Path:
        """Write the next file atomically and return its path. If ``is_last``, hold no message back."""
        batch = list(self._messages(messages))
        if is_last:
            batch, self._held_back = [*batch, *self._held_back], []
        for message in batch:
            self._apply(message)
        self.files += 1
        name = f"{self.name}-{self.files:05}.{'parquet' if self.name == APPEND else 'json'}"
        hidden_path, path = self.folder / f".{name}", self.folder / name
        if self.name == APPEND:
            parquet.write_table(_to_arrow(batch), hidden_path)
        else:
            text = "".join(json.dumps(self._json_object(message)) + "\n" for message in batch)
            hidden_path.write_text(text, encoding="utf-8")
        self.written_at[max(message.row[3] for message in batch)] = time.time()
        hidden_path.rename(path)
        return path

    def _messages(self, count: int) -> Iterator[Message]:
        late_messages, self._held_back = self._held_back, []
        yield from late_messages
        for _ in range(count):
            message = self._next()
            if not self._in_order and self._random.random() < _LATE_SHARE:
                self._held_back.append(message)
            else:
                yield message
                self._sent.append(message)
            if not self._in_order and self._random.random() < _REPEATED_SHARE:
                yield self._random.choice(self._sent or [message])
        self._sent = self._sent[-count:]

    def _next(self) -> Message:
        self._position += 1
        position, recent_keys = self._position, list(self._rows)[-2000:]
        if self.name in (UPSERT, CDC) and recent_keys and self._random.random() < _UPDATED_SHARE:
            row = self._rows[self._random.choice(recent_keys)].row
            operation = "d" if self.name == CDC and self._random.random() < _DELETED_SHARE else "u"
            return Message((*row[:3], position, *row[4:6], (row[6] or 0) + 1), operation)
        flight = next(self._flights)
        at = f"{flight['time_hour'].replace(' ', 'T')[:19]}Z"
        delay = None if flight["dep_delay"] in ("", "NA") else int(flight["dep_delay"])
        return Message((self.name, int(flight["month"]), position, position, at, flight["carrier"], delay))

    def _apply(self, message: Message) -> None:
        if self.name == APPEND:
            self._appended.append(message.row)
            return
        key = message.row[1], message.row[2]
        newest = self._rows.get(key)
        if newest is None or message.row[3] > newest.row[3]:
            self._rows[key] = message

    def _json_object(self, message: Message) -> dict[str, Any]:
        row = dict(zip(COLUMNS, message.row, strict=True))
        if self.name != CDC:
            return row
        key = {name: row[name] for name in ("feed", "month", "id")}
        is_deleted = message.operation == "d"
        source = {"connector": "flights", "position": row["position"]}
        value = {"op": message.operation, "before": key if is_deleted else None, "after": None if is_deleted else row}
        return {"key": key, "value": {**value, "source": source}}


@cache
def _first_flights() -> tuple[dict[str, str], ...]:
    return tuple(flight for flight in read_flights() if int(flight["month"]) <= _MONTHS)


def _to_arrow(messages: list[Message]) -> pa.Table:
    """Return the rows in the table's schema, with the column that ``cdc.py`` adds for the order of events."""
    rows = []
    for message in messages:
        row = dict(zip(COLUMNS, message.row, strict=True))
        rows.append({**row, "at": datetime.fromisoformat(message.row[4]), "__SEQUENCE": None})
    return pa.Table.from_pylist(rows, schema=_SCHEMA)
