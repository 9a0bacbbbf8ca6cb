"""What surrounds the work of every job: its arguments, the lock manager, a session, signals, the report, the exit code.

A job is its arguments and a function, see :class:`Job`; ``append.py`` shows how little is left.
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
from typing import Any, Generic, TypeVar

from pyspark.sql import SparkSession

from lock_manager import LockManager, SluiceError, ZookeeperLockManager
from lock_manager.coordinator import WAITING_LOGGER
from lock_manager.metrics import MetricsExporter
from writer_jobs.delta.session import build_session, refuse_lenient_casts, running_session
from writer_jobs.errors import StorageError, WriteFailedError
from writer_jobs.job.arguments import HelpShown, JobArguments
from writer_jobs.job.exit_codes import BAD_ARGUMENTS, DONE, exit_code_of, sentence_of
from writer_jobs.job.output import JobOutput, JvmStandardError, Report, driver_files, under_spark_submit
from writer_jobs.job.stopping import Stopped, StopSignals, stop_when_orphaned

# Servers that are down refuse a TCP connection at once; one that restarts gets this long.
_REACH_SECONDS = 2.0
# An ensemble is looked for no longer than the lock would be waited for, but long enough to be found.
_CONNECT_SECONDS = 15.0
_CONNECT_SECONDS_AT_LEAST = 2.0
# PySpark prints each analysis error with its stack trace, whoever handles it.
_PYSPARK_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

_A = TypeVar("_A", bound=JobArguments)


@dataclass(frozen=True, kw_only=True)
class JobContext(Generic[_A]):
    """What the function of a job works with.

    Attributes:
        arguments: of the job.
        spark: the session.
        manager: hands out locks.
        output: gets every step.
        stop: SIGTERM and Ctrl-C; what must not be parted is done within ``stop.deferred``.
        report: notes facts in the report, if one was asked for.
        metrics: where this run's metrics are served or written; None: nowhere.

    """

    arguments: _A
    spark: SparkSession
    manager: LockManager
    output: JobOutput
    stop: StopSignals
    report: Callable[..., None]
    metrics: MetricsExporter | None = None


@dataclass(frozen=True)
class Job(Generic[_A]):
    """A job for ``spark-submit``.

    Attributes:
        program: name of its file.
        parse: returns its arguments; raises as ``JobParser.parse`` does.
        work: does it. An error becomes the exit code and the sentence of :mod:`writer_jobs.job.exit_codes`.

    """

    program: str
    parse: Callable[[Sequence[str] | None], _A]
    work: Callable[[JobContext[_A]], None]

    def run(self, argv: Sequence[str] | None = None) -> int:
        """Run it, and return its exit code.

        In a process that has a Spark session, that one is used and left open.

        Args:
            argv: the command line, by default this process's.

        """
        try:
            arguments = self.parse(argv)
        except HelpShown:
            return DONE
        except SluiceError as error:
            self._say(sentence_of(error))
            return BAD_ARGUMENTS
        output, report = JobOutput(arguments.commits), _report(arguments)
        code, sentence = DONE, None
        try:
            with StopSignals() as stop:
                arguments.check()
                with nullcontext() if arguments.metrics is None else MetricsExporter(arguments.metrics) as metrics:
                    self._work(arguments, output, stop, report, metrics)
        except (Exception, Stopped, KeyboardInterrupt) as error:  # noqa: BLE001 (each becomes an exit code and a sentence)
            if arguments.verbose:
                traceback.print_exception(error)
            code, sentence = exit_code_of(error), sentence_of(error) + output.made_before()
            self._say(sentence)
        if report is not None and not report.failed:
            try:
                report.write(exit_code=code, error=sentence, finished_at=time.time(), **output.made)
            except SluiceError as error:
                self._say(f"the report was not written: {error}")
        return code

    def run_as_program(self) -> int:
        """Run with this process's command line, its logging, and what ``spark-submit`` makes of its streams."""
        verbose = "--verbose" in sys.argv
        if under_spark_submit():
            sys.stderr = JvmStandardError()
            stop_when_orphaned()
        logging.basicConfig(level=logging.INFO if verbose else logging.CRITICAL + 1)
        if not verbose:
            warnings.simplefilter("ignore")
            for name in _PYSPARK_LOGGERS:
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
            # What a driver that only observes would refuse is worth a line whatever is asked for, and whom a job waits
            # for that seems to hang.
            logging.getLogger("lock_manager.guard.commit_guard").setLevel(logging.WARNING)
            logging.getLogger(WAITING_LOGGER).setLevel(logging.INFO)
        return self.run()

    def _work(
        self,
        arguments: _A,
        output: JobOutput,
        stop: StopSignals,
        report: Report | None,
        metrics: MetricsExporter | None,
    ) -> None:
        settings = arguments.lock_settings()
        with ZookeeperLockManager(settings) as probe:
            # Before anything that costs: executors, listing, reading.
            probe.check_reachable(_REACH_SECONDS)
            probe.connect(min(_CONNECT_SECONDS, max(settings.timeout_seconds, _CONNECT_SECONDS_AT_LEAST)))
        arguments.check_local_sources(driver_files())
        with _session(self.program, arguments.session_settings, verbose=arguments.verbose) as spark:
            stop.install()
            refuse_lenient_casts(spark)
            context = spark.sparkContext

            def note(**facts: Any) -> None:
                if report is not None:
                    report.write(**facts)

            # Also to find out now whether it can be written.
            note(application=context.applicationId)
            settings = replace(settings, job=settings.job or context.appName, app_id=context.applicationId)
            with ZookeeperLockManager(settings) as manager:
                self.work(
                    JobContext(
                        arguments=arguments,
                        spark=spark,
                        manager=manager,
                        output=output,
                        stop=stop,
                        report=note,
                        metrics=metrics,
                    )
                )

    def _say(self, sentence: str) -> None:
        with suppress(OSError):
            print(f"{self.program}: {sentence}", file=sys.stderr, flush=True)


@contextmanager
def failing_store_is_a_failed_write(table: str) -> Iterator[None]:
    """Say of a store that fails while the job works that the write failed: the arguments were good when it began.

    Raises:
        WriteFailedError: instead of StorageError.

    """
    try:
        yield
    except StorageError as error:
        raise WriteFailedError(table=table, reason=str(error)) from error


@contextmanager
def _session(program: str, settings: Mapping[str, str], *, verbose: bool) -> Iterator[SparkSession]:
    ours = running_session() is None
    spark = build_session(program, log_level="WARN" if verbose else "FATAL")
    previous = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield spark
    finally:
        with suppress(Exception):  # the JVM may be gone
            if ours:
                spark.stop()
            else:
                for name, setting in previous.items():
                    spark.conf.unset(name) if setting is None else spark.conf.set(name, setting)


def _report(arguments: JobArguments) -> Report | None:
    if arguments.report is None:
        return None
    facts = {
        "exit_code": None,
        "error": None,
        "table": arguments.table,
        **arguments.facts,
        "application": None,
        "started_at": time.time(),
        "finished_at": None,
        "commits": [],
    }
    return Report(arguments.report, facts)
