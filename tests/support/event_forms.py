"""A random history of one table of PostgreSQL, as Debezium's messages in four wire forms, and the table's final rows.

The rows come from the history, in the order of its commits. Nothing here depends on the product.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.avro_messages import Registry, avro_bytes
from tests.support.deliveries import AWKWARD_TEXTS

Message = tuple[bytes, bytes | None]
"""Key and value. A tombstone has no value."""
Json = dict[str, Any]

PLACEHOLDER = "__debezium_unavailable_value"
#: The columns at the end of the history. Events of the first part of the history lack the last one.
COLUMNS = ("id", "name", "amount", "rate", "active", "note", "remark")
#: Columns whose values PostgreSQL stores out of line (TOAST). An update omits the values that it does not change.
_LARGE_COLUMNS = ("note", "remark")
_FIRST_LSN, _FIRST_MILLIS = 10_000, 1_795_000_000_000
#: Shares of the history: rows of the snapshot, different keys, and changes before the last column is added.
_SNAPSHOT_SHARE, _KEY_SHARE, _OLD_SHARE = 0.05, 0.1, 0.6
_DELETE_SHARE, _UNCHANGED_SHARE, _HEARTBEAT_SHARE = 0.2, 0.6, 0.05
_REPEATED_SHARE = 0.01


# -- the history -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A change of one row.

    Attributes:
        op: Debezium's operation: ``r``, ``c``, ``u`` or ``d``.
        key: Primary key.
        after: The columns that the event contains; None for a delete.
        has_all_columns: Whether the last column exists.
        lsn: Position of the change in the log.
        commit_lsn: Position of the last commit before the change; None before the first commit.
        transaction: Id of the transaction; None in the snapshot.
        total_order: Number of the change in its transaction.

    """

    op: str
    key: int
    after: Json | None
    has_all_columns: bool
    lsn: int
    commit_lsn: int | None = None
    transaction: str | None = None
    total_order: int = 0


@dataclass(frozen=True)
class Tombstone:
    """Kafka's tombstone of a key, which follows each delete."""

    key: int


@dataclass(frozen=True)
class Heartbeat:
    """A heartbeat of the connector."""

    millis: int


@dataclass(frozen=True)
class Marker:
    """The begin of a transaction, or its end with the number of its changes."""

    status: str
    transaction: str
    millis: int
    change_count: int | None = None


Record = Change | Tombstone | Heartbeat | Marker


@dataclass
class History:
    """A source table: a snapshot, and transactions of inserts, updates, deletes and inserts of deleted keys.

    Attributes:
        chance: Source of random numbers.
        change_count: Number of changes.
        rows: The table's rows by key. They are final when :meth:`records` has returned its last record.

    """

    chance: random.Random
    change_count: int
    rows: dict[int, Json] = field(default_factory=dict)
    _changed: int = 0
    _lsn: int = _FIRST_LSN
    _commit_lsn: int | None = None

    def records(self) -> Iterator[Record]:
        """Make the history, and return its records in the order of the log."""
        yield from self._snapshot()
        while self._changed < self.change_count:
            yield from self._transaction()
            if self.chance.random() < _HEARTBEAT_SHARE:
                yield Heartbeat(self._millis())

    def _snapshot(self) -> Iterator[Record]:
        # All rows of a snapshot have one position.
        for key in range(int(self.change_count * _SNAPSHOT_SHARE)):
            row = self.rows[key] = self._new_row(key)
            self._changed += 1
            yield Change("r", key, row, self._has_all_columns(), self._lsn)

    def _transaction(self) -> Iterator[Record]:
        self._move()
        transaction = f"{self._lsn // 8}:{self._lsn}"
        count = min(self.chance.randint(1, 12), self.change_count - self._changed)
        yield Marker("BEGIN", transaction, self._millis())
        for number in range(1, count + 1):
            self._move()
            # Small keys change more often.
            key = int(self.change_count * _KEY_SHARE * self.chance.random() ** 2)
            has_all_columns = self._has_all_columns()
            op, after = self._change_row(key)
            self._changed += 1
            yield Change(op, key, after, has_all_columns, self._lsn, self._commit_lsn, transaction, number)
            if op == "d":
                yield Tombstone(key)
        self._move()
        self._commit_lsn = self._lsn
        yield Marker("END", transaction, self._millis(), count)

    def _change_row(self, key: int) -> tuple[str, Json | None]:
        """Change a row, and return the operation and the columns of its event."""
        previous_row = self.rows.get(key)
        if previous_row is None:
            self.rows[key] = self._new_row(key)
            return "c", self.rows[key]
        if self.chance.random() < _DELETE_SHARE:
            del self.rows[key]
            return "d", None
        row = self.rows[key] = self._new_row(key)
        after = dict(row)
        for name in _LARGE_COLUMNS:
            if name in row and self.chance.random() < _UNCHANGED_SHARE:
                row[name] = previous_row.get(name)
                # A null is in the row itself, and PostgreSQL sends it.
                after[name] = None if row[name] is None else PLACEHOLDER
        return "u", after

    def _new_row(self, key: int) -> Json:
        chance = self.chance
        row: Json = {
            "id": key,
            "name": chance.choice((*AWKWARD_TEXTS, f"{key}@{self._lsn}", None)),
            "amount": chance.choice((chance.randint(-(2**63), 2**63 - 1), chance.randint(-9, 9), None)),
            "rate": chance.choice((chance.randint(-800, 800) / 8, None)),
            "active": chance.choice((True, False, None)),
            "note": chance.choice((f"note {self._changed}, {chance.random()}", f"note {self._changed}", "", None)),
        }
        if self._has_all_columns():
            row["remark"] = chance.choice((f"remark {self._changed}", "", None))
        return row

    def _has_all_columns(self) -> bool:
        return self._changed >= self.change_count * _OLD_SHARE

    def _move(self) -> None:
        """Move to another position in the log."""
        self._lsn += self.chance.randint(1, 500)

    def _millis(self) -> int:
        return _FIRST_MILLIS + self._lsn


def in_random_order(records: Iterator[Record], chance: random.Random, delay: int) -> Iterator[Record]:
    """Return records in random order. A record is delayed by ``delay`` others on average, by chance by many more."""
    delayed_records: list[Record] = []
    for record in records:
        if len(delayed_records) < delay:
            delayed_records.append(record)
        else:
            index = chance.randrange(delay)
            yield delayed_records[index]
            delayed_records[index] = record
    chance.shuffle(delayed_records)
    yield from delayed_records


def with_repetitions(records: Iterator[Record], chance: random.Random) -> Iterator[Record]:
    """Return records, some of them twice, as a connector delivers them that was restarted."""
    for record in records:
        yield record
        if chance.random() < _REPEATED_SHARE:
            yield record


# -- schemas, of Kafka Connect and of Avro -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Struct:
    """A type with fields. A field has a primitive type's name, another struct, or a list with the type of its items."""

    name: str
    fields: Mapping[str, Any]


_AVRO_TYPES = {"int64": "long"}
_REQUIRED = {"id", "op", "status", "serverName"}
_ROW = {"id": "int64", "name": "string", "amount": "int64", "rate": "double", "active": "boolean", "note": "string"}
_SOURCE = Struct(
    "io.debezium.connector.postgresql.Source",
    {
        **dict.fromkeys(("version", "connector", "name", "snapshot", "db", "schema", "table", "sequence"), "string"),
        **dict.fromkeys(("ts_ms", "lsn"), "int64"),
    },
)
_BLOCK = Struct("event.block", {"id": "string", "total_order": "int64", "data_collection_order": "int64"})
_COLLECTION = Struct("event.collection", {"data_collection": "string", "event_count": "int64"})


def _envelope(row: Mapping[str, Any]) -> Struct:
    value = Struct("shop.public.customers.Value", row)
    fields = {"before": value, "after": value, "source": _SOURCE, "op": "string", "ts_ms": "int64"}
    return Struct("shop.public.customers.Envelope", {**fields, "transaction": _BLOCK})


#: Structs of keys and values, by the names in :class:`Content`.
_STRUCTS = {
    "key": Struct("shop.public.customers.Key", {"id": "int64"}),
    "old change": _envelope(_ROW),
    "new change": _envelope({**_ROW, "remark": "string"}),
    "heartbeat key": Struct("io.debezium.connector.common.ServerNameKey", {"serverName": "string"}),
    "heartbeat": Struct("io.debezium.connector.common.Heartbeat", {"ts_ms": "int64"}),
    "marker key": Struct("io.debezium.connector.common.TransactionMetadataKey", {"id": "string"}),
    "marker": Struct(
        "io.debezium.connector.common.TransactionMetadataValue",
        {**dict.fromkeys(("status", "id"), "string"), "event_count": "int64", "data_collections": [_COLLECTION]}
        | {"ts_ms": "int64"},
    ),
}


def _connect_schema(data_type: Any, *, optional: bool = False) -> Json:
    """Return a schema of Kafka Connect, as its ``JsonConverter`` writes it."""
    if isinstance(data_type, str):
        return {"type": data_type, "optional": optional}
    if isinstance(data_type, list):
        return {"type": "array", "optional": optional, "items": _connect_schema(data_type[0])}
    fields = [
        {**_connect_schema(part, optional=name not in _REQUIRED), "field": name}
        for name, part in data_type.fields.items()
    ]
    return {"type": "struct", "optional": optional, "name": data_type.name, "fields": fields}


def _avro_schema(data_type: Any, defined_names: set[str]) -> Any:
    """Return a schema of Avro. It defines each record once, and refers to it by its name afterwards."""
    if isinstance(data_type, str):
        return _AVRO_TYPES.get(data_type, data_type)
    if isinstance(data_type, list):
        return {"type": "array", "items": _avro_schema(data_type[0], defined_names)}
    if data_type.name in defined_names:
        return data_type.name
    defined_names.add(data_type.name)
    namespace, _, name = data_type.name.rpartition(".")
    fields: list[Json] = []
    for field_name, part in data_type.fields.items():
        schema = _avro_schema(part, defined_names)
        optional = {"name": field_name, "type": ["null", schema], "default": None}
        fields.append({"name": field_name, "type": schema} if field_name in _REQUIRED else optional)
    return {"type": "record", "name": name, "namespace": namespace, "fields": fields, "connect.name": data_type.name}


# -- wire forms --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Content:
    """The key and the value of a message, with the names of their structs in :data:`_STRUCTS`."""

    key_struct: str
    key: Json
    value_struct: str
    value: Json | None


def _source(change: Change) -> Json:
    commit_lsn = None if change.commit_lsn is None else str(change.commit_lsn)
    return {
        "version": "3.3.1.Final", "connector": "postgresql", "name": "shop", "db": "shop", "schema": "public",
        "table": "customers", "snapshot": "true" if change.op == "r" else "false",
        "sequence": json.dumps([commit_lsn, str(change.lsn)]), "ts_ms": _FIRST_MILLIS + change.lsn, "lsn": change.lsn,
    }  # fmt: skip


def _row_before(change: Change) -> Json | None:
    """Return ``before`` of a change with PostgreSQL's default ``REPLICA IDENTITY``: the key of a deleted row."""
    names = COLUMNS if change.has_all_columns else COLUMNS[:-1]
    return {**dict.fromkeys(names), "id": change.key} if change.op == "d" else None


def _content(record: Record) -> Content:
    """Return the content of the message of a record."""
    if isinstance(record, Heartbeat):
        return Content("heartbeat key", {"serverName": "shop"}, "heartbeat", {"ts_ms": record.millis})
    if isinstance(record, Marker):
        count = record.change_count
        collections = [{"data_collection": "public.customers", "event_count": count}]
        value: Json = {"status": record.status, "id": record.transaction, "event_count": count}
        value |= {"data_collections": None if count is None else collections, "ts_ms": record.millis}
        return Content("marker key", {"id": record.transaction}, "marker", value)
    key = {"id": record.key}
    if isinstance(record, Tombstone):
        return Content("key", key, "", None)
    block = {"id": record.transaction, "total_order": record.total_order, "data_collection_order": record.total_order}
    value = {
        "before": _row_before(record), "after": record.after, "source": _source(record), "op": record.op,
        "ts_ms": _FIRST_MILLIS + record.lsn, "transaction": None if record.transaction is None else block,
    }  # fmt: skip
    return Content("key", key, "new change" if record.has_all_columns else "old change", value)


def _as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _json_message(record: Record) -> Message:
    """Return a message of ``JsonConverter`` with ``schemas.enable=false``."""
    content = _content(record)
    return _as_json(content.key), None if content.value is None else _as_json(content.value)


_CONNECT_SCHEMAS = {name: _as_json(_connect_schema(struct)) for name, struct in _STRUCTS.items()}


def _message_with_schemas(record: Record) -> Message:
    """Return a message of ``JsonConverter`` with ``schemas.enable=true``."""
    content = _content(record)

    def with_schema(struct: str, payload: Json) -> bytes:
        return b'{"schema":%b,"payload":%b}' % (_CONNECT_SCHEMAS[struct], _as_json(payload))

    value = None if content.value is None else with_schema(content.value_struct, content.value)
    return with_schema(content.key_struct, content.key), value


def _flattened_message(record: Record) -> Message | None:
    """Return a message of ``ExtractNewRecordState`` with ``delete.tombstone.handling.mode=rewrite``.

    None for a tombstone: this mode writes none, and in other modes it is a dead letter, because it has no position.
    The transform passes heartbeats and markers of transactions.
    """
    if isinstance(record, Tombstone):
        return None
    if not isinstance(record, Change):
        return _json_message(record)
    fields = {f"__source_{name}": value for name, value in _source(record).items()}
    row = record.after if record.after is not None else _row_before(record)
    deleted = str(record.op == "d").lower()
    return _as_json({"id": record.key}), _as_json({**(row or {}), "__op": record.op, "__deleted": deleted, **fields})


class _AvroEncoder:
    """Encodes messages in Avro with Confluent's header, with schemas that are in a registry."""

    def __init__(self, registry: Registry) -> None:
        self._schemas = {name: _avro_schema(struct, set()) for name, struct in _STRUCTS.items()}
        ids = {name: registry.add(schema) for name, schema in self._schemas.items()}
        self._headers = {name: b"\0" + number.to_bytes(4, "big") for name, number in ids.items()}

    def message(self, record: Record) -> Message:
        """Return the message of a record."""
        content = _content(record)
        value = None if content.value is None else self._encode(content.value_struct, content.value)
        return self._encode(content.key_struct, content.key), value

    def _encode(self, struct: str, value: Json) -> bytes:
        return self._headers[struct] + avro_bytes(self._schemas[struct], value)


@dataclass(frozen=True)
class WireForm:
    """A wire form of messages.

    Attributes:
        arguments: The arguments of ``cdc.py`` for this form.
        encode: Returns the message of a record; None if this form has no such message.

    """

    arguments: tuple[str, ...]
    encode: Callable[[Record], Message | None]


#: The wire forms by their names. Each needs a registry, which only Avro uses.
WIRE_FORMS: Mapping[str, Callable[[Registry], WireForm]] = {
    "json-with-schemas": lambda _: WireForm(("--decoder", "debezium"), _message_with_schemas),
    "json": lambda _: WireForm(("--decoder", "debezium"), _json_message),
    "flattened": lambda _: WireForm(("--decoder", "debezium-flat"), _flattened_message),
    "avro": lambda registry: WireForm(
        ("--decoder", "debezium", "--schema-registry", registry.url), _AvroEncoder(registry).message
    ),
}


class ShuffledEvents:
    """The messages of a history in random order, in one wire form. One of a hundred is delivered twice.

    Args:
        form: The wire form.
        change_count: Number of changes of the history. There are other messages in addition.
        delay: Average delay of a record, in records.
        seed: Selects the history and the order.

    Attributes:
        change_count: Number of messages so far with a change.
        skipped_count: Number of messages so far that change no row.

    """

    def __init__(self, form: WireForm, change_count: int, delay: int, seed: str) -> None:
        self._form, self._delay = form, delay
        self._chance = random.Random(f"{seed}, order")
        self._history = History(random.Random(f"{seed}, history"), change_count)
        self.change_count = self.skipped_count = 0

    @property
    def message_count(self) -> int:
        """Number of messages so far."""
        return self.change_count + self.skipped_count

    def messages(self) -> Iterator[Message]:
        """Make the messages one by one. Call this once."""
        records = with_repetitions(self._history.records(), self._chance)
        for record in in_random_order(records, self._chance, self._delay):
            message = self._form.encode(record)
            if message is not None:
                self.change_count += isinstance(record, Change)
                self.skipped_count += not isinstance(record, Change)
                yield message

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the final rows of the source table, with :data:`COLUMNS`."""
        return [tuple(row.get(name) for name in COLUMNS) for row in self._history.rows.values()]
