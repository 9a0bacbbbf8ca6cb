"""The step with two threads in one block: a DELETE by LockedDeltaWriter and a plain INSERT under the same hold.

The INSERT commits the version that the DELETE is about to commit, so that Delta finds a conflict. Each of the two may
fail or be repeated, but a statement that is reported as done must be in the table. The step uses a separate table.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from lock_manager import LockManager
from soak.errors import JvmGoneError
from soak.spark_worker import GuardObserver
from soak.steps import DONE
from writer_jobs import LockedDeltaWriter, locked

_TIMEOUT_SECONDS = 30.0
_DELETED_ROWS = 2
# An id that the DELETE does not match.
_INSERTED_ID = 10


class StepWorker(Protocol):
    """The part of a writer process that the step uses."""

    spark: SparkSession
    cycles: dict[str, GuardObserver]
    in_step: bool


class TwoThreads(GuardObserver):
    """One step.

    Args:
        worker: State of the writer process.
        manager: Lock manager for the table of the step.
        table: Location of that table, which does not exist yet.

    """

    def __init__(self, worker: StepWorker, manager: LockManager, table: str) -> None:
        self._worker = worker
        self._spark = worker.spark
        self._manager = manager
        self._table = table
        self._insert_may_start = threading.Event()
        self._delete_waits = False
        self._inserted = threading.Event()
        self._outcomes: dict[str, str] = {}

    def run(self) -> dict[str, Any]:
        """Take the step.

        Returns:
            Fields of the history's event: ``met``, whether the INSERT was committed while the DELETE waited;
            ``deleted`` and ``inserted``, ``done`` or the name of an error; ``left`` and ``there``, the number of
            rows in the table that the DELETE matches and that the INSERT adds; ``lost``, whether the hold was lost;
            ``error``, the name of the error that ended the step, or None.

        """
        step: dict[str, Any] = {"met": False, "left": None, "there": None, "lost": False, "error": None}
        self._worker.in_step = True
        try:
            with locked(self._spark, self._table, manager=self._manager, timeout_seconds=_TIMEOUT_SECONDS) as hold:
                self._worker.cycles[hold.hold_id] = self
                try:
                    self._append(0, _DELETED_ROWS)
                    self._write_in_two_threads()
                finally:
                    del self._worker.cycles[hold.hold_id]
                    step["lost"] = hold.lost is not None
            step["met"] = self._delete_waits and self._outcomes["inserted"] == DONE
            rows = [row.id for row in self._spark.read.format("delta").load(self._table).collect()]
            step |= {"left": sum(row < _DELETED_ROWS for row in rows), "there": rows.count(_INSERTED_ID)}
        except JvmGoneError:
            raise
        except Exception as error:  # noqa: BLE001 (Spark's errors have no class in common)
            step["error"] = type(error).__name__
        finally:
            self._worker.in_step = False
        return {"deleted": None, "inserted": None, **self._outcomes, **step}

    def on_put_request(self, request: Mapping[str, Any]) -> None:
        """Delay the commit of the DELETE until the INSERT ends."""
        if request.get("operation") == "DELETE" and not self._insert_may_start.is_set():
            self._delete_waits = True
            self._insert_may_start.set()
            self._inserted.wait(_TIMEOUT_SECONDS)

    def _write_in_two_threads(self) -> None:
        thread = InheritableThread(target=self._insert)
        thread.start()
        writer = LockedDeltaWriter(self._spark, self._manager, self._table)
        try:
            writer.delete(f"id < {_DELETED_ROWS}")
            self._outcomes["deleted"] = DONE
        except Exception as error:  # noqa: BLE001 (recorded)
            self._outcomes["deleted"] = type(error).__name__
        finally:
            # The INSERT must start even if the DELETE failed before its commit.
            self._insert_may_start.set()
            thread.join()

    def _insert(self) -> None:
        self._insert_may_start.wait(_TIMEOUT_SECONDS)
        try:
            self._append(_INSERTED_ID, _INSERTED_ID + 1)
            self._outcomes["inserted"] = DONE
        except Exception as error:  # noqa: BLE001 (recorded)
            self._outcomes["inserted"] = type(error).__name__
        finally:
            self._inserted.set()

    def _append(self, first: int, end: int) -> None:
        self._spark.range(first, end, 1, 1).write.format("delta").mode("append").save(self._table)
