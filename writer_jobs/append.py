"""The append job: ``spark-submit … writer_jobs/append.py --help`` tells what it does."""

from __future__ import annotations

import logging
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

if __package__ in (None, ""):
    # Run as a script: import the packages from beside this folder, and nothing from within it.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

try:
    from lock_manager import (
        ClosedError,
        EnsembleFormatError,
        EnsembleRefusedError,
        EnsembleUnavailableError,
        LockCancelledError,
        LockLostError,
        LockNotHeldError,
        LockTimeoutError,
        PinMismatchError,
        SluiceError,
        ZookeeperLockManager,
    )
    from lock_manager.metrics import MetricsExporter
except ModuleNotFoundError as missing:
    print(f"append.py: {missing}: give spark-submit the --py-files that `sluice submit-args` prints", file=sys.stderr)
    sys.exit(2)

from pyspark.sql import SparkSession

from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.session import build_session, running_session
from writer_jobs.errors import CommitUnknownError, StorageError, WriteFailedError
from writer_jobs.job.append_arguments import PROGRAM, Arguments, HelpShown, parse_arguments
from writer_jobs.job.load import AppendLoad
from writer_jobs.job.output import JobOutput, JvmStandardError, Report, under_spark_submit
from writer_jobs.job.stopping import Stopped, StopSignals, stop_when_orphaned
from writer_jobs.writer import LockedDeltaWriter

EXIT_DONE = 0
EXIT_UNEXPECTED = 1
EXIT_ARGUMENTS = 2
EXIT_NO_LOCK = 3
EXIT_LOCK_LOST = 4
EXIT_WRITE_FAILED = 5
EXIT_UNKNOWN = 6
EXIT_INTERRUPTED = 130

# An ensemble is looked for no longer than the lock would be waited for, but long enough to be found.
_CONNECT_SECONDS = 15.0
_CONNECT_SECONDS_AT_LEAST = 2.0

# The first that fits.
_EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (LockTimeoutError, EXIT_NO_LOCK),
    (LockCancelledError, EXIT_NO_LOCK),
    (EnsembleUnavailableError, EXIT_NO_LOCK),
    (EnsembleRefusedError, EXIT_NO_LOCK),
    (EnsembleFormatError, EXIT_NO_LOCK),
    (PinMismatchError, EXIT_NO_LOCK),
    (ClosedError, EXIT_NO_LOCK),
    (LockLostError, EXIT_LOCK_LOST),
    (LockNotHeldError, EXIT_LOCK_LOST),
    (CommitUnknownError, EXIT_UNKNOWN),
    (WriteFailedError, EXIT_WRITE_FAILED),
    (SluiceError, EXIT_ARGUMENTS),
    (KeyboardInterrupt, EXIT_INTERRUPTED),
)

# PySpark prints each analysis error with its stack trace, whoever handles it.
_PYSPARK_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code.

    In a process that has a Spark session, that one is used and left open.

    Args:
        argv: the command line, by default this process's.

    """
    try:
        arguments = parse_arguments(argv)
    except HelpShown:
        return EXIT_DONE
    except SluiceError as error:
        _say(_sentence(error))
        return EXIT_ARGUMENTS
    output = JobOutput(arguments.commits)
    report = _report(arguments)
    code, sentence = EXIT_DONE, None
    try:
        with StopSignals() as stop:
            arguments.check()
            with nullcontext() if arguments.metrics is None else MetricsExporter(arguments.metrics):
                _append(arguments, output, stop, report)
    except (Exception, Stopped, KeyboardInterrupt) as error:  # noqa: BLE001 (each becomes an exit code and a sentence)
        if arguments.verbose:
            traceback.print_exception(error)
        code, sentence = _exit_code(error), _sentence(error) + output.made_before()
        _say(sentence)
    if report is not None and not report.failed:
        try:
            report.write(exit_code=code, error=sentence, finished_at=time.time(), commits=output.commits)
        except SluiceError as error:
            _say(f"the report was not written: {error}")
    return code


def _append(arguments: Arguments, output: JobOutput, stop: StopSignals, report: Report | None) -> None:
    settings = arguments.lock_settings()
    with ZookeeperLockManager(settings) as probe:
        # Before anything that costs: executors, listing, reading.
        probe.connect(min(_CONNECT_SECONDS, max(settings.timeout_seconds, _CONNECT_SECONDS_AT_LEAST)))
    with _session(verbose=arguments.verbose) as spark:
        stop.install()
        context = spark.sparkContext
        if report is not None:
            # Also to find out now whether it can be written.
            report.write(application=context.applicationId)
        settings = replace(settings, job=settings.job or context.appName, app_id=context.applicationId)
        with ZookeeperLockManager(settings) as manager:
            writer = LockedDeltaWriter(spark, manager, arguments.table)
            if report is not None:
                report.write(table=writer.table)
            load = AppendLoad(spark, writer, arguments, output, stop.deferred)
            try:
                load.run()
            except StorageError as error:
                # Not the arguments' fault: they were good when the job began.
                raise WriteFailedError(table=writer.table, reason=str(error)) from error


@contextmanager
def _session(*, verbose: bool) -> Iterator[SparkSession]:
    ours = running_session() is None
    spark = build_session(PROGRAM, log_level="WARN" if verbose else "FATAL")
    try:
        yield spark
    finally:
        if ours:
            with suppress(Exception):  # the JVM may be gone
                spark.stop()


def _report(arguments: Arguments) -> Report | None:
    if arguments.report is None:
        return None
    facts = {
        "exit_code": None,
        "error": None,
        "table": arguments.table,
        "run_id": arguments.run_id,
        "commits_asked_for": arguments.commits,
        "sources": list(arguments.sources),
        "application": None,
        "started_at": time.time(),
        "finished_at": None,
        "commits": [],
    }
    return Report(arguments.report, facts)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, Stopped):
        return error.exit_code
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), EXIT_UNEXPECTED)


def _sentence(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        text = "stopped by SIGINT"
    elif isinstance(error, SluiceError | Stopped):
        text = str(error)
    elif isinstance(error, JVM_ERRORS):
        text = f"unexpected: {one_sentence(error)}"
    else:
        text = f"unexpected {type(error).__name__}: {error} (--verbose shows where)"
    return " ".join(text.split())


def _say(sentence: str) -> None:
    with suppress(OSError):
        print(f"{PROGRAM}: {sentence}", file=sys.stderr, flush=True)


def _run_as_program() -> int:
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
        # What a driver that only observes would refuse is worth a line whatever is asked for, and whom a job waits for
        # that seems to hang.
        logging.getLogger("lock_manager.commit_guard").setLevel(logging.WARNING)
        logging.getLogger("lock_manager.zookeeper.queue").setLevel(logging.INFO)
    return main()


if __name__ == "__main__":
    sys.exit(_run_as_program())
