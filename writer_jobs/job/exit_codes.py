"""The exit codes of all jobs, and the sentence on standard error for each error."""

from __future__ import annotations

from dataclasses import dataclass

from lock_manager import (
    AdoptionMismatchError,
    ClosedError,
    EnsembleFormatError,
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LockCancelledError,
    LockLostError,
    LockNotHeldError,
    LockTimeoutError,
    SluiceError,
)
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.errors import (
    CommitUnknownError,
    NothingAppliedError,
    RetriesExhaustedError,
    UnprovenCommitError,
    UnsafeStoreError,
    WriteFailedError,
)
from writer_jobs.job.stop_signals import JobStopped

#: Exit code of a job that succeeded.
DONE = 0
#: Exit code of a job with bad arguments; :data:`EXIT_CODES` describes every code.
BAD_ARGUMENTS = 2
_UNEXPECTED = 1
_NO_LOCK = 3
_LOCK_LOST = 4
_WRITE_FAILED = 5
_UNKNOWN = 6
_UNPROVEN = 7
_NOTHING_APPLIED = 8
_INTERRUPTED = 130
_TERMINATED = 143


@dataclass(frozen=True)
class ExitCode:
    """A row of the table of exit codes, in ``--help`` and in ``docs/jobs.md``.

    Attributes:
        code: The exit code.
        repeat: ``yes`` if a scheduler may run the same command line again, else ``no``; ``-`` for success.
        meaning: Meaning of the code, on one line.

    """

    code: int
    repeat: str
    meaning: str


#: Every exit code of a job.
EXIT_CODES = (
    ExitCode(DONE, "-", "done"),
    ExitCode(_UNEXPECTED, "no", "an error that this program did not expect"),
    ExitCode(
        BAD_ARGUMENTS,
        "no",
        "bad arguments: no such source, malformed host list, no Delta table, changed sources of a run",
    ),
    ExitCode(
        _NO_LOCK,
        "yes",
        "lock not acquired: timeout, ZooKeeper refuses or does not answer, unknown format, adopted elsewhere",
    ),
    ExitCode(_LOCK_LOST, "yes", "lock lost, not held at the commit, or (optimistic://) others faster; not committed"),
    ExitCode(
        _WRITE_FAILED,
        "no",
        "write failed: rows that do not fit the table, malformed records, a failing or unsafe store",
    ),
    ExitCode(_UNKNOWN, "yes", "unknown: the store did not answer the PUT of a commit, or a read of the log after it"),
    ExitCode(
        _UNPROVEN,
        "yes",
        "committed, at least in part, but the lock was lost or not confirmed: the message names the versions",
    ),
    ExitCode(_NOTHING_APPLIED, "no", "nothing of a non-empty input was applied (cdc.py, stream.py)"),
    ExitCode(_INTERRUPTED, "yes", "stopped by Ctrl-C: a commit that had begun was completed or cancelled"),
    ExitCode(_TERMINATED, "yes", "stopped by SIGTERM: a commit that had begun was completed or cancelled"),
)
_ROWS = "".join(f"  {row.code:<4} {row.repeat:<7} {row.meaning}\n" for row in EXIT_CODES)

#: Last section of ``--help``.
HELP = f"""\
exit codes:
  code repeat  meaning
{_ROWS}
  repeat: "yes" if a scheduler may run the same command again, provided that it has --run-id or --checkpoint.
  Without these options it may do so after 3 and 4 only, and only if the job printed no "commit" line.
  Some cluster managers change the exit code: --report writes it to a file.
  After code 7 the failed commit is in the table, after 6 it may be, after 2 to 5 and 8 it is not.
  After 1, 130 or 143 look the commit up with `sluice log`.
  Ctrl-C at a terminal ends the JVM of spark-submit at once, as if killed.
  SIGTERM to the Python process stops the job cleanly.
"""

# The first matching class counts, so subclasses come first.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (LockTimeoutError, _NO_LOCK),
    (LockCancelledError, _NO_LOCK),
    (EnsembleUnavailableError, _NO_LOCK),
    (EnsembleRefusedError, _NO_LOCK),
    (EnsembleFormatError, _NO_LOCK),
    (AdoptionMismatchError, _NO_LOCK),
    (ClosedError, _NO_LOCK),
    (UnprovenCommitError, _UNPROVEN),  # a LockLostError
    (LockLostError, _LOCK_LOST),
    (LockNotHeldError, _LOCK_LOST),
    (RetriesExhaustedError, _LOCK_LOST),  # a WriteFailedError
    (CommitUnknownError, _UNKNOWN),
    (NothingAppliedError, _NOTHING_APPLIED),
    (WriteFailedError, _WRITE_FAILED),
    (UnsafeStoreError, _WRITE_FAILED),
    (SluiceError, BAD_ARGUMENTS),
    (KeyboardInterrupt, _INTERRUPTED),
)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a job that ended with this error."""
    if isinstance(error, JobStopped):
        return error.exit_code
    if isinstance(error, LockLostError) and error.commits:
        return _UNPROVEN
    return next((code for error_class, code in _CODES if isinstance(error, error_class)), _UNEXPECTED)


def sentence_of(error: BaseException) -> str:
    """Return the sentence that a job prints when it ends with this error, on one line."""
    if isinstance(error, KeyboardInterrupt):
        text = "stopped by SIGINT"
    elif isinstance(error, SluiceError | JobStopped):
        text = str(error)
    elif isinstance(error, JVM_ERRORS):
        text = f"unexpected: {error_reason(error)}"
    else:
        text = f"unexpected {type(error).__name__}: {error} (--verbose shows where)"
    return " ".join(text.split())
