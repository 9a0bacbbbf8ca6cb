"""Dead letters: messages that cannot be decoded, stored in a table of their own."""

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
        most: Number of dead letters, or percentage of the batch's messages.
        is_percentage: Whether ``most`` is a percentage.

    """

    most: int
    is_percentage: bool = False

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Parse ``N`` or ``N%``.

        Raises:
            ValueError: The text is neither.

        """
        match = _LIMIT.fullmatch(text)
        if match is None or (match[2] and int(match[1]) > _PERCENT):
            raise ValueError(f"{text!r} is not a number of messages or a percentage such as 5%")
        return cls(int(match[1]), bool(match[2]))

    def check(self, table: str, dead: int, messages: int, reason: str | None) -> None:
        """Refuse a batch with more dead letters.

        Args:
            table: Canonical URI of the table, for the message.
            dead: Number of dead letters.
            messages: Number of messages, dead letters included.
            reason: The most frequent reason.

        Raises:
            ChangesError: The batch has more dead letters.

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
    """Append messages to a table's dead letters in ``<location>_dead_letters``.

    Call it after the batch is applied, in this run or an earlier one; see :func:`append_rejected_rows`.

    Args:
        writer: Writer of the table that the messages are for.
        dead: At least one message: ``key`` and ``value`` (binary), ``origin`` (place of the message) and ``reason``.
        txn: Id and version of the batch's transaction. With it, retries of a batch write its dead letters once.
        options: ``lock_timeout_seconds`` and ``metadata`` of the write.

    Raises:
        SluiceError: See :func:`append_rejected_rows`.

    """
    rows = dead.select("reason", "origin", "key", "value")
    notes = {"written_at": F.timestamp_seconds(F.lit(time.time()))}
    append_rejected_rows(writer, DEAD_LETTERS_SUFFIX, rows, notes, txn, options)
