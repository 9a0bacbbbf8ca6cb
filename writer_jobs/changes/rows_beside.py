"""Rows that do not belong into a table, in another one beside it: counted, never dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.changes.parts import comparable
from writer_jobs.writer import LockedDeltaWriter


def write_beside(
    writer: LockedDeltaWriter,
    suffix: str,
    rows: DataFrame,
    notes: Mapping[str, Column],
    *,
    txn: tuple[str, int] | None,
    metadata: Mapping[str, Any] | None,
) -> int:
    """Append rows to a table beside another one.

    Before their batch is applied: a batch that is in the table is not looked at again.

    Args:
        writer: of the table for which they were.
        suffix: of the other one's location.
        rows: what they are; the same each time they are read.
        notes: more columns, by name, which say when and why.
        txn: of the batch: with it the same rows are written once, however often the batch is tried.
        metadata: more to note in the commit.

    Returns:
        How many there are.

    Raises:
        SluiceError: see :meth:`LockedDeltaWriter.append`.

    """
    each = F.xxhash64(*(comparable(field) for field in rows.schema))
    number, same = rows.agg(F.count("*"), F.bit_xor(each)).collect()[0]
    if not number:
        return 0
    # A batch that was refused may come again, mended, with others.
    mark = None if txn is None else (f"{txn[0]}/{txn[1]}/{number}-{same:x}", 1)
    beside = LockedDeltaWriter(rows.sparkSession, writer.manager, writer.location.rstrip("/") + suffix)
    noted = rows.select("*", *(column.alias(name) for name, column in notes.items()))
    beside.append(noted, txn=mark, hold="write", metadata=metadata, options={"mergeSchema": "true"})
    return int(number)
