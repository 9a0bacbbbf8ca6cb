"""Where a change stands in the order of its database, by what Debezium's ``source`` says of it.

A position is a text, in which each number has as many digits as the largest. So all connectors have one type, which
stays when a feed is moved to another database.

- PostgreSQL: the last commit before the change, then its own place in the log (``source.sequence``). The log alone is
  not the order: a transaction writes while others commit, and an incremental snapshot may read in between.
- MySQL, MariaDB: number of the binlog file, position of the event, row within it.
- SQL Server, Db2: commit, change, and its number within the change.
- Oracle: commit, change, and what tells changes of one SCN apart.

Rows of a snapshot come before the changes of their position. Rows of an incremental snapshot come behind them: Debezium
leaves out of a window the rows that have changed while it was read.

Sources: Debezium's ``*SourceInfo.java`` and ``SnapshotRecord.java``;
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-create-events (``sequence``);
https://debezium.io/documentation/reference/stable/connectors/sqlserver.html#sqlserver-create-events
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.feeds.wire import path

_INT, _LONG, _SCN, _RS_ID = 10, 20, 38, 32
_NO_LSN = "00000000:00000000:0000"

#: Fields of ``source``, with their types.
_FIELDS: Mapping[str, str] = {
    **dict.fromkeys(("ts_ms", "ts_us", "ts_ns", "lsn", "xmin", "pos", "row", "server_id", "thread"), "bigint"),
    **dict.fromkeys(("event_serial_no", "ssn", "txSeq", "commit_ts_ms", "ord", "txnNumber", "wallTime"), "bigint"),
    **dict.fromkeys(("version", "connector", "name", "snapshot", "db", "schema", "table", "collection"), "string"),
    **dict.fromkeys(("sequence", "txId", "file", "gtid", "commit_lsn", "change_lsn"), "string"),
    **dict.fromkeys(("scn", "commit_scn", "rs_id"), "string"),
}


def source_of(payload: Column, more: Iterable[str]) -> Column:
    """Return ``source`` as a struct of what connectors write there, and of more fields, which are texts."""
    kinds = {**dict.fromkeys(more, "string"), **_FIELDS}
    return F.struct(
        *(F.try_variant_get(payload, path("source", name), kind).alias(name) for name, kind in kinds.items())
    )


def is_known(connector: str) -> bool:
    """Tell whether the order of a connector's changes is known."""
    return any(connector in names for names in _POSITIONS)


def position(connectors: Collection[str]) -> Column:
    """Return the position of a change of one of these connectors; null if what its ``payload`` says does not tell it.

    Its operation is in the column ``op``.
    """
    found = F.lit(None).cast("string")
    for names, make in _POSITIONS.items():
        if not set(names).isdisjoint(connectors):
            found = F.when(_field("connector").isin(*names), make()).otherwise(found)
    return found


def _postgresql() -> Column:
    before, here = (F.get_json_object(_field("sequence"), f"$[{at}]") for at in (0, 1))
    lsn = _digits(F.coalesce(_field("lsn"), here), _LONG)
    # Where no commit has been read yet, a change has only its own place.
    return _joined(F.coalesce(_digits(before, _LONG), lsn), _phase(), lsn)


def _binlog() -> Column:
    file = F.regexp_extract(_field("file"), r"\.(\d+)\z", 1)
    return _joined(_digits(file, _INT), _digits(_field("pos"), _LONG), _phase(), _digits(_field("row", "0"), _INT))


def _lsns() -> Column:
    return _joined(
        _field("commit_lsn"), _phase(), _field("change_lsn", _NO_LSN), _digits(_field("event_serial_no", "0"), _LONG)
    )


def _scns() -> Column:
    scn = _field("scn")
    return _joined(
        _digits(F.coalesce(_field("commit_scn"), scn), _SCN),
        _phase(),
        _digits(scn, _SCN),
        # Newer versions number the changes of a transaction, older ones say where in the redo log they are.
        _digits(_field("txSeq", "0"), _LONG),
        F.rpad(F.trim(_field("rs_id", "")), _RS_ID, " "),
        _digits(_field("ssn", "0"), _LONG),
    )


_POSITIONS: dict[tuple[str, ...], Callable[[], Column]] = {
    ("postgresql",): _postgresql,
    ("mysql", "mariadb"): _binlog,
    ("sqlserver", "db2"): _lsns,
    ("oracle",): _scns,
}


def _field(name: str, default: str | None = None) -> Column:
    found = F.try_variant_get("payload", path("source", name), "string")
    return found if default is None else F.coalesce(found, F.lit(default))


def _digits(number: Column, digits: int) -> Column:
    """Write a number with leading zeros; null if it is none."""
    return F.when(number.rlike(r"^\d+\z"), F.lpad(number, digits, "0"))


def _phase() -> Column:
    snapshot = F.lower(_field("snapshot", "false"))
    read = (snapshot != "false") | (F.col("op") == "r")
    return F.when(snapshot == "incremental", "2").when(read, "0").otherwise("1")


def _joined(*parts: Column) -> Column:
    """Join parts by dots; null if one of them is."""
    between = [each for part in parts[1:] for each in (F.lit("."), part)]
    return F.concat(parts[0], *between)
