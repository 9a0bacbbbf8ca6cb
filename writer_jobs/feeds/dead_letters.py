"""Messages that cannot be decoded: in a table of their own, counted, never dropped."""

from __future__ import annotations

import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.changes.rows_beside import write_beside
from writer_jobs.commit.locked_operation import WriteOptions
from writer_jobs.writer import LockedDeltaWriter

_SUFFIX = "dead_letters"


def write_dead_letters(
    writer: LockedDeltaWriter, dead: DataFrame, txn: tuple[str, int] | None, options: WriteOptions
) -> int:
    """Append messages to the table of dead letters of a table, ``<location>_dead_letters``.

    After their batch, whether it was applied now or before; see :func:`write_beside`.

    Args:
        writer: of the table for which the messages were.
        dead: ``key`` and ``value`` (binary; the message), ``origin`` (where it came from) and ``reason``.
        txn: of the batch: with it its letters are written once, however often it is tried.
        options: ``lock_timeout_seconds`` and ``metadata`` of the write.

    Returns:
        How many there are.

    Raises:
        SluiceError: see :func:`write_beside`.

    """
    rows = dead.select("reason", "origin", "key", "value")
    notes = {"written_at": F.timestamp_seconds(F.lit(time.time()))}
    return write_beside(writer, _SUFFIX, rows, notes, txn, options)
