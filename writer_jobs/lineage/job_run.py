"""The run of a job, which is the parent of the runs of its writes."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from writer_jobs.lineage.log_once import errors_logged
from writer_jobs.lineage.records import ParentRun, RunName, RunRecord, State, message_of, state_of
from writer_jobs.lineage.sender import PROCESS_SENDER

log = logging.getLogger(__name__)

_PARENT_VARIABLE, _ROOT_VARIABLE = "OPENLINEAGE_PARENT_ID", "OPENLINEAGE_ROOT_PARENT_ID"
_PARTS_OF_VARIABLE = 3


class _RunningJob:
    """The run of the job of this process; None if there is none. Streams write in threads, so it is one for all."""

    parent: ParentRun | None = None


@contextmanager
def recorded_job(spark: SparkSession, name: str, *, is_stream: bool) -> Iterator[None]:
    """Send events when a job begins and ends. Runs of writes within the block are runs of the job."""
    sender = PROCESS_SENDER.get()
    if sender is None:
        yield
        return
    run, parent = RunName.new(name), None
    with errors_logged():
        parent = configured_parent(spark)

    def send(state: State, error: BaseException | None = None) -> None:
        with errors_logged():
            message = None if error is None else message_of(error)
            sender.put(
                RunRecord(state=state, run=run, parent=parent, job_type="JOB", is_stream=is_stream, error=message)
            )

    send("START")
    _RunningJob.parent = ParentRun(run, run if parent is None else parent.root)
    try:
        yield
    except BaseException as error:
        send(state_of(error), error)
        raise
    else:
        send("COMPLETE")
    finally:
        _RunningJob.parent = None


def parent_of_writes(spark: SparkSession) -> ParentRun | None:
    """Return the run of this process's job; without a job, the run that the configuration names."""
    return _RunningJob.parent or configured_parent(spark)


def configured_parent(spark: SparkSession) -> ParentRun | None:
    """Return the run that started this driver, by ``spark.openlineage.parent…`` or ``OPENLINEAGE_PARENT_ID``.

    Airflow sets the former for its operators, and dbt reads the latter. None if neither is set, or the value is
    malformed.
    """
    conf: Any = spark.sparkContext._jsc.sc().conf()  # noqa: SLF001 (PySpark's getConf would copy all settings)

    def setting(name: str) -> str:
        return str(conf.get(f"spark.openlineage.{name}", ""))

    run = _run_name(setting("parentRunId"), setting("parentJobNamespace"), setting("parentJobName"))
    if run is not None:
        root = _run_name(setting("rootParentRunId"), setting("rootParentJobNamespace"), setting("rootParentJobName"))
        return ParentRun(run, root or run)
    run = _run_of_variable(_PARENT_VARIABLE)
    return None if run is None else ParentRun(run, _run_of_variable(_ROOT_VARIABLE) or run)


def _run_of_variable(variable: str) -> RunName | None:
    """Return the run that a variable names as ``NAMESPACE/JOB/RUN``."""
    parts = os.environ.get(variable, "").split("/")
    return _run_name(parts[2], parts[0], parts[1]) if len(parts) == _PARTS_OF_VARIABLE else None


def _run_name(run_id: str, namespace: str, job: str) -> RunName | None:
    try:
        uuid.UUID(run_id)
    except ValueError:
        return None
    return RunName(run_id, namespace, job) if namespace and job else None
