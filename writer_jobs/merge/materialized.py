"""Rows in a local checkpoint: computed once, and the same each time they are read."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from writer_jobs.delta.jvm_errors import JVM_ERRORS, RAISED, error_reason, has_condition
from writer_jobs.errors import ChangesError
from writer_jobs.lineage.plan_sources import remember_sources


class MaterializedRows:
    """Rows that are computed now and stay in a local checkpoint until :meth:`close`."""

    def __init__(self, rows: DataFrame) -> None:
        self.rows = rows.localCheckpoint()
        remember_sources(rows, self.rows)

    @classmethod
    def of(cls, table: str, rows: DataFrame, source: str) -> MaterializedRows:
        """Compute rows of an external source for a table, whose canonical URI is in the message.

        ``source`` is a noun for the rows, such as ``changes``.

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
