"""Messages that cannot be decoded: in a table of their own, counted, never dropped."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.writer import LockedDeltaWriter

_SUFFIX = "_dead_letters"


def write_dead_letters(
    writer: LockedDeltaWriter, dead: DataFrame, *, txn: tuple[str, int] | None, metadata: Mapping[str, Any] | None
) -> int:
    """Append messages to the table of dead letters of a table, ``<location>_dead_letters``.

    Before their batch is applied: a batch that is in the table is not looked at again.

    Args:
        writer: of the table for which the messages were.
        dead: ``key`` and ``value`` (binary; the message), ``origin`` (where it came from) and ``reason``.
        txn: of the batch: with it the same letters are written once, however often the batch is tried.
        metadata: more to note in the commit.

    Returns:
        How many there are.

    Raises:
        SluiceError: see :meth:`LockedDeltaWriter.append`.

    """
    each = F.xxhash64("key", "value", "origin", "reason")
    number, same = dead.agg(F.count("*"), F.bit_xor(each)).collect()[0]
    if not number:
        return 0
    # A batch that was refused may come again, mended, with others.
    mark = None if txn is None else (f"{txn[0]}/{txn[1]}/{same:x}", 1)
    rows = dead.select(
        "reason",
        "origin",
        "key",
        "value",
        F.timestamp_seconds(F.lit(time.time())).alias("written_at"),
    )
    letters = LockedDeltaWriter(dead.sparkSession, writer.manager, writer.location.rstrip("/") + _SUFFIX)
    letters.append(rows, txn=mark, hold="write", metadata=metadata)
    return int(number)
