"""What a job's exit code and its one sentence on standard error say of how it ended; the same for all jobs."""

from __future__ import annotations

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
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.errors import (
    CommitUnknownError,
    NothingAppliedError,
    UnprovenCommitError,
    UnsafeStoreError,
    WriteFailedError,
)
from writer_jobs.job.stopping import Stopped

#: Exit code of a job that is done.
DONE = 0
#: Exit code of a job with bad arguments; :data:`HELP` describes every code.
BAD_ARGUMENTS = 2
_UNEXPECTED = 1
_NO_LOCK = 3
_LOCK_LOST = 4
_WRITE_FAILED = 5
_UNKNOWN = 6
_UNPROVEN = 7
_NOTHING_APPLIED = 8
_INTERRUPTED = 130

#: For the end of ``--help``.
HELP = """\
exit codes:
  0    done
  1    an error that this program did not expect
  2    bad arguments: no such source, malformed host list, no Delta table, a run id that fits other sources
  3    lock not acquired in time, or ZooKeeper does not answer
  4    lock lost, or not held at the commit
  5    write failed: rows that do not fit the table, malformed records, a failing store, one that ignores If-None-Match
  6    unknown: a commit was put and got no answer; with --run-id, start the job again
  7    committed, but whether the lock was still held is not known: the message has the version; do not repeat it
  8    nothing of a non-empty input was applied: each message is a dead letter, or of another source table
  130  stopped by Ctrl-C; 143: by SIGTERM. A commit that had begun was completed or cancelled.
  Cluster managers do not relay these faithfully: --report writes them down. A failed commit may be in the table
  with 6, and is in it with 7, and with 4 where the message names versions; in all other cases it is not.
"""

# The first that fits.
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
    (CommitUnknownError, _UNKNOWN),
    (NothingAppliedError, _NOTHING_APPLIED),
    (WriteFailedError, _WRITE_FAILED),
    (UnsafeStoreError, _WRITE_FAILED),
    (SluiceError, BAD_ARGUMENTS),
    (KeyboardInterrupt, _INTERRUPTED),
)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a job that ended with this error."""
    if isinstance(error, Stopped):
        return error.exit_code
    return next((code for kind, code in _CODES if isinstance(error, kind)), _UNEXPECTED)


def sentence_of(error: BaseException) -> str:
    """Return what a job that ended with this error says of it, on one line."""
    if isinstance(error, KeyboardInterrupt):
        text = "stopped by SIGINT"
    elif isinstance(error, SluiceError | Stopped):
        text = str(error)
    elif isinstance(error, JVM_ERRORS):
        text = f"unexpected: {one_sentence(error)}"
    else:
        text = f"unexpected {type(error).__name__}: {error} (--verbose shows where)"
    return " ".join(text.split())
