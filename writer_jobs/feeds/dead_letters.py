"""Messages that cannot be decoded: in a table of their own, never dropped."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.commit.options import WriteOptions
from writer_jobs.delta.side_locations import DEAD_LETTERS_SUFFIX
from writer_jobs.errors import ChangesError
from writer_jobs.merge.rejected_rows import append_rejected_rows
from writer_jobs.writer import LockedDeltaWriter

_LIMIT = re.compile(r"(\d{1,18})(%?)")
_PERCENT = 100


@dataclass(frozen=True)
class DeadLetterLimit:
    """The most dead letters that a batch may have.

    Attributes:
        most: Number of dead letters, or percent of the batch's messages.
        is_percentage: Whether it is percent.

    """

    most: int
    is_percentage: bool = False

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Parse ``N`` or ``N%``.

        Raises:
            ValueError: It is neither.

        """
        match = _LIMIT.fullmatch(text)
        if match is None or (match[2] and int(match[1]) > _PERCENT):
            raise ValueError(f"{text!r} is no number of messages, and no percentage such as 5%")
        return cls(int(match[1]), bool(match[2]))

    def check(self, table: str, dead: int, messages: int, reason: str | None) -> None:
        """Refuse a batch that has more.

        Args:
            table: Canonical URI of the table, for the message.
            dead: Number of dead letters.
            messages: Number of messages, dead letters included.
            reason: The most frequent reason.

        Raises:
            ChangesError: It has more.

        """
        most = self.most * messages / _PERCENT if self.is_percentage else self.most
        if dead > most:
            limit = f"{self.most}%" if self.is_percentage else str(self.most)
            raise ChangesError(
                table=table,
                reason=f"{dead} of {messages} messages cannot be decoded, more than --max-dead-letters {limit}; most "
                f"frequent reason: {reason}",
            )


def write_dead_letters(
    writer: LockedDeltaWriter, dead: DataFrame, txn: tuple[str, int] | None, options: WriteOptions
) -> None:
    """Append messages to the table of dead letters of a table, ``<location>_dead_letters``.

    After their batch, whether it was applied now or before; see :func:`append_rejected_rows`.

    Args:
        writer: of the table for which the messages were.
        dead: at least one message: ``key`` and ``value`` (binary), ``origin`` (where it came from) and ``reason``.
        txn: of the batch: with it its letters are written once, however often it is tried.
        options: ``lock_timeout_seconds`` and ``metadata`` of the write.

    Raises:
        SluiceError: see :func:`append_rejected_rows`.

    """
    rows = dead.select("reason", "origin", "key", "value")
    notes = {"written_at": F.timestamp_seconds(F.lit(time.time()))}
    append_rejected_rows(writer, DEAD_LETTERS_SUFFIX, rows, notes, txn, options)
