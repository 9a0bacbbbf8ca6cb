"""Exit codes of the jobs: each error has one, and the documentation and ``--help`` list the same ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lock_manager import LockLostError, LockTimeoutError
from writer_jobs.errors import CommitUnknownError, TableError, UnprovenCommitError, WriteFailedError
from writer_jobs.job.exit_codes import HELP, exit_code_of

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
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_outcome_has_its_own_code(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code


def test_help_and_documentation_list_the_same_codes() -> None:
    in_help = re.findall(r"^  (\d+) ", HELP, re.MULTILINE)
    documented = re.findall(r"^\| (\d+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert in_help == documented
    assert len(set(in_help)) == len(in_help)
