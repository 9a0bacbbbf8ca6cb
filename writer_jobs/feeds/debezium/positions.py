"""The position of a change in its database's log, derived from Debezium's ``source``.

A position is a text. Its numbers have fixed widths, so texts sort as numbers do. All connectors share this type.

- PostgreSQL: the LSN of the last commit before the change, then the change's own LSN (``source.sequence``). The LSN
  alone is not an order: a transaction writes while others commit, and an incremental snapshot can read in between.
- MySQL, MariaDB: the number of the binlog file, the position of the event, the row within the event. With
  ``binlog_transaction_compression`` all events of a transaction have one position, and each has its own rows. So the
  offset in the topic, or else ``transaction.total_order``, comes before the row.
- SQL Server, Db2: the LSN of the commit, the LSN of the change, the event's number within the change.
- Oracle: the SCN of the commit, the SCN of the change, and fields that order changes of one SCN.

Rows of a snapshot precede the changes of their position. Rows of an incremental snapshot follow them: Debezium omits
rows that change while it reads them.

Sources: Debezium's ``*SourceInfo.java`` and ``SnapshotRecord.java``;
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-create-events (``sequence``);
https://debezium.io/documentation/reference/stable/connectors/sqlserver.html#sqlserver-create-events
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.feeds.message_values import variant_path

_INT, _LONG, _SCN, _RS_ID = 10, 20, 38, 32  # characters of a part of the position
_NO_LSN = "00000000:00000000:0000"
# topic/partition/offset. The path of a file has other characters.
_TOPIC_OFFSET = r"\A[\w.-]+/\d+/(\d+)\z"

#: Fields with the times of an event.
TIMES = ("ts_ms", "ts_us", "ts_ns")
#: Fields of ``source``, with their types.
FIELDS: Mapping[str, str] = {
    **dict.fromkeys((*TIMES, "lsn", "xmin", "pos", "row", "server_id", "thread"), "bigint"),
    **dict.fromkeys(("event_serial_no", "ssn", "txSeq", "commit_ts_ms", "ord", "txnNumber", "wallTime"), "bigint"),
    **dict.fromkeys(("version", "connector", "name", "snapshot", "db", "schema", "table", "collection"), "string"),
    **dict.fromkeys(("sequence", "txId", "file", "gtid", "commit_lsn", "change_lsn"), "string"),
    **dict.fromkeys(("scn", "commit_scn", "rs_id"), "string"),
}


def source_struct(payload: Column, extra_fields: Iterable[str]) -> Column:
    """Return ``source`` as a struct of the fields that connectors write, and of extra fields as strings."""
    data_types = {**dict.fromkeys(extra_fields, "string"), **FIELDS}
    return F.struct(
        *(
            F.try_variant_get(payload, variant_path("source", name), data_type).alias(name)
            for name, data_type in data_types.items()
        )
    )


def has_position(connector: str) -> bool:
    """Return whether this module derives the position of a connector's changes."""
    return any(connector in names for names in _POSITIONS)


def topic_offset() -> Column:
    """Return the offset in the column ``origin`` if it is ``topic/partition/offset``, else null."""
    return F.nullif(F.regexp_extract("origin", _TOPIC_OFFSET, 1), F.lit(""))


def total_order() -> Column:
    """Return the number of a change in its transaction (``provide.transaction.metadata``), as text.

    Before Debezium 3.7 the numbers begin again if the connector is restarted within a transaction.
    """
    return F.try_variant_get("payload", variant_path("transaction", "total_order"), "string")


def position(connectors: Collection[str], order_in_transaction: Column) -> Column:
    """Return the position of a change of one of these connectors; null if ``source`` lacks a field of the position.

    The expression reads the columns ``payload`` and ``op``.

    Args:
        connectors: Values of ``source.connector``.
        order_in_transaction: Number that orders changes of one transaction that ``source`` does not order; null if
            there is none. With :func:`topic_offset`, a message that the connector repeats has another position.

    """
    chosen_position = F.lit(None).cast("string")
    for names, connector_position in _POSITIONS.items():
        if not set(names).isdisjoint(connectors):
            is_connector = _field("connector").isin(*names)
            chosen_position = F.when(is_connector, connector_position(order_in_transaction)).otherwise(chosen_position)
    return chosen_position


def _postgresql(_: Column) -> Column:
    commit_lsn, change_lsn = (F.get_json_object(_field("sequence"), f"$[{index}]") for index in (0, 1))
    lsn = _zero_padded(F.coalesce(_field("lsn"), change_lsn), _LONG)
    # Before the connector reads its first commit, a change has only its own LSN.
    return _join(F.coalesce(_zero_padded(commit_lsn, _LONG), lsn), _phase(), lsn)


def _binlog(order_in_transaction: Column) -> Column:
    file = F.regexp_extract(_field("file"), r"\.(\d+)\z", 1)
    row = _zero_padded(_field("row", "0"), _INT)
    return _join(
        _zero_padded(file, _INT),
        _zero_padded(_field("pos"), _LONG),
        _phase(),
        F.coalesce(_join(_zero_padded(order_in_transaction, _LONG), row), row),
    )


def _lsns(_: Column) -> Column:
    return _join(
        _field("commit_lsn"),
        _phase(),
        _field("change_lsn", _NO_LSN),
        _zero_padded(_field("event_serial_no", "0"), _LONG),
    )


def _scns(_: Column) -> Column:
    scn = _field("scn")
    return _join(
        _zero_padded(F.coalesce(_field("commit_scn"), scn), _SCN),
        _phase(),
        _zero_padded(scn, _SCN),
        # Newer versions number the changes of a transaction. Older versions write the place in the redo log.
        _zero_padded(_field("txSeq", "0"), _LONG),
        F.rpad(F.trim(_field("rs_id", "")), _RS_ID, " "),
        _zero_padded(_field("ssn", "0"), _LONG),
    )


_POSITIONS: dict[tuple[str, ...], Callable[[Column], Column]] = {
    ("postgresql",): _postgresql,
    ("mysql", "mariadb"): _binlog,
    ("sqlserver", "db2"): _lsns,
    ("oracle",): _scns,
}


def _field(name: str, default: str | None = None) -> Column:
    text = F.try_variant_get("payload", variant_path("source", name), "string")
    return text if default is None else F.coalesce(text, F.lit(default))


def _zero_padded(number: Column, digits: int) -> Column:
    """Pad a number with leading zeros; null if it is not a number."""
    return F.when(number.rlike(r"^\d+\z"), F.lpad(number, digits, "0"))


def _phase() -> Column:
    """Return the rank among changes of one position: snapshot 0, change 1, incremental snapshot 2."""
    snapshot = F.lower(_field("snapshot", "false"))
    is_snapshot = (snapshot != "false") | (F.col("op") == "r")
    return F.when(snapshot == "incremental", "2").when(is_snapshot, "0").otherwise("1")


def _join(*parts: Column) -> Column:
    """Join parts by dots; null if a part is null."""
    separated_parts = [column for part in parts[1:] for column in (F.lit("."), part)]
    return F.concat(parts[0], *separated_parts)
