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
    """The maximum number of dead letters that a batch may have.

    Attributes:
        maximum: Number of dead letters, or percentage of the batch's messages.
        is_percentage: Whether ``maximum`` is a percentage.

    """

    maximum: int
    is_percentage: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``N`` or ``N%``.

        Raises:
            ValueError: The text is neither, or the percentage is above 100.

        """
        match = _LIMIT.fullmatch(text)
        if match is None or (match[2] and int(match[1]) > _PERCENT):
            raise ValueError(f"{text!r} is not a number of messages or a percentage such as 5%")
        return cls(int(match[1]), bool(match[2]))

    def check(self, table: str, dead_letters: int, messages: int, reason: str | None) -> None:
        """Refuse a batch with more dead letters than the limit.

        Args:
            table: Canonical URI, for the error message.
            dead_letters: Number of dead letters of the batch.
            messages: Number of the table's events or cells in the batch, plus the dead letters. Messages that are
                skipped or filtered out do not count.
            reason: The most frequent reason of the dead letters.

        Raises:
            ChangesError: The batch has more dead letters than the limit.

        """
        max_count = self.maximum * messages / _PERCENT if self.is_percentage else self.maximum
        if dead_letters > max_count:
            limit = f"{self.maximum}%" if self.is_percentage else str(self.maximum)
            raise ChangesError(
                table=table,
                reason=f"{dead_letters} of {messages} messages cannot be decoded, more than --max-dead-letters {limit}"
                f"; most frequent reason: {reason}",
            )


def write_dead_letters(
    writer: LockedDeltaWriter, dead_letters: DataFrame, txn: tuple[str, int] | None, options: WriteOptions
) -> None:
    """Append messages to the table of dead letters, ``<location>_dead_letters``.

    Call it after the batch is applied, in this run or an earlier one; see :func:`append_rejected_rows`.

    Args:
        dead_letters: At least one message: ``key`` and ``value`` (binary), ``origin`` (place of the message) and
            ``reason``.
        txn: Id and version of the batch's transaction. With it, retries of a batch write its dead letters once.
        options: ``lock_timeout_seconds`` and ``metadata`` of the write.

    Raises:
        SluiceError: See :func:`append_rejected_rows`.

    """
    rows = dead_letters.select("reason", "origin", "key", "value")
    columns = {"written_at": F.timestamp_seconds(F.lit(time.time()))}
    append_rejected_rows(writer, DEAD_LETTERS_SUFFIX, rows, columns, txn, options)
