"""Which S3 the tests take, and that a run on an S3 of one's own cannot be one on the embedded S3."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.lake import BUCKET, ENDPOINT, s3_in_words

ROOT = Path(__file__).parents[2]


def make_test_s3(**variables: str) -> subprocess.CompletedProcess[str]:
    """Run the target, with a pytest that only says its version."""
    # A make that runs these tests leaves its own options in the environment.
    others = (ENDPOINT, BUCKET, "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in others}
    # What it is made from is there: these tests run on it.
    command = ["make", "--no-print-directory", "--assume-old=sluice/sluice-log-store.jar", "test-s3", "ARGS=--version"]
    return subprocess.run(
        command, cwd=ROOT, env={**environment, **variables}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("variables", [{}, {ENDPOINT: ""}, {"SLUICE_TEST_S3_ENPOINT": "http://127.0.0.1:9000"}])
def test_the_tests_on_an_s3_of_one_s_own_do_not_run_on_the_embedded_one(variables: dict[str, str]) -> None:
    done = make_test_s3(**variables)
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        "test-s3 needs your own S3: set SLUICE_TEST_S3_ENDPOINT=URL or SLUICE_TEST_S3_BUCKET=NAME "
        "(docs/compatibility.md)"
    )
    assert "pytest" not in done.stdout + done.stderr


@pytest.mark.parametrize("variables", [{ENDPOINT: "http://127.0.0.1:9000"}, {BUCKET: "scratch"}])
def test_with_either_variable_they_run(variables: dict[str, str]) -> None:
    done = make_test_s3(**variables)
    assert done.returncode == 0, done.stderr
    assert "pytest" in done.stdout + done.stderr


def test_pytest_s_header_says_which_s3_the_tests_take(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ENDPOINT, BUCKET, "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    assert s3_in_words() == "embedded"
    monkeypatch.setenv(BUCKET, "scratch")
    assert s3_in_words() == "AWS"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    assert s3_in_words() == "http://127.0.0.1:9000"
    monkeypatch.delenv(BUCKET)
    assert s3_in_words() == "embedded"
    monkeypatch.setenv(ENDPOINT, "https://s3.example.com")
    assert s3_in_words() == "https://s3.example.com"
