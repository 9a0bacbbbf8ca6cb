"""Spark jobs that write Delta tables under a ZooKeeper lock, and the library for programs of your own.

``append.py``, ``overwrite.py``, ``upsert.py``, ``cdc.py``, ``stream.py``, ``snapshot.py`` and ``maintain.py`` are jobs
for ``spark-submit``. Programs do the same with :class:`LockedDeltaWriter`, :func:`apply_changes`, :func:`apply_cells`,
:func:`apply_events`, :func:`apply_rows`, :func:`stream_into`, :func:`take_pin` and :func:`vacuum`. Every error is a
:class:`~lock_manager.errors.SluiceError`, except ValueError and TypeError for an argument that is not valid;
``writer_jobs.errors`` shows the tree.
"""

from lock_manager.errors import PinError
from lock_manager.table_records.pins import Pin, PinnedTable
from writer_jobs.commit.driver_guard import attach
from writer_jobs.commit.options import RewriteOptions, WriteOptions
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.session import build_session
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.table_log import Commit, DeltaTableLog, Head
from writer_jobs.errors import (
    ChangesError,
    CheckpointError,
    CommitUnknownError,
    FeedError,
    GuardMissingError,
    HeldTooLongError,
    MaintenanceError,
    MappingError,
    RetriesExhaustedError,
    RunError,
    SchemaMismatchError,
    SourceError,
    StorageError,
    StreamError,
    TableError,
    UnprovenCommitError,
    UnsafeStoreError,
    UnsupportedSessionError,
    WriteConflictError,
    WriteFailedError,
)
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.feeds.hbase.apply import apply_cells
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.late_rows.apply import apply_rows
from writer_jobs.late_rows.result import RowsResult
from writer_jobs.late_rows.stream import stream_into
from writer_jobs.locking import locked, locked_all
from writer_jobs.maintenance.vacuum import VacuumResult, vacuum
from writer_jobs.merge.apply import apply_changes
from writer_jobs.merge.result import ChangesResult
from writer_jobs.pins.read import ChangedSince, changed_before, changed_since, pinned_rows, rows_since
from writer_jobs.pins.take import find_pin, list_pins, remove_pin, take_pin
from writer_jobs.writer import LockedDeltaWriter

__all__ = [
    "ChangedSince",
    "ChangesError",
    "ChangesResult",
    "CheckpointError",
    "Commit",
    "CommitResult",
    "CommitUnknownError",
    "DeltaTableLog",
    "FeedError",
    "GuardMissingError",
    "HBaseMapping",
    "Head",
    "HeldTooLongError",
    "LockedDeltaWriter",
    "MaintenanceError",
    "MappingError",
    "Pin",
    "PinError",
    "PinnedTable",
    "RetriesExhaustedError",
    "RewriteOptions",
    "RowsResult",
    "RunError",
    "SchemaMismatchError",
    "SourceError",
    "StorageError",
    "StreamError",
    "TableError",
    "TableState",
    "UnprovenCommitError",
    "UnsafeStoreError",
    "UnsupportedSessionError",
    "VacuumResult",
    "WriteConflictError",
    "WriteFailedError",
    "WriteOptions",
    "apply_cells",
    "apply_changes",
    "apply_events",
    "apply_rows",
    "attach",
    "build_session",
    "changed_before",
    "changed_since",
    "find_pin",
    "list_pins",
    "locate_table",
    "locked",
    "locked_all",
    "pinned_rows",
    "remove_pin",
    "rows_since",
    "stream_into",
    "take_pin",
    "vacuum",
]
