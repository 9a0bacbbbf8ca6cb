"""Records of runs, which :mod:`writer_jobs.lineage.events` converts to OpenLineage events, and their connection."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lock_manager import LockCancelledError

State = Literal["START", "COMPLETE", "FAIL", "ABORT"]
"""State of a run, as OpenLineage names it."""

_MAX_MESSAGE = 2_000


@dataclass(frozen=True)
class DatasetName:
    """The name of a dataset by OpenLineage's rules, which is unique in its namespace."""

    namespace: str
    name: str


@dataclass(frozen=True)
class SourceRecord:
    """A source of a write.

    Attributes:
        symlink: The table's name in its catalog; None if it has none.
        version: Version of a Delta table, if the plan names it.

    """

    name: DatasetName
    symlink: DatasetName | None = None
    version: int | None = None


@dataclass(frozen=True)
class OutputRecord:
    """The table of a write.

    Attributes:
        symlink: The table's name in its catalog; None if it was not opened by such a name.
        version: Version that the write made; None if it made none.
        columns: Name and type of each column; empty if they are not known.
        statistics: Number of rows, bytes and files that the write added, as far as Delta counts them.

    """

    name: DatasetName
    symlink: DatasetName | None = None
    version: int | None = None
    columns: tuple[tuple[str, str], ...] = ()
    statistics: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RunName:
    """A run, and its job."""

    run_id: str
    namespace: str
    job: str

    @classmethod
    def new(cls, job: str) -> RunName:
        """Return a new run of a job in this process's namespace (``OPENLINEAGE_NAMESPACE``)."""
        return cls(str(uuid.uuid4()), os.environ.get("OPENLINEAGE_NAMESPACE") or "default", job)


@dataclass(frozen=True)
class ParentRun:
    """The run that began another run, and the root of these runs, such as a run of an Airflow DAG."""

    run: RunName
    root: RunName


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A change of a run's state.

    Attributes:
        at: Time of the change, in seconds since the epoch.
        job_type: Type of the job: ``JOB``, or the operation of a write in upper case.
        is_stream: Whether the job is a stream.
        error: Message of the error that ended the run; None if there was none.
        write: Fields of the write's own facet, ``sluice_write``; None for a job.

    """

    state: State
    run: RunName
    parent: ParentRun | None
    job_type: str
    is_stream: bool = False
    at: float = field(default_factory=time.time)
    sources: tuple[SourceRecord, ...] = ()
    outputs: tuple[OutputRecord, ...] = ()
    error: str | None = None
    write: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Connection:
    """A connection to a collector.

    Attributes:
        send: Sends a record; raises an error if it is not sent.
        close: Sends the events that the transport still keeps, within a number of seconds.

    """

    send: Callable[[RunRecord], None]
    close: Callable[[float], object]


def state_of(error: BaseException) -> State:
    """Return ``ABORT`` if a run was stopped, by a signal or by a call of ``cancel``, else ``FAIL``."""
    return "FAIL" if isinstance(error, Exception) and not isinstance(error, LockCancelledError) else "ABORT"


def message_of(error: BaseException) -> str:
    """Return the message of an error on one line, cut to a length that an event can have."""
    return " ".join((str(error) or type(error).__name__).split())[:_MAX_MESSAGE]
