"""Exit codes of the jobs: each error has one, and the documentation and ``--help`` list the same ones."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from lock_manager import LockLostError, LockTimeoutError
from writer_jobs.errors import (
    CommitUnknownError,
    NothingAppliedError,
    TableError,
    UnprovenCommitError,
    WriteFailedError,
)
from writer_jobs.job.exit_codes import EXIT_CODES, HELP, exit_code_of
from writer_jobs.job.stop_signals import JobStopped

PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ZeroDivisionError(), 1),
        (TableError("no table"), 2),
        (LockTimeoutError(resource="s3://b/t", timeout_seconds=1.0, ahead=1, holder=None), 3),
        (LockLostError(resource="s3://b/t", hold_id="h", reason="gone"), 4),
        (WriteFailedError(table="s3://b/t", reason="no"), 5),
        (CommitUnknownError(table="s3://b/t", reason="no", commit_id="c"), 6),
        (UnprovenCommitError(resource="s3://b/t", hold_id="h", reason="gone", version=7, commit_id="c"), 7),
        (LockLostError(resource="s3://b/t", hold_id="h", reason="gone", commits={"s3://b/t": (7,)}), 7),
        (NothingAppliedError(table="s3://b/t", reason="no"), 8),
        (KeyboardInterrupt(), 130),
        (JobStopped(signal.SIGINT), 130),
        (JobStopped(signal.SIGTERM), 143),
    ],
)
def test_each_error_has_an_exit_code(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code


def test_help_and_documentation_have_the_same_table() -> None:
    rows = [(str(row.code), row.meaning, row.repeat) for row in EXIT_CODES]
    help_rows = re.findall(r"^  (\d+) +(\S+) +(.*)$", HELP, re.MULTILINE)
    assert [(code, meaning, repeat) for code, repeat, meaning in help_rows] == rows
    documented_rows = re.findall(r"^\| (\d+) \| ([^|]*) \| ([^|]*) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert documented_rows == rows
    assert len({code for code, *_ in rows}) == len(rows)
    assert [row.code for row in EXIT_CODES if row.repeat == "yes"] == [3, 4, 6, 7, 130, 143]
