"""Run a job: parse its arguments, connect, start a session, handle signals, write the report, return the exit code.

A job is its arguments and a function; see :class:`Job` and, for an example, ``append.py``.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from pyspark.sql import SparkSession

from lock_manager import (
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LockManager,
    LockSettings,
    ResourceError,
    SluiceError,
    canonical_table_uri,
    tracing,
)
from lock_manager.events import Event, emit
from lock_manager.managers import manager_of
from lock_manager.waits import WAITING_LOGGER
from writer_jobs.delta.session import build_session, refuse_lenient_casts, running_session, under_spark_submit
from writer_jobs.errors import StorageError, WriteFailedError
from writer_jobs.job.arguments import HelpShown, JobArguments, report_uri
from writer_jobs.job.exit_codes import BAD_ARGUMENTS, DONE, exit_code_of, sentence_of
from writer_jobs.job.metrics import start_metrics
from writer_jobs.job.output import JobOutput, JvmStandardError, Report, driver_files
from writer_jobs.job.stop_signals import JobStopped, StopSignals, stop_when_orphaned
from writer_jobs.lineage.job_run import recorded_job
from writer_jobs.writer import LockedDeltaWriter

# A server that is down refuses a TCP connection at once. A server that restarts gets this much time.
_REACH_SECONDS = 2.0
# Limits of the time to connect to the ensemble; between them it is the lock's timeout.
_MIN_CONNECT_SECONDS = 2.0
_MAX_CONNECT_SECONDS = 15.0
# PySpark logs each analysis error with its stack trace, also a handled one.
_PYSPARK_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

_Arguments = TypeVar("_Arguments", bound=JobArguments)


@dataclass(frozen=True, kw_only=True)
class JobContext(Generic[_Arguments]):
    """The context of a job's function.

    Attributes:
        program: Name of the job's file.
        manager: Lock manager whose default timeout is ``--lock-timeout``.
        stop: SIGTERM and Ctrl-C. Work that must not be interrupted runs within ``stop.deferred``.
        report: Adds fields to the report, if there is one.

    """

    program: str
    arguments: _Arguments
    spark: SparkSession
    manager: LockManager
    output: JobOutput
    stop: StopSignals
    report: Callable[..., None]

    @cached_property
    def writer(self) -> LockedDeltaWriter:
        """The writer of the table. The first access adds the table's canonical URI to the report."""
        writer = LockedDeltaWriter(self.spark, self.manager, self.arguments.table)
        self.report(table=writer.table)
        return writer


@dataclass(frozen=True)
class Job(Generic[_Arguments]):
    """A job for ``spark-submit``.

    Attributes:
        program: Name of the job's file.
        parse: Returns the job's arguments; raises the errors of ``JobParser``.
        work: Does the job's work. :mod:`writer_jobs.job.exit_codes` maps its errors to exit codes and sentences.

    """

    program: str
    parse: Callable[[Sequence[str] | None], _Arguments]
    work: Callable[[JobContext[_Arguments]], None]

    def run(self, argv: Sequence[str] | None = None) -> int:
        """Run the job and return its exit code. ``argv`` is the command line; None: that of this process.

        A Spark session that already runs in this process is used and stays open.
        """
        try:
            arguments = self.parse(argv)
        except HelpShown:
            return DONE
        except SluiceError as error:
            self._print_error(sentence_of(error))
            self._finish_report(Report(report_uri(argv)), exit_code=BAD_ARGUMENTS, error=sentence_of(error))
            return BAD_ARGUMENTS
        output = JobOutput(arguments.commits)
        report = Report(arguments.report, table=arguments.table, **arguments.report_fields)
        code, sentence = DONE, None
        try:
            with (
                StopSignals() as stop,
                tracing.span("job", {"sluice.program": self.program}, parent=tracing.parent_of_process()),
            ):
                arguments.check()
                with nullcontext() if arguments.metrics is None else start_metrics(arguments.metrics):
                    self._work(arguments, output, stop, report)
        except (Exception, JobStopped, KeyboardInterrupt) as error:  # noqa: BLE001 (becomes an exit code and a sentence)
            if arguments.verbose:
                traceback.print_exception(error)
            code, sentence = exit_code_of(error), sentence_of(error) + output.committed_suffix()
            self._print_error(sentence)
        if not report.write_failed:
            self._finish_report(report, exit_code=code, error=sentence, **output.report_fields)
        return code

    def run_as_program(self) -> int:
        """Run the job with this process's command line, and configure logging and standard error."""
        verbose = "--verbose" in sys.argv
        if under_spark_submit():
            sys.stderr = JvmStandardError()
            stop_when_orphaned()
        logging.basicConfig(level=logging.INFO if verbose else logging.CRITICAL + 1)
        if not verbose:
            warnings.simplefilter("ignore")
            for name in _PYSPARK_LOGGERS:
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
            # Always shown: commits that a guard in observe mode would refuse, writes that go on without ZooKeeper,
            # lineage events that were not sent, and the holder that the job waits for.
            for name in ("lock_manager.guard.commit_guard", "lock_manager.courtesy_queue", "writer_jobs.lineage"):
                logging.getLogger(name).setLevel(logging.WARNING)
            logging.getLogger(WAITING_LOGGER).setLevel(logging.INFO)
        tracing.start_sdk()
        return self.run()

    def _work(self, arguments: _Arguments, output: JobOutput, stop: StopSignals, report: Report) -> None:
        settings = arguments.lock_settings()
        # Before the session starts, because executors, listing and reading are expensive.
        _check_coordinator(settings, arguments.table)
        arguments.check_local_sources(driver_files())
        with _session(self.program, arguments.session_settings, verbose=arguments.verbose) as spark:
            stop.install()
            refuse_lenient_casts(spark)
            context = spark.sparkContext
            # This write also shows whether the report can be written.
            report.write(application=context.applicationId)
            name, is_stream = settings.job or context.appName, arguments.commits is None
            settings = replace(settings, job=name, app_id=context.applicationId)
            with manager_of(settings) as manager, recorded_job(spark, name, is_stream=is_stream):
                self.work(
                    JobContext(
                        program=self.program,
                        arguments=arguments,
                        spark=spark,
                        manager=manager,
                        output=output,
                        stop=stop,
                        report=report.write,
                    )
                )

    def _finish_report(self, report: Report, **fields: Any) -> None:
        try:
            report.write(finished_at=time.time(), **fields)
        except SluiceError as error:
            self._print_error(f"the report was not written: {error}")

    def _print_error(self, sentence: str) -> None:
        with suppress(OSError):
            print(f"{self.program}: {sentence}", file=sys.stderr, flush=True)


def _check_coordinator(settings: LockSettings, table: str) -> None:
    """Connect to the coordinator once. The metrics count a failure for the table as the arguments name it."""
    try:
        with manager_of(settings) as manager:
            manager.check_reachable(_REACH_SECONDS)
            manager.connect(min(_MAX_CONNECT_SECONDS, max(settings.timeout_seconds, _MIN_CONNECT_SECONDS)))
    except (EnsembleUnavailableError, EnsembleRefusedError) as error:
        # Without a session the name of a table in a catalog cannot be resolved.
        with suppress(ResourceError):
            table = canonical_table_uri(table)
        emit(Event.UNAVAILABLE, table, error=type(error).__name__)
        raise


@contextmanager
def storage_errors_as_failed_writes(table: str) -> Iterator[None]:
    """Convert errors of a store to failed writes; unconverted they would have the exit code of bad arguments.

    Raises:
        WriteFailedError: The block raised a StorageError.

    """
    try:
        yield
    except StorageError as error:
        raise WriteFailedError(table=table, reason=str(error)) from error


@contextmanager
def _session(program: str, settings: Mapping[str, str], *, verbose: bool) -> Iterator[SparkSession]:
    is_new = running_session() is None
    spark = build_session(program, log_level="WARN" if verbose else "FATAL")
    previous_settings = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield spark
    finally:
        with suppress(Exception):  # the JVM may be gone
            if is_new:
                spark.stop()
            else:
                for name, setting in previous_settings.items():
                    spark.conf.unset(name) if setting is None else spark.conf.set(name, setting)
