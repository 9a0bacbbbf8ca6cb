"""Rows that a local checkpoint keeps: made once, and the same each time they are read."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from writer_jobs.delta.jvm_errors import JVM_ERRORS, RAISED, has_condition, one_sentence
from writer_jobs.errors import ChangesError


class Kept:
    """Rows that were made, until they are given back.

    Args:
        rows: to be made now.

    Attributes:
        rows: as they were made.

    """

    def __init__(self, rows: DataFrame) -> None:
        self.rows = rows.localCheckpoint()

    @classmethod
    def of(cls, table: str, rows: DataFrame, what: str) -> Kept:
        """Make them of what comes from outside.

        Args:
            table: canonical URI of the one for which they are.
            rows: to be made now.
            what: they are, for the message.

        Raises:
            ChangesError: they cannot be read.

        """
        try:
            return cls(rows)
        except (*JVM_ERRORS, PySparkException) as error:
            # A value that a check of ours refused is no failure of the reader.
            prefix = "" if has_condition(error, RAISED) else f"the {what} cannot be read: "
            raise ChangesError(table=table, reason=f"{prefix}{one_sentence(error)}") from error

    def close(self) -> None:
        """Give them back."""
        with suppress(*JVM_ERRORS):  # the JVM may be gone, and what it kept with it
            plan: Any = self.rows._jdf.queryExecution().analyzed()  # noqa: SLF001 (PySpark has no way to it)
            plan.rdd().unpersist(False)  # noqa: FBT003 (Java's blocking)
