"""Rows in a local checkpoint: computed once, and the same each time they are read."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from writer_jobs.delta.jvm_errors import JVM_ERRORS, RAISED, error_reason, has_condition
from writer_jobs.errors import ChangesError


class MaterializedRows:
    """Rows in a local checkpoint, until :meth:`close`.

    Args:
        rows: Rows to compute now.

    Attributes:
        rows: The computed rows.

    """

    def __init__(self, rows: DataFrame) -> None:
        self.rows = rows.localCheckpoint()

    @classmethod
    def of(cls, table: str, rows: DataFrame, source: str) -> MaterializedRows:
        """Compute rows of an external source.

        Args:
            table: Canonical URI of the table that gets the rows, for the message.
            rows: Rows to compute now.
            source: Noun for the rows, such as ``changes``, for the message.

        Raises:
            ChangesError: The rows cannot be read.

        """
        try:
            return cls(rows)
        except (*JVM_ERRORS, PySparkException) as error:
            # If raise_error refused a value, the message describes the value, not the reader.
            prefix = "" if has_condition(error, RAISED) else f"the {source} cannot be read: "
            raise ChangesError(table=table, reason=f"{prefix}{error_reason(error)}") from error

    def close(self) -> None:
        """Release the local checkpoint."""
        with suppress(*JVM_ERRORS):  # the JVM, and the checkpoint with it, may be gone
            plan: Any = self.rows._jdf.queryExecution().analyzed()  # noqa: SLF001 (PySpark has no method for it)
            plan.rdd().unpersist(False)  # noqa: FBT003 (Java's blocking)
